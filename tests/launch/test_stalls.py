"""The watch over a program's world, without processes: what it does if a user stops the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from frog.core.files import write_json
from frog.core.runs.folder import RunFolder
from frog.core.runs.launcher_schema import StallEvent
from frog.core.runs.observed import Request
from frog.core.runs.read import read_launcher
from frog.core.schema import read_typed
from frog.launch import stalls
from frog.launch.launch_record import Journal
from frog.launch.node_agents import Options
from frog.launch.stalls import StallWatch
from frog.launch.watchdog import Snapshot

LINE = {"file": "/me/train.py", "line": 6, "function": "step"}


def write_status(run: Path, rank: int, answered: int = 0) -> None:
    status = {
        **dict.fromkeys(("local_rank", "node_rank", "attempt", "pid", "started_unix_ns", "unix_ns", "mono_ns"), 0),
        "format": 1,
        "rank": rank,
        "world_size": 2,
        "host": "a",
        "state": "running",
        "cpu_s": 1.0,
        "rss_bytes": 1,
        "line": LINE,
        "in": LINE,
        "groups": [{"group": "0", "enqueued": 5, "completed": 4}],
        "answered": answered,
    }
    write_json(run / f"observed/attempt_0/rank_{rank}/status.json", status)


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StallWatch:
    """A watch over two ranks that wait in a collective."""
    snapshot = Snapshot(completed=4, pending=True, cpu_s=0)
    monkeypatch.setattr(stalls, "take_snapshots", lambda statuses, with_children: dict.fromkeys(statuses, snapshot))
    for rank in (0, 1):
        write_status(tmp_path, rank)
    return StallWatch(Journal(tmp_path, RunFolder(tmp_path)), Options())


def wait(watch: StallWatch, until_s: int) -> None:
    for now in range(until_s + 1):
        assert watch.look(0, {0, 1}, now) is None


def test_ranks_of_a_program_that_waits_are_asked_before_a_user_stops_it(
    tmp_path: Path, watch: StallWatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wait(watch, 8)
    assert watch.ask_before_stop(8)
    assert read_typed(tmp_path / "observed/request.json", Request).reason == "stop"
    write_status(tmp_path, 0, answered=1)
    assert not watch.may_stop(8.1)
    write_status(tmp_path, 1, answered=1)
    assert watch.may_stop(8.2)
    (stall,) = (event for event in read_launcher(RunFolder(tmp_path)).events if isinstance(event, StallEvent))
    assert (stall.kind, stall.still_s, stall.ends, stall.stopped) == ("hang", 8, False, True)
    assert capsys.readouterr().err.splitlines() == [
        "hang: no rank has finished a collective or computed anything for 8 s",
        "  ranks 0, 1: wait in collective number 5 of group 0 at /me/train.py:6 in step",
        f"  try: frog diagnose {tmp_path}",
    ]
    assert not watch.may_stop(8.3)
    assert capsys.readouterr().err == ""


def test_ranks_that_do_not_answer_are_stopped_soon(watch: StallWatch) -> None:
    wait(watch, 8)
    assert watch.ask_before_stop(8)
    assert not watch.may_stop(10.9)
    assert watch.may_stop(11)


def test_program_in_which_no_rank_has_waited_long_is_stopped_at_once(watch: StallWatch) -> None:
    assert not watch.ask_before_stop(0)
    wait(watch, 4)
    assert not watch.ask_before_stop(4)
    assert not watch.may_stop(4)


# ---- a stall ends the ranks, or is only reported ---------------------------------------------------------------------


class Played(StallWatch):
    """A watch over two ranks whose snapshots a test chooses."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, **options: int) -> None:
        super().__init__(Journal(path, RunFolder(path)), Options(deadline_s=10, idle_s=40, **options))
        self.path, self.seen, self.asked_children = path, {}, list[tuple[float, bool]]()
        self.now = 0.0
        monkeypatch.setattr(stalls, "take_snapshots", self._take)
        monkeypatch.setattr(stalls, "describe_hang", lambda path: f"what {path.name} shows")
        for rank in (0, 1):
            write_status(path, rank)

    def _take(self, statuses: object, with_children: bool) -> dict[int, Snapshot]:
        self.asked_children.append((self.now, with_children))
        return self.seen

    def until(self, seconds: float, step_s: float = 1.0) -> float | None:
        """Return when the ranks must be ended."""
        while self.now < seconds:
            self.now += step_s
            if self.must_end(0, {0, 1}, self.now):
                return self.now
        return None

    def events(self) -> list[StallEvent]:
        return [event for event in read_launcher(RunFolder(self.path)).events if isinstance(event, StallEvent)]


WAITS = Snapshot(completed=4, pending=True, cpu_s=0)


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize(("answers", "at_s"), [(True, 13), (False, 21)])
def test_hang_ends_the_ranks_when_they_have_answered_or_after_ten_seconds(
    answers: bool,
    at_s: float,
    restarts: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch = Played(tmp_path, monkeypatch, restarts=restarts)
    watch.seen = {0: WAITS, 1: WAITS}
    assert watch.until(12) is None  # the ranks were seen at 1 s, and asked at 11 s
    assert read_typed(tmp_path / "observed/request.json", Request).reason == "hang"
    for rank in (0, 1) if answers else (0,):
        write_status(tmp_path, rank, answered=1)
    assert watch.error(0) is None
    assert watch.until(60) == at_s
    (event,) = watch.events()
    assert (event.kind, event.still_s, event.ends, event.stopped) == ("hang", 10, True, False)
    assert event.roles == {0: "waits", 1: "waits"}
    said = capsys.readouterr().err
    assert said == (f"{event.text}\n" if restarts else "")  # else the run's error has it
    error = watch.error(0)
    assert error is not None
    assert (error.what, error.hint) == (f"{event.text}\nwhat {tmp_path.name} shows", f"frog diagnose {tmp_path}")
    assert error.exit_code == 137
    assert watch.error(1) is None


def test_slow_rank_is_reported_and_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = Played(tmp_path, monkeypatch)
    for now in range(13):
        watch.seen = {0: WAITS, 1: Snapshot(completed=4, pending=False, cpu_s=now)}
        assert watch.until(now + 1) is None
    (event,) = watch.events()
    assert (event.kind, event.ends, event.roles) == ("computing", False, {0: "waits", 1: "computes"})
    assert capsys.readouterr().err.startswith("rank 1 computed for 10 s while other ranks wait in a collective\n")
    assert not (tmp_path / "observed/request.json").exists()
    assert watch.error(0) is None


def test_hang_is_forgotten_if_a_collective_finishes_before_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Played(tmp_path, monkeypatch)
    watch.seen = {0: WAITS, 1: WAITS}
    assert watch.until(14) is None
    watch.seen = {0: WAITS, 1: Snapshot(completed=5, pending=True, cpu_s=0)}
    assert watch.until(15) is None
    assert watch.until(25) is None  # asked again at 25 s
    assert watch.events() == []
    assert watch.until(60) == 35


def test_ranks_are_looked_at_twice_a_second_and_their_children_when_they_are_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Played(tmp_path, monkeypatch)
    watch.seen = {0: WAITS, 1: WAITS}
    watch.until(8, step_s=0.25)
    assert [now for now, _ in watch.asked_children] == [0.25 + 0.5 * number for number in range(16)]
    assert next(now for now, children in watch.asked_children if children) == 5.75  # more than half of the deadline


def test_ranks_that_have_not_all_started_are_not_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Played(tmp_path, monkeypatch)
    for ranks in (set(), {0}, {0, 1, 2}):
        assert watch.look(0, ranks, watch.now) is None
        watch.now += 1
    assert watch.asked_children == []
    watch.journal.is_chosen = True  # a run of Frog's trainer, which has heartbeats
    assert watch.look(0, {0, 1}, 100) is None
    assert watch.asked_children == []


def test_new_attempt_is_watched_from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Played(tmp_path, monkeypatch)
    watch.seen = {0: WAITS, 1: WAITS}
    assert watch.until(12) is None  # asked at 11 s
    for rank in (0, 1):
        status = (tmp_path / f"observed/attempt_0/rank_{rank}/status.json").read_text()
        path = tmp_path / f"observed/attempt_1/rank_{rank}/status.json"
        path.parent.mkdir(parents=True)
        path.write_text(status)
    looked = [now for now in range(13, 60) if watch.look(1, {0, 1}, now) is not None]
    assert looked[0] == 33  # seen at 13 s, asked at 23 s, ended ten seconds later
    assert watch.error(0) is None


@pytest.mark.parametrize("change", ["no observers", "Frog's trainer"])
def test_only_observed_programs_are_asked(change: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path, RunFolder(tmp_path))
    watch = StallWatch(journal, Options(observe=change != "no observers"))
    journal.is_chosen = change == "Frog's trainer"
    watch._watch.wait = lambda *_: pytest.fail("it was watched")  # type: ignore[method-assign]
    assert (watch.ask_before_stop(8), watch.may_stop(8), watch.look(0, {0}, 8), watch.error(0)) == (
        False, False, None, None,
    )  # fmt: skip
