"""The grader graded: what every exercise ships does what it is there for."""

from __future__ import annotations

import ast
from pathlib import Path

import psutil
import pytest

from frog.course.zoo import ZOO, Specimen, specimens, table
from frog.grader.client import Grader
from frog.grader.exercise import LABS, Exercise, find_exercises
from frog.grader.general import general
from frog.grader.verdict import Verdict

EXERCISES = find_exercises()
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_each_solution_gets_its_verdict(exercise: Exercise, grader: Grader) -> None:
    found = [(one, grader.check(one.exercise, one.files)) for one in specimens(exercise)]
    assert [problem for one, verdict in found if (problem := one.problem(verdict))] == []
    left = psutil.Process(grader._process.pid).children()
    assert len(left) < 10, "those of the last check may still end; a morning of frog learn watch would leave thousands"


def test_a_wrong_verdict_is_met() -> None:
    """The proof itself can fail."""
    one = Specimen(EXERCISES[0], "wrong", "a", {}, "a")
    for status, reason, is_right in (("rejected", "a", True), ("rejected", "b", False), ("passed", None, False)):
        verdict = Verdict(exercise="", status=status, misconception=reason, seed=1, seconds=0)  # type: ignore[arg-type]
        assert (one.problem(verdict) is None) is is_right


@pytest.mark.parametrize(
    ("predicted", "problem"),
    [
        ({"after-three-steps": 1.536}, None),
        ({}, "has not measured after-three-steps"),
        ({"after-three-steps": 2.4}, "after-three-steps is 2.4, which this belief comes near: one step is made"),
    ],
)
def test_a_reference_measures_what_no_belief_comes_near(predicted: dict[str, float], problem: str | None) -> None:
    one = Specimen(EXERCISES[0], "reference", "", {})
    found = one.problem(Verdict(exercise="", status="passed", seed=1, seconds=0, predicted=predicted))
    assert found is None if problem is None else problem in (found or "")


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_an_exercise_is_whole(exercise: Exercise) -> None:
    manifest = exercise.manifest
    wrong = exercise.solutions("wrong")
    assert len(wrong) >= 4
    known = {known.id for known in manifest.misconceptions}
    assert {one.misconception for one in wrong} <= known | general().keys()
    assert known <= {one.misconception for one in wrong}, "a misconception that no wrong solution shows"
    assert len({one.files()[manifest.files[0]] for one in wrong}) == len(wrong) or len(manifest.files) > 1
    assert exercise.stub() != exercise.reference().files()
    assert "You will be able to" in exercise.readme
    first = manifest.files[0]
    if first.endswith(".py"):
        names = {getattr(node, "name", None) for node in ast.parse(exercise.stub()[first]).body}
        assert set(manifest.functions) <= names


def test_numbers_and_names_tell_exercises_apart() -> None:
    assert len({exercise.number for exercise in EXERCISES}) == len(EXERCISES)
    folders = [path for path in LABS.glob("lab*/*/") if path.name[0] not in "._"]
    assert sorted(folders) == [exercise.folder for exercise in EXERCISES]


def test_the_table_is_what_is_there() -> None:
    assert (ROOT / ZOO).read_text() == table(EXERCISES), "try: frog learn dev check --write"
