from __future__ import annotations

import errno
import json
import os
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from run_files import event

from frog.core.errors import UsageError
from frog.core.runs import EventWriter, read_run
from frog.core.runs.attempts import Attempt
from frog.core.runs.changes import places_of
from frog.core.runs.event_schema import CollectiveEvent, EndEvent, SpanEvent
from frog.core.runs.folder import RunFolder
from frog.core.runs.launcher_schema import ReplaceEvent
from frog.core.runs.observer import Observer, named_observers, observing

Write = Callable[[Path], EventWriter]


@pytest.fixture
def write() -> Iterator[Write]:
    """Return a function that opens a writer; all are closed after the test."""
    with ExitStack() as opened:
        yield lambda path: opened.enter_context(closing(EventWriter(path)))


def test_written_events_are_read_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for rank in (0, 1):
        writer = EventWriter(folder.rank_events(rank))
        writer.step = 1
        with writer.span("forward", 2):
            note = writer.collective("all_reduce", "dp", 16)
            note.done(note.start_ns + 30, wait_ns=20)
        writer.emit("end", step=1, status="completed", weights_sha256=None)
        writer.close()
    events = read_run(folder)
    assert list(events.ranks) == [0, 1]
    assert [type(event) for event in events.main.events] == [CollectiveEvent, SpanEvent, EndEvent]
    span = events.main.of(SpanEvent)[0]
    assert (span.phase, span.micro, span.step) == ("forward", 2, 1)
    assert span.end_ns >= span.start_ns > 0
    collective = events.main.of(CollectiveEvent)[0]
    assert (collective.op, collective.axis, collective.payload_bytes) == ("all_reduce", "dp", 16)
    assert (collective.seq, collective.wait_ns) == (0, 20)
    assert collective.end_ns - collective.start_ns == 30


def test_collective_belongs_to_the_step_in_which_it_began(write: Write, tmp_path: Path) -> None:
    """Two overlapping collectives: numbered by start, written at the end, with the step of the start."""
    folder = RunFolder(tmp_path)
    writer = write(folder.rank_events(0))
    writer.step = 4
    first, second = writer.collective("all_gather", "dp", 8), writer.collective("reduce_scatter", "tp", 16)
    second.done(second.start_ns + 1, wait_ns=1)
    writer.step = 5
    first.done(first.start_ns + 9, wait_ns=2)
    reported = [(e.op, e.seq, e.step) for e in read_run(folder).main.of(CollectiveEvent)]
    assert reported == [("reduce_scatter", 1, 4), ("all_gather", 0, 4)]


class Seen(Observer):
    """Records the reported calls."""

    def __init__(self) -> None:
        self.reports: list[tuple[object, ...]] = []

    def phase_begins(self, *place: object) -> None:
        self.reports.append(("begins", *place))

    def phase_ends(self, *place: object) -> None:
        self.reports.append(("ends", *place))

    def event_written(self, event: str, fields: Mapping[str, object]) -> None:
        self.reports.append((event, fields["status"]))


def test_observers_see_phases_and_events_in_order(write: Write, tmp_path: Path) -> None:
    writer, seen = write(tmp_path / "events"), Seen()
    writer.step = 3
    with observing(seen):
        with writer.span("forward", 1):
            assert seen.reports == [("begins", 3, "forward", 1)]
        with pytest.raises(KeyError), writer.span("reduce"):
            raise KeyError
        writer.emit("end", step=3, status="failed", weights_sha256=None)
    with writer.span("zero"):
        pass
    places = [("begins", 3, "forward", 1), ("ends", 3, "forward", 1), ("begins", 3, "reduce", 0)]
    assert seen.reports == [*places, ("end", "failed")]


@pytest.mark.parametrize("name", ["frog.nowhere:x", "frog.core.runs.write", ":x"])
def test_observer_that_cannot_be_loaded_raises_usage_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROG_OBSERVER", name)
    with pytest.raises(UsageError, match="does not name an observer"):
        named_observers()


def test_event_with_unknown_fields_raises_value_error(write: Write, tmp_path: Path) -> None:
    writer = write(tmp_path / "events")
    with pytest.raises(ValueError, match="status"):
        writer.emit("end", step=1)


def test_phase_that_raises_stays_the_current_phase(write: Write, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    writer = write(folder.rank_events(0))
    with pytest.raises(RuntimeError), writer.span("reduce"):
        raise RuntimeError
    assert writer.phase == "reduce"
    assert read_run(folder).main.events == []


def test_torn_line_does_not_corrupt_the_next_event(write: Write, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    first = write(folder.rank_events(0))
    first.emit("end", step=1, status="completed", weights_sha256=None)
    with open(folder.rank_events(0), "a") as file:
        file.write('{"event":"end","st')
    write(folder.rank_events(0)).emit("end", step=2, status="completed", weights_sha256=None)
    events = read_run(folder).main
    assert [event.step for event in events.events] == [1, 2]
    assert events.num_bad == 1


def test_full_disk_is_reported_by_the_first_incomplete_write(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel writes a part of the data, and fails only at the next write."""
    room, write_all = [40], os.write

    def write_some(descriptor: int, data: bytes) -> int:
        if room[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        num = write_all(descriptor, data[: room[0]])
        room[0] -= num
        return num

    writer = write(tmp_path / "rank_0.jsonl")
    monkeypatch.setattr(os, "write", write_some)
    with pytest.raises(OSError, match="No space left"):
        writer.emit("commit", step=1, payload_bytes=1, write_ns=1)


def test_later_event_of_a_repeated_step_counts(write: Write, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    writer = write(folder.rank_events(0))
    for step, status in ((1, "failed"), (2, "failed"), (1, "completed")):
        writer.emit("end", step=step, status=status, weights_sha256=None)
    assert {step: event.status for step, event in read_run(folder).main.by_step(EndEvent).items()} == {
        1: "completed",
        2: "failed",
    }


def test_event_lines_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    writer = EventWriter(folder.rank_events(0))
    for step in range(1, 40):
        writer.emit("end", step=step, status="completed", weights_sha256=None)
    writer.close()
    expected = read_run(folder).main.events
    monkeypatch.setattr("frog.core.runs.read._BLOCK_BYTES", 300)
    assert read_run(folder).main.events == expected
    with folder.rank_events(0).open("ab") as file:
        file.write(b"\0" * 5000)  # a line longer than a block
    again = read_run(folder)
    assert again.main.events == expected
    assert any("1 damaged or torn line" in problem for problem in again.problems)


def test_event_file_larger_than_memory_is_read_in_blocks(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.events.mkdir()
    with folder.rank_events(0).open("wb") as file:
        file.truncate(400 << 20)
    tracemalloc.start()
    assert read_run(folder).main.events == []
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()


def test_cyclic_replacements_terminate(tmp_path: Path) -> None:
    """Only a damaged file contains such a cycle."""
    times = {"unix_ns": 1, "attempt": 0, "rank": 0, "node": 0, "node_rank": 0, "number": 1}
    told = [ReplaceEvent(pid=pid, lost=lost, **times) for pid, lost in ((1, 2), (2, 1), (3, 3))]
    assert places_of([Attempt(0, None, replacements=told)]) == {}


def test_run_with_many_restarts_shows_the_last_starts(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    starts = [json.dumps(event("start", rank=0, world_size=1, step=step, pid=step + 1)) for step in range(1_200)]
    folder.rank_events(0).parent.mkdir(parents=True)
    folder.rank_events(0).write_text("\n".join(starts) + "\n")
    run = read_run(folder)
    assert [attempt.workers[0].last_step for attempt in run.attempts] == list(range(200, 1_200))
    assert "rank 0: showing the last 1000 of 1200 starts" in run.problems
