"""Every action of a learner changes the progress and its journal by one step; limits of what is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from small_course import verdict, write_course

from frog.learn.grader.exercise import find_exercises
from frog.learn.predictions import explained, is_near_enough
from frog.learn.progress import (
    DrillResult,
    Guess,
    Progress,
    QuizResult,
    find_folder,
    is_folder,
    replay,
    with_drill,
    with_guess,
    with_hint,
    with_name,
    with_quiz,
    with_records,
    with_solution,
    with_verdict,
)
from frog.learn.text import Style
from frog.learn.verdict_text import _head, _output, _ran, _table

AT = "2026-03-02 09:00:00.000"
NEW = Progress(learner="Ada", began=AT)
A, B = "lab1/01_a", "lab1/02_b"


def assert_replayed(progress: Progress) -> None:
    assert msgspec.structs.replace(replay(progress), journal=progress.journal) == progress


def whats(progress: Progress) -> list[str]:
    return [entry.what for entry in progress.journal]


def test_checks_are_counted_and_the_first_pass_is_kept() -> None:
    progress = NEW
    for status in ("unsolved", "rejected", "rejected", "passed", "passed"):
        progress = with_verdict(progress, verdict(A, status, misconception="sums", seed=len(progress.journal)))
    work = progress.work(A)
    assert (work.checks, work.rejected["sums"].times, progress.current) == (5, 2, A)
    assert work.passed is not None
    assert work.passed.seed == 3
    assert with_verdict(progress, verdict(A, "broken")) == progress
    assert progress.work(B).checks == 0
    assert_replayed(progress)
    other = with_verdict(NEW, verdict(A, "rejected"))
    assert list(other.work(A).rejected) == ["unknown"]


def test_at_most_three_hints_are_counted() -> None:
    progress = NEW
    for taken in (1, 2, 3, 3, 3):
        progress = with_hint(progress, A)
        assert progress.work(A).hints == taken
    assert (whats(progress), progress.current) == (["hint"] * 3, A)
    assert with_hint(progress, B).current == B


def test_solution_counts_only_before_a_pass_and_once() -> None:
    gave_up = with_solution(NEW, A)
    assert gave_up.work(A).gave_up is not None
    assert with_solution(gave_up, A) == gave_up
    passed = with_verdict(NEW, verdict(A))
    assert with_solution(passed, A) == passed


def guess(value: float, id: str = "n") -> Guess:
    return Guess(exercise=A, id=id, value=value, unit="B", text=f"{value:g}", at=AT)


def test_passing_check_measures_the_open_predictions() -> None:
    progress = with_guess(with_guess(with_guess(NEW, guess(1.0)), guess(2.0)), guess(3.0, "m"))
    measured = {"n": 5.0, "m": float("inf"), "unknown": 7.0}
    assert with_verdict(progress, verdict(A, "rejected", predicted=measured)).predictions == progress.predictions
    assert with_verdict(progress, verdict(B, predicted=measured)).predictions == progress.predictions
    after = with_verdict(progress, verdict(A, predicted=measured))
    assert [each.measured for each in after.predictions] == [5.0, 5.0, None]
    again = with_verdict(after, verdict(A, predicted={"n": 9.0}))
    assert [each.measured for each in again.predictions] == [5.0, 5.0, None]  # what was measured stays
    last = again.last_guess(A, "n")
    assert last is not None
    assert (last.value, again.last_guess(A, "x")) == (2.0, None)
    assert_replayed(again)


def test_quizzes_drills_names_and_records_are_added() -> None:
    quiz = QuizResult(lab=None, at=AT, seed=3, asked=4, right=2, beliefs=("sums",))
    drill = DrillResult(at=AT, seed=1, fault="kill rank=0 step=1", right=3)
    progress = with_drill(with_quiz(NEW, quiz), drill)
    assert (progress.quizzes, progress.drills) == ((quiz,), (drill,))
    progress = with_name(with_name(progress, "Ada"), "Grace")
    assert (progress.name, progress.learner) == ("Grace", "Ada")
    hashes = {"runs/a": "0" * 64, "runs/b": "1" * 64}
    progress = with_records(with_records(progress, hashes), {**hashes, "runs/b": "2" * 64})
    assert progress.records == {"runs/a": "0" * 64, "runs/b": "2" * 64}
    assert whats(progress) == ["quiz", "drill", "name", "record", "record", "record"]
    assert_replayed(progress)


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (("progress.json", "exercises/"), True),
        (("progress.json",), False),
        (("exercises/",), False),
        (("progress.json", "exercises"), False),
        (("progress.json/", "exercises/"), False),
    ],
)
def test_course_folder_has_a_progress_file_and_exercises(made: tuple[str, ...], found: bool, tmp_path: Path) -> None:
    course, inner = tmp_path / "a", tmp_path / "a" / "b" / "c"
    inner.mkdir(parents=True)
    for name in made:
        (course / name).mkdir() if name.endswith("/") else (course / name).touch()
    expected = course if found else None
    assert is_folder(course) == found
    assert [find_folder(start) for start in (course, inner, tmp_path)] == [expected, expected, None]


def test_folder_that_is_older_than_the_journal_says_so() -> None:
    old = Progress(learner="Ada", began=AT, predictions=(guess(1.0),))
    assert whats(with_hint(old, A)) == ["before", "hint"]
    assert whats(with_hint(with_hint(old, A), A)) == ["before", "hint", "hint"]
    assert whats(with_hint(NEW, A)) == ["hint"]


# ---- texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "tolerance", "near"), [(100.0, 0.0, True), (95.0, 0.05, False), (96.0, 0.05, True), (0.0, 1.0, False)]
)
def test_guess_within_the_tolerance_of_a_number_is_near_enough(number: float, tolerance: float, near: bool) -> None:
    assert is_near_enough(100.0, number, tolerance) == near


BEHIND = ". A possible misconception behind it: twice"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (100.0, "predicted 100 B, measured 100 B (exactly)"),
        (104.0, "predicted 104 B, measured 100 B (4 % off, close enough)"),
        (
            200.0,
            "predicted 200 B, measured 100 B (2 times the measured value)" + BEHIND,
        ),
        (300.0, "predicted 300 B, measured 100 B (3 times the measured value)"),
    ],
)
def test_wrong_guess_gets_its_misconception(value: float, words: str) -> None:
    class Belief:
        belief, tolerance = "twice", 0.01

        @staticmethod
        def number(measured: float) -> float:
            return 2 * measured

    asked: Any = type("Asked", (), {"tolerance": 0.05, "beliefs": (Belief(),)})
    assert explained(guess(value), 100.0, asked) == words


@pytest.mark.parametrize(
    ("worlds", "text"),
    [
        ((), "1.4 s"),
        ((2,), "world 2, 1.4 s"),
        ((4, 2, 4), "world 2 and 4, 1.4 s"),
        ((1, 2, 4), "world 1, 2 and 4, 1.4 s"),
    ],
)
def test_sizes_of_the_worlds_are_listed_once(worlds: tuple[int, ...], text: str) -> None:
    assert _ran(verdict(A, worlds=worlds)) == text


@pytest.mark.parametrize(
    ("number", "more"), [(0, []), (8, []), (9, ["  | ... 1 more lines"]), (12, ["  | ... 4 more lines"])]
)
def test_eight_lines_of_the_output_are_shown(number: int, more: list[str]) -> None:
    shown = list(_output(verdict(A, output="".join(f"line {each}\t{'x' * 99}\n" for each in range(number))), Style(40)))
    if not number:
        assert shown == []
        return
    assert shown[:2] == ["", "  Your code printed:"]
    assert shown[2 : 2 + min(number, 8)] == [f"  | line {each}  {'x' * 28}" for each in range(min(number, 8))]
    assert shown[2 + min(number, 8) :] == more


def test_table_has_two_columns_and_a_line_for_a_long_name() -> None:
    rows = [("a", "1"), ("long name", "2"), ("x" * 20, "3"), ("y" * 21, "4")]
    assert list(_table(rows, Style(40))) == [
        f"  {'a':20}  1",
        f"  {'long name':20}  2",
        f"  {'x' * 20}  3",
        f"  {'y' * 21}: 4",
    ]


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (60, "✓ lab 1.2  the second: passed           world 2 and 4, 1.4 s"),
        (29, "✓ lab 1.2  the second: passed"),
        (28, "✓ lab 1.2  the se...: passed"),
    ],
)
def test_head_of_a_verdict_fits_the_columns(tmp_path: Path, columns: int, line: str) -> None:
    exercise = find_exercises(write_course(tmp_path))[1]
    head = _head(verdict(exercise.id, worlds=(2, 4)), exercise, Style(columns))
    assert head == line
    assert len(head) == columns
