"""Results of a check's job files, without a cluster: notes, logs, refusals, and time limits that move."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from frog.learn.grader.job_clusters import NOTES
from frog.learn.grader.jobs import Job, _move_limit, _result_of

NOTED = [[10.0, 0, "started", {"rank": 0}], [10.5, 1, "started", {"rank": 1}], [11.0, 0, "saved", 7]]


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(NOTES).mkdir()
    (Path(NOTES) / "5.jsonl").write_text("".join(f"{json.dumps(note)}\n" for note in NOTED))


@pytest.mark.parametrize(
    ("state", "shown"), [("COMPLETED", "COMPLETED"), ("TIMEOUT", "TIMEOUT"), ("PENDING", "RUNNING")]
)
def test_result_has_the_end_of_the_log_and_the_notes(state: str, shown: str) -> None:
    Path("log").write_text("a" * 500 + "b" * 2000)
    known = {"state": state, "exit": "1:9", "restarts": 2, "limit_min": 3}
    jobs = {5: {**known, "stdout": "log"}, 6: {**known, "stdout": "no such file"}}
    result = Job(**_result_of("x.sbatch", "the emulator", 5, jobs))
    assert result == Job("x.sbatch", "the emulator", shown, "1:9", 2, 3, "b" * 2000, NOTED)
    assert result.title == "x.sbatch, on the emulator"
    assert result.noted("started") == [{"rank": 0}, {"rank": 1}]
    assert (result.noted("saved"), result.noted("ended")) == ([7], [])
    without = Job(**_result_of("y.sbatch", "Slurm 23", 6, jobs))
    assert without == Job("y.sbatch", "Slurm 23", shown, "1:9", 2, 3, "", [])


def test_refused_file_has_the_words_of_sbatch() -> None:
    result = Job(**_result_of("x.sbatch", "the emulator", "sbatch: error: no", {}))
    assert result == Job("x.sbatch", "the emulator", "REFUSED", "", 0, None, "sbatch: error: no", [])


class Emulator:
    def __init__(self) -> None:
        self.updates: list[tuple[Any, ...]] = []

    def update(self, *words: Any) -> None:
        self.updates.append(words)


@pytest.mark.parametrize(
    ("left", "count", "until", "update"),
    [
        (["when", "until"], 2, "saved", (5, "endtime", "now+8seconds")),
        (["when", "until"], 3, "saved", None),
        (["until"], 3, "saved", (5, "timelimit", "60")),
        (["until"], 1, "ended", None),
    ],
)
def test_limit_moves_once_enough_ranks_have_noted_it(
    left: list[str], count: int, until: str, update: tuple[Any, ...] | None
) -> None:
    emulator, before = Emulator(), list(left)
    near = {"when": "started", "count": count, "end": "now+8seconds", "until": until}
    _move_limit(emulator, 5, left, near)  # type: ignore[arg-type]
    assert emulator.updates == ([update] if update else [])
    assert left == (before[1:] if update else before)
