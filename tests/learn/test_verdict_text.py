"""Verdicts as text of 80 columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_course import verdict, write_course

from frog.learn.grader.exercise import Exercise, find_exercise
from frog.learn.grader.verdict import Measured
from frog.learn.progress import Guess, Progress
from frog.learn.text import Style
from frog.learn.verdict_text import verdict_lines

NOBODY = Progress(learner="me", began="")
GUESS = Guess(exercise="lab1/02_second", id="bytes-sent", value=90, unit="B", text="90", at="")
PREDICTED = Progress(learner="me", began="", predictions=(GUESS,))


@pytest.fixture
def exercise(tmp_path: Path) -> Exercise:
    return find_exercise("1.2", write_course(tmp_path))


def shown(
    exercise: Exercise, status: str, style: Style | None = None, progress: Progress = NOBODY, **fields: Any
) -> str:
    return "\n".join(verdict_lines(verdict(exercise.id, status, **fields), exercise, progress, style or Style(80)))


def test_passed_verdict_shows_measurements(exercise: Exercise) -> None:
    measured = (Measured(what="largest difference", value="1.2e-7"), Measured(what="weights", value="equal " * 20))
    long = Measured(what="a name that is far too long for the left of two columns", value="2")
    found = {"measured": (*measured, long), "worlds": (2, 4, 2), "predicted": {"bytes-sent": 100.0}}
    text = shown(exercise, "passed", progress=PREDICTED, notes=("38 collectives a step.",), **found)
    first, *rest = text.splitlines()
    assert first.startswith("✓ lab 1.2  the second: passed")
    assert first.endswith("world 2 and 4, 1.4 s")
    assert rest[0] == "  largest difference  1.2e-7"
    assert "  bytes-sent          predicted 90 B, measured 100 B (10 % off)" in rest
    assert "  a name that is far too long for the left of two columns: 2" in rest
    assert "  38 collectives a step." in rest
    assert "seed 7" in text
    assert max(map(len, text.splitlines())) <= 80


def test_rejected_verdict_shows_observation_belief_question_place_and_hint(exercise: Exercise) -> None:
    text = shown(
        exercise,
        "rejected",
        observed="Your gradients are 2.000 times the whole batch's at world 2.",
        belief="the sum over the ranks is the mean",
        question="What turns a sum into a mean?",
        drawing="rank 0 ██ all_reduce 1 ░░░░\nrank 1 ██ step",
        where="step.py:12",
        output="\x1b[31mhello\n" * 20,
    )
    order = [
        "✗ lab 1.2  the second: not passed",
        "2.000 times",
        "at exercises/lab1/02_second/step.py:12",
        "A misconception behind this result: the sum over the ranks is the mean",
        "What turns",
        "  rank 0 ██ all_reduce 1 ░░░░",
        "frog learn hint (0 of 3 taken)",
        "frog learn check 1.2 --seed 7",
        "| hello",
        "12 more lines",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "\x1b" not in text


def test_unsolved_verdict_shows_where_to_start(exercise: Exercise) -> None:
    text = shown(exercise, "unsolved")
    assert "edit   exercises/lab1/02_second/step.py" in text
    assert "first  frog learn predict bytes-sent VALUE" in text


def test_broken_check_does_not_blame_the_learner(exercise: Exercise) -> None:
    assert "says nothing about your code" in shown(exercise, "broken", observed="OSError: no space")


def test_colour_adds_no_information_to_a_verdict(exercise: Exercise) -> None:
    for status in ("passed", "rejected", "unsolved", "broken"):
        plain, coloured = (shown(exercise, status, Style(80, colour)) for colour in (False, True))
        assert "\x1b[" in coloured
        assert "\x1b[" not in plain
        assert len({shown(exercise, other).splitlines()[0] for other in ("passed", "rejected", "unsolved")}) == 3


def test_passed_verdict_hides_measurements_before_the_prediction(exercise: Exercise) -> None:
    found = {
        "measured": (Measured(what="sent", value="100 B"),),
        "notes": ("100 B",),
        "predicted": {"bytes-sent": 100.0},
    }
    text = shown(exercise, "passed", **found)
    assert "100" not in text
    assert "  frog learn predict bytes-sent VALUE\n    How many bytes does a rank send?" in text


def test_prediction_that_the_check_did_not_measure_is_shown(exercise: Exercise) -> None:
    assert "predicted 90, not measured by this check" in shown(exercise, "passed", progress=PREDICTED)
