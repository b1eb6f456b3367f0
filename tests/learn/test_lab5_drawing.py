"""Exercise 5.5: its README shows what draw.py draws for the reference's schedules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness import LIMIT_S

from frog.learn.grader.exercise import LABS

FOLDER = LABS / "lab5/05_schedule_as_data"


def test_readme_shows_the_drawing_of_the_reference(tmp_path: Path) -> None:
    for path in (FOLDER / "draw.py", FOLDER / "reference/schedule.py"):
        (tmp_path / path.name).write_text(path.read_text())
    words = [sys.executable, "draw.py", "3", "6"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    readme = (FOLDER / "README.md").read_text()
    assert "$ python draw.py 3 6\n" in readme
    drawn = [line.rstrip() for line in done.stdout.splitlines() if line.startswith("  ")]
    assert len(drawn) == 9
    assert [line for line in drawn[:6] if line not in readme] == []
