"""A course of three tiny exercises for tests, and a grader that returns the verdict that a file asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from frog.learn.grader.exercise import Exercise
from frog.learn.grader.verdict import Verdict

MANIFEST = """\
title = "{title}"
able = "do {title}"
minutes = 5
files = ["step.py"]
functions = ["step"]
hints = ["a question", "a place", "nearly there"]
"""
PREDICT = """
[[predict]]
id = "bytes-sent"
question = "How many bytes does a rank send?"
unit = "B"
tolerance = 0.05
"""
MISCONCEPTION = """
[[misconceptions]]
id = "sum-is-average"
belief = "the sum over the ranks is the mean"
question = "What turns a sum into a mean?"
"""
STUB = 'def step() -> int:\n    raise NotImplementedError("fill in step")\n'
SOLUTION = "def step() -> int:\n    return 1\n"


def write_course(labs: Path) -> Path:
    """Write exercises 1.1, 1.2 (with a prediction) and 2.1."""
    for name, title, more in (
        ("lab1/01_first", "the first", ""),
        ("lab1/02_second", "the second", PREDICT + MISCONCEPTION),
        ("lab2/01_third", "the third", ""),
    ):
        folder = labs / name
        (folder / "reference").mkdir(parents=True)
        (folder / "manifest.toml").write_text(MANIFEST.format(title=title) + more)
        (folder / "README.md").write_text(f"# {title}\n")
        (folder / "step.py").write_text(STUB)
        (folder / "reference" / "step.py").write_text(SOLUTION)
    (labs / "docs" / "labs").mkdir(parents=True)
    (labs / "docs" / "labs" / "lab1.md").write_text("# Lab 1\n")
    return labs


def verdict(exercise: str, status: str = "passed", **fields: Any) -> Verdict:
    return Verdict(**{"exercise": exercise, "status": status, "seed": 7, "seconds": 1.4, **fields})


class FakeGrader:
    """Passes files with `return 1`; a comment `# {...}` in the file sets the verdict's other fields."""

    def __init__(self) -> None:
        self.closed = False

    def __enter__(self) -> FakeGrader:
        return self

    def __exit__(self, *about: object) -> None:
        self.close()

    def close(self) -> None:
        self.closed = True

    def check(self, exercise: Exercise, files: dict[str, bytes], seed: int | None = None) -> Verdict:
        text = files["step.py"].decode()
        fields = json.loads("{" + text.partition("# {")[2]) if "# {" in text else {}
        status = "passed" if "return 1" in text else "unsolved" if "NotImplementedError" in text else "rejected"
        return verdict(exercise.id, **{"status": status, "seed": seed or 7, **fields})
