"""`frog profile -- my.py` inside a rank: which steps are recorded, which files remain, how the program continues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from frog.observe.hook.frog_observer import profiler as profiling
from frog.observe.hook.frog_observer.place import Place
from frog.observe.hook.frog_observer.profiler import _Profiler


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[_Profiler]]:
    """Return the profilers of a test, whose hooks are removed afterwards."""
    found: list[_Profiler] = []
    yield found
    for profiler in found:
        profiler._remove_hook()


def profiler_of(run: Path, made: list[_Profiler], after: int, steps: int, *, continues: bool = True) -> _Profiler:
    place = Place(3, 1, 2, 8, 1, "pond", str(run / "rank_3"), str(run / "request.json"), "start", "")
    made.append(_Profiler(place, str(run), after, steps, continues))
    made[-1].wait_for_torch()
    return made[-1]


def train(num_steps: int) -> list[int]:
    """Take steps with two optimizers; return the numbers of those that were completed."""
    weight = torch.nn.Parameter(torch.ones(3))
    main, other = torch.optim.SGD([weight], lr=0.1), torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    done = []
    for step in range(1, num_steps + 1):
        (weight * 2).sum().backward()  # type: ignore[no-untyped-call]
        main.step()
        other.step()
        done.append(step)
    return done


def marks(run: Path) -> list[str]:
    """Return the steps that the trace marks, in order."""
    events: list[dict[str, Any]] = json.loads((run / "profile" / "rank_3.trace.json").read_text())["traceEvents"]
    found = [event for event in events if str(event.get("name")).startswith("frog::step") and event.get("ph") == "X"]
    return [event["name"] for event in sorted(found, key=lambda event: event["ts"])]


@pytest.mark.parametrize(("after", "steps"), [(1, 2), (3, 1)])
def test_steps_after_the_first_ones_are_recorded_and_the_program_goes_on(
    after: int, steps: int, tmp_path: Path, made: list[_Profiler]
) -> None:
    profiler_of(tmp_path, made, after, steps)
    assert train(after + steps + 2) == list(range(1, after + steps + 3))
    numbers = list(range(after + 1, after + steps + 1))
    assert marks(tmp_path) == [f"frog::step {number}" for number in numbers]
    about = json.loads((tmp_path / "profile" / "rank_3.json").read_text())
    assert (about["rank"], about["steps"], len(about["took_ms"])) == (3, [numbers[0], numbers[-1]], steps)
    assert all(0 < took < 60_000 for took in about["took_ms"])
    assert "aten::mul" in (tmp_path / "profile" / "rank_3.txt").read_text()
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == [
        "rank_3.json", "rank_3.trace.json", "rank_3.txt"
    ]  # fmt: skip


def test_program_ends_after_the_last_recorded_step(tmp_path: Path, made: list[_Profiler]) -> None:
    profiler_of(tmp_path, made, 1, 1, continues=False)
    with pytest.raises(SystemExit) as ended:
        train(9)
    assert ended.value.code == 0
    assert marks(tmp_path) == ["frog::step 2"]


def test_program_goes_on_if_nothing_can_be_written(
    tmp_path: Path, made: list[_Profiler], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    profiler_of(tmp_path / "file", made, 1, 1, continues=False)
    assert train(4) == [1, 2, 3, 4]
    said = capsys.readouterr().err
    assert said.startswith("frog profile stopped on rank 3; the program continues: NotADirectoryError: ")
    assert said.count("\n") == 1


def test_steps_of_a_forked_child_do_not_count(tmp_path: Path, made: list[_Profiler]) -> None:
    profiler_of(tmp_path, made, 1, 1)._pid += 1
    train(4)
    assert not (tmp_path / "profile").exists()


@pytest.mark.parametrize(("asked", "expected"), [("2,3,1", (3, 5, True)), ("0,1,0", (1, 1, False)), (None, None)])
def test_variable_has_the_steps_to_leave_out_and_to_record(
    asked: str | None, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    for name, value in {**values, "FROG_RUN_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FROG_OBSERVED_PID", raising=False)
    monkeypatch.delenv("FROG_PROFILE", raising=False)
    if asked is not None:
        monkeypatch.setenv("FROG_PROFILE", asked)
    started: list[Any] = []
    monkeypatch.setattr(profiling, "_start_thread", started.append)
    profiling.install()
    found = [(own.__self__._first, own.__self__._last, own.__self__._continues) for own in started]
    assert found == ([] if expected is None else [expected])
