"""The verdict on a function with only `pass` names the empty function instead of a misconception."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_course import verdict, write_course

from frog.learn.empty import unsolved_if_empty
from frog.learn.grader.client import Grader
from frog.learn.grader.exercise import find_exercise

REJECTED = {"status": "rejected", "misconception": "one-too-few", "belief": "a belief", "observed": "seen"}


@pytest.mark.parametrize("body", ["pass", "...", '"""Says."""', "return", "return None", '"""Says."""\n    pass'])
def test_empty_function_is_unsolved(tmp_path: Path, body: str) -> None:
    exercise = find_exercise("1.1", write_course(tmp_path))
    files = {"step.py": f"x = 1\n\ndef step() -> int:\n    {body}\n".encode()}
    told = unsolved_if_empty(verdict(exercise.id, **REJECTED), exercise, files)
    assert told.status == "unsolved"
    assert told.observed == "step is still empty: it changes nothing and returns None."
    assert (told.misconception, told.belief, told.where) == (None, None, "step.py:3")


@pytest.mark.parametrize(
    "text", ["def step() -> int:\n    return 0\n", "def other():\n    pass\nstep = other\n", "def ("]
)
def test_solution_without_empty_functions_keeps_its_verdict(tmp_path: Path, text: str) -> None:
    exercise = find_exercise("1.1", write_course(tmp_path))
    rejected = verdict(exercise.id, **REJECTED)
    assert unsolved_if_empty(rejected, exercise, {"step.py": text.encode()}) == rejected
    passed = verdict(exercise.id)
    assert unsolved_if_empty(passed, exercise, {"step.py": b"def step(): pass\n"}) == passed


@pytest.mark.slow
def test_pass_in_exercise_2_1_is_reported_as_empty() -> None:
    exercise = find_exercise("2.1")
    stub = exercise.stub()["step.py"].decode()
    body = next(line for line in stub.splitlines() if "NotImplementedError" in line)
    files = {"step.py": stub.replace(body, "    pass").encode()}
    with Grader() as grader:
        told = unsolved_if_empty(grader.check(exercise, files), exercise, files)
    assert told.status == "unsolved"
    assert told.observed is not None
    assert told.observed.startswith("average_gradients is still empty")
