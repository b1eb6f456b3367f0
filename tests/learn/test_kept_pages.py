"""What a learner and an instructor read of made-up work, word by word and number by number: kept_pages.json has it.

Other tests name single rows. After a change that is meant: FROG_REWRITE_GOLDEN=1 pytest -n 0
tests/learn/test_kept_pages.py, and read the difference.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from learn.small_course import write_course
from learn.test_class_page import FIRST, SECOND, THIRD, quiz, rehash, verdict, worked, write
from observe.view.test_kept_views import Text

from frog.cli import main
from frog.learn.classroom import class_page, table
from frog.learn.folder import LearnerFolder
from frog.learn.grader.exercise import Exercise, find_exercises
from frog.learn.journal import head_of
from frog.learn.progress import (
    Guess,
    Progress,
    with_guess,
    with_hint,
    with_name,
    with_quiz,
    with_solution,
    with_verdict,
)
from frog.learn.progress_page import chart_points, progress_lines, write_page
from frog.learn.standing import Standing, exercise_at, fast_lines, list_lines, quiz_lines, row_of, summary_lines
from frog.learn.text import Style

KEPT = Path(__file__).with_name("kept_pages.json")
REWRITE = "FROG_REWRITE_GOLDEN" in os.environ
NOW = "2026-03-02 09:15:00.000"


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, Any]]:
    known: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    yield known
    if REWRITE:
        KEPT.write_text(json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False) + "\n")


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Exercise]:
    """Return three exercises; the clock stands still."""
    for place in ("progress", "progress_page", "classroom.class_page", "export"):
        monkeypatch.setattr(f"frog.learn.{place}.time_text", lambda: NOW, raising=False)
    monkeypatch.setattr("frog.learn.progress.__version__", "1")
    course = find_exercises(write_course(tmp_path / "labs"))
    for module in (class_page, table):
        monkeypatch.setattr(module, "find_exercises", lambda: course)
    return course


def compare(name: str, found: Any, kept: dict[str, Any]) -> None:
    found = json.loads(json.dumps(found))
    if REWRITE:
        kept[name] = found
    assert found == kept[name], "if the change is meant, rewrite kept_pages.json: see above"


def words_of(html: str) -> list[str]:
    """Return what a page shows, with its numbers in styles and drawings."""
    return [word for text in Text(html).words for word in [re.sub(r"\s+", " ", text).strip()] if word]


def guesses(progress: Progress) -> Progress:
    """Add predictions that are right, near, off, and not measured yet."""
    for value in (4000.0, 4100.0, 64_001.0, 1.0, -5.0):
        progress = with_guess(progress, _guess(value))
        progress = with_verdict(progress, verdict(SECOND, predicted={"bytes-sent": 4000.0}))
    return with_guess(with_guess(progress, _guess(7.0)), _guess(8.0))


def _guess(value: float) -> Guess:
    return Guess(exercise=SECOND, id="bytes-sent", unit="B", text=f"{value:g}", value=value, at=NOW)


def _works() -> dict[str, Progress]:
    fresh = Progress(learner="Bob", began=NOW)
    some = with_hint(with_verdict(with_verdict(fresh, verdict(FIRST)), verdict(SECOND, "rejected")), SECOND)
    every = fresh
    for name in (FIRST, SECOND, THIRD):
        every = with_verdict(every, verdict(name))
    return {
        "nothing": fresh,
        "some": some,
        "one lab": with_verdict(some, verdict(SECOND)),
        "quiz taken": with_quiz(with_verdict(some, verdict(SECOND)), quiz(1)),
        "much": guesses(worked()),
        "solution": with_solution(with_hint(fresh, THIRD), THIRD),
        "everything": guesses(every),
    }


@pytest.mark.parametrize("name", ["nothing", "some", "one lab", "quiz taken", "much", "solution", "everything"])
def test_no_word_of_a_learners_progress_changes_unnoticed(
    name: str, course: list[Exercise], kept: dict[str, Any], tmp_path: Path
) -> None:
    standing, style = Standing(course, _works()[name]), Style(80)
    folder = LearnerFolder(tmp_path, tmp_path / "labs")
    here = standing.next
    page = words_of(write_page(standing, tmp_path / "page.html").read_text())
    shown = {
        "summary": [line.replace(str(tmp_path), "FOLDER") for line in summary_lines(standing, folder, style)],
        "list": list_lines(standing, here, style),
        "fast": [fast_lines(standing, course[:2], style), fast_lines(standing, [], style)],
        "progress": progress_lines(standing, style),
        "points": [str(point) for point in chart_points(standing)],
        "page": page,
        "due": [quiz_lines(standing, lab) for lab in (1, 2)],
        "order": [standing.current.number, *(standing.after(exercise).number for exercise in course)],
        "rows": [row_of(standing, exercise) for exercise in course],
        "journal": head_of(standing.progress.journal, "Bob", NOW),
    }
    compare(name, shown, kept)


def test_no_word_of_a_class_changes_unnoticed(
    course: list[Exercise], kept: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [write(each, tmp_path / f"{name}.json") for name, each in _works().items()]
    paths.append(write(with_name(guesses(worked("Eve", began=NOW)), "Ada Lovelace"), tmp_path / "ada.json"))
    edited = json.loads(paths[1].read_text())
    edited["exercises"][0]["work"]["checks"] = 9
    rehash(edited)
    paths[1].write_text(json.dumps(edited))
    assert main(["class", *map(str, paths), "--csv", "class.csv"]) == 1
    page = words_of((tmp_path / "class.html").read_text())
    compare("class", {"page": page, "table": (tmp_path / "class.csv").read_text().splitlines()}, kept)


def test_exercise_of_a_place_is_the_one_whose_folder_contains_it(course: list[Exercise], tmp_path: Path) -> None:
    folder = LearnerFolder(tmp_path, tmp_path / "labs")
    found = exercise_at(tmp_path / "exercises" / SECOND / "deep" / "file.py", folder, course)
    assert found is not None
    assert found.number == "1.2"
    assert exercise_at(tmp_path / "exercises", folder, course) is None
