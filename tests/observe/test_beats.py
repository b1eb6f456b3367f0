"""What an observer counts at each beat, in this process and with a clock that the test moves."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frog.observe.hook.frog_observer import beat, causes
from frog.observe.hook.frog_observer.beat import Beats
from frog.observe.hook.frog_observer.causes import Causes, Memory
from frog.observe.hook.frog_observer.place import Place


def frame(file: str, function: str = "f") -> Any:
    return SimpleNamespace(f_code=SimpleNamespace(co_filename=file, co_name=function))


@pytest.mark.parametrize(
    ("frames", "cause"),
    [
        ([], None),
        ([frame("/me/train.py")], None),
        ([frame("/x/torch/_dynamo/convert_frame.py")], "compile"),
        ([frame("/x/torch/_inductor/codecache.py")], "compile"),
        ([frame("/x/torch/_functorch/aot_autograd.py")], "compile"),
        ([frame("/x/torch/_dynamo/other.py")], None),
        ([frame("/me/a.py"), frame("/x/torch/utils/data/dataloader.py")], "loader"),
        ([frame("/x/torch/serialization.py", "save")], "checkpoint"),
        ([frame("/x/torch/serialization.py", "_load")], None),
        ([frame("/x/torch/distributed/checkpoint/x.py", "save")], "checkpoint"),
        ([frame("/x/safetensors/torch.py", "save_file")], "checkpoint"),
        ([frame("/a.py")] * 199 + [frame("/x/torch/utils/data/dataloader.py")], "loader"),
        ([frame("/a.py")] * 200 + [frame("/x/torch/utils/data/dataloader.py")], None),
    ],
)
def test_frames_tell_what_the_main_thread_does(frames: list[Any], cause: str | None) -> None:
    assert causes._of_frames(frames) == cause


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Causes]:
    before = list(gc.callbacks)
    monkeypatch.setattr(causes.threading, "_active", {})
    yield Causes(1)
    gc.callbacks[:] = before


LOADER = [frame("/x/torch/utils/data/dataloader.py")]


@pytest.mark.parametrize(
    ("stack", "collected_s", "late_s", "queued_s", "counts"),
    [
        ([], 0.0, 0.0, 0.0, {}),
        (LOADER, 0.0, 0.0, 0.0, {"loader": 1}),
        ([], 0.3, 0.0, 0.0, {}),
        ([], 0.31, 0.0, 0.0, {"gc": 1}),
        (LOADER, 0.5, 0.0, 0.0, {"loader": 1, "gc": 1}),
        ([], 0.0, 0.25, 0.0, {}),
        ([], 0.0, 0.26, 0.0, {"gil": 1}),
        ([], 0.0, 0.26, 0.49, {"gil": 1}),
        ([], 0.0, 0.26, 0.5, {}),  # the process waited for a core
    ],
)
def test_causes_of_a_beat_are_counted(
    counted: Causes, stack: Any, collected_s: float, late_s: float, queued_s: float, counts: dict[str, int]
) -> None:
    counted._collected_s = collected_s
    counted.look(stack, late_s, 1.0, queued_s)
    assert counted.counts == counts
    counted.look([], 0.0, 1.0, 0.0)
    assert counted.counts == counts
    counted.clear()
    assert counted.counts == {}


def test_collections_are_timed_from_their_start(counted: Causes, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10, 4 * 10**9, 5 * 10**9])
    gc.callbacks.remove(counted._on_collection)
    monkeypatch.setattr(causes.time, "monotonic_ns", lambda: next(times))
    counted._on_collection("stop", {})
    assert counted._collected_s == 0
    counted._on_collection("start", {})
    counted._on_collection("stop", {})
    assert counted._collected_s == 1.0


@pytest.mark.parametrize(("used_s", "is_busy"), [(0.3, False), (0.399, False), (0.4, True)])
def test_thread_that_uses_much_of_a_core_is_named(
    counted: Causes, monkeypatch: pytest.MonkeyPatch, used_s: float, is_busy: bool
) -> None:
    cpu = {7: 1.0, 8: 1.0, 9: 50.0}
    threads = {1: (9, "main"), 2: (7, "first"), 3: (8, "n" * 99), 4: (None, "unknown")}
    active = {ident: SimpleNamespace(native_id=number, name=name) for ident, (number, name) in threads.items()}
    monkeypatch.setattr(causes.threading, "_active", active)
    monkeypatch.setattr(causes, "_thread_cpu_s", lambda number: cpu[number])
    counted.look([], 9.0, 1.0, 0.0)
    assert counted.counts == {"gil": 1}
    cpu.update({7: 1.0 + used_s, 8: 1.0 + used_s + 0.0005, 9: 99.0})
    counted.look([], 9.0, 1.0, 0.0)
    assert counted.counts == ({"gil": 1, "thread": 1} if is_busy else {"gil": 2})
    assert counted.thread == ("n" * 80 if is_busy else "")


@pytest.mark.parametrize(
    ("beats", "kept"),
    [
        (48, list(range(1, 49))),
        (49, list(range(2, 49, 2))),
        (52, [*range(2, 49, 2), 50, 52]),
    ],
)
def test_memory_is_kept_evenly_over_the_programs_life(beats: int, kept: list[int]) -> None:
    memory = Memory()
    for number in range(1, beats + 1):
        memory.look(number, (number << 20) + 5)
    assert memory.moments == [(number, number) for number in kept]


# ---- beats -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Beats]:
    before = list(gc.callbacks)
    folder = tmp_path / "rank_0"
    folder.mkdir()
    place = Place(3, 1, 2, 8, 1, "pond", str(folder), str(tmp_path / "request.json"), "start", "")
    monkeypatch.setattr(beat, "_queued_s", lambda: 0.0)
    yield Beats(place)
    gc.callbacks[:] = before


def group(enqueued: int, completed: int) -> dict[str, Any]:
    return {"group": "0", "enqueued": enqueued, "completed": completed}


def take(beats: Beats, monkeypatch: pytest.MonkeyPatch, used_s: float, queued_s: float = 0.0, **more: Any) -> None:
    """Let a second pass in which the process used some of a core, and take a sample."""
    beats._last_s, beats._last_cpu_s, beats._last_queued_s = 100.0, 5.0, 1.0
    monkeypatch.setattr(beat.time, "monotonic", lambda: 101.0)
    monkeypatch.setattr(beat, "_queued_s", lambda: 1.0 + queued_s)
    line = {"file": "/me/train.py", "line": 8}
    beats._take_sample(more.get("groups", []), more.get("line", line), 5.0 + used_s, [])


@pytest.mark.parametrize(
    ("used_s", "queued_s", "waits"),
    [(0.0, 0.0, True), (0.09, 0.0, True), (0.11, 0.0, False), (0.05, 0.4, True), (0.05, 0.46, False)],
)
def test_process_that_uses_a_tenth_of_a_core_waits(
    beats: Beats, monkeypatch: pytest.MonkeyPatch, used_s: float, queued_s: float, waits: bool
) -> None:
    take(beats, monkeypatch, used_s, queued_s)
    assert beats._samples == {"taken": 1, "in_collective": 0, "waiting": int(waits)}
    assert beats._lines == {"train.py:8": 1}


def test_lines_before_the_first_collective_do_not_count(beats: Beats, monkeypatch: pytest.MonkeyPatch) -> None:
    take(beats, monkeypatch, 0.0, groups=[group(0, 0)])
    assert beats._lines == {"train.py:8": 1}
    take(beats, monkeypatch, 0.0, groups=[group(1, 0)])
    assert beats._lines == {"train.py:8": 1}  # again from here on
    take(beats, monkeypatch, 0.0, groups=[group(2, 2)])
    take(beats, monkeypatch, 0.0, line=None)
    assert (beats._lines, beats._samples["in_collective"], beats._samples["taken"]) == ({"train.py:8": 2}, 1, 4)


@pytest.mark.parametrize(("number", "left"), [(999, 1000), (1000, 1)])
def test_lines_that_were_seen_once_are_forgotten_above_a_thousand(
    beats: Beats, monkeypatch: pytest.MonkeyPatch, number: int, left: int
) -> None:
    beats._lines = {f"a.py:{line}": 1 for line in range(number - 1)} | {"often.py:1": 2}
    take(beats, monkeypatch, 0.0)
    assert len(beats._lines) == left


def test_status_has_the_place_and_the_twenty_most_frequent_lines(beats: Beats) -> None:
    beats._lines = {f"a.py:{line}": line for line in range(1, 31)}
    beats._beat()
    status = json.loads((Path(beats.place.folder) / "status.json").read_text())
    names = ("rank", "local_rank", "node_rank", "world_size", "attempt", "host", "start", "state", "answered")
    assert [status[name] for name in names] == [3, 1, 2, 8, 1, "pond", "start", "running", 0]
    lines = [tuple(each) for each in status["samples"]["lines"]]
    assert lines[:20] == [(f"a.py:{line}", line) for line in range(30, 10, -1)]
    assert len(lines) == 20
    assert status["rss_bytes"] > 1 << 20
    assert status["unix_ns"] >= status["started_unix_ns"] > 10**18


def test_last_status_stays_as_it_is(beats: Beats) -> None:
    path = Path(beats.place.folder) / "status.json"
    beats._beat()
    first = path.read_text()
    beats._beat(last=True)
    second = path.read_text()
    beats._beat()
    assert first != second
    assert path.read_text() == second


def test_request_is_answered_once(beats: Beats, monkeypatch: pytest.MonkeyPatch) -> None:
    answered: list[str] = []
    monkeypatch.setattr(beats, "_write_evidence", answered.append)
    beats._answer()
    for number in (1, 1, 2):
        Path(beats.place.requests).write_text(json.dumps({"number": number, "reason": f"why {number}"}))
        beats._answer()
    assert answered == ["why 1", "why 2"]
    assert json.loads((Path(beats.place.folder) / "status.json").read_text())["answered"] == 2
