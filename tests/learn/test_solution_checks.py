"""The grader's verdict on every solution of every exercise."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import pytest

from frog.cli import main
from frog.core.errors import UsageError
from frog.learn.grader.client import Grader
from frog.learn.grader.exercise import LABS, Exercise, find_exercises
from frog.learn.grader.verdict import Verdict
from frog.learn.solution_checks import SOLUTIONS_TABLE, SolutionCase, misworded, section, solution_cases, table, updated

EXERCISES = find_exercises()


@pytest.mark.slow
@pytest.mark.exercise_cases
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_each_solution_gets_its_verdict(exercise: Exercise, grader: Grader) -> None:
    checks = [(case, grader.check(case.exercise, case.files, case.seed)) for case in solution_cases(exercise)]
    assert [problem for case, verdict in checks if (problem := case.problem(verdict))] == []
    left = psutil.Process(grader._process.pid).children()
    assert len(left) < 10, "the last check may still be ending, but a leak would leave thousands in a morning"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("the folder held x (1 bytes)", True),
        ("the folder held x (1 byte), y (11 bytes), 1.1 bytes", False),
        ("the loss: found 3.5265, expected 3.5265.", True),
        ("the loss of step 1 was 3.52653, but 3.52653 in a run that was never killed", True),
        ("the loss of step 1 was 3.52653, but 3.52654 in a run that was never killed", False),
    ],
)
def test_misworded_sentence_is_detected(text: str, wrong: bool) -> None:
    assert misworded(text) is wrong


def test_solution_case_reports_an_unexpected_verdict() -> None:
    """Show that the test of solutions can fail."""
    case = SolutionCase(EXERCISES[0], "wrong", "a", {}, "a")
    for status, reason, is_right in (("rejected", "a", True), ("rejected", "b", False), ("passed", None, False)):
        verdict = Verdict(exercise="", status=status, misconception=reason, seed=1, seconds=0)  # type: ignore[arg-type]
        assert (case.problem(verdict) is None) is is_right


def test_solution_case_reports_a_sentence_that_is_worded_badly() -> None:
    case = SolutionCase(EXERCISES[0], "wrong", "a", {}, "a")
    verdict = Verdict(exercise="", status="rejected", misconception="a", seed=1, seconds=0, observed="It held 1 bytes.")
    assert case.problem(verdict) == "lab0/01_one_formula wrong/a: is worded badly: It held 1 bytes."


@pytest.mark.parametrize(
    ("predicted", "problem"),
    [
        ({"after-three-steps": 1.536}, None),
        ({}, "did not measure after-three-steps"),
        (
            {"after-three-steps": 2.4},
            "after-three-steps is 2.4, which is too close to this belief: three steps are one",
        ),
    ],
)
def test_reference_measurement_is_not_close_to_any_belief(predicted: dict[str, float], problem: str | None) -> None:
    case = SolutionCase(EXERCISES[0], "reference", "", {})
    found = case.problem(Verdict(exercise="", status="passed", seed=1, seconds=0, predicted=predicted))
    assert found is None if problem is None else problem in (found or "")


def test_solutions_inherit_given_files(tmp_path: Path) -> None:
    (tmp_path / "course/lab1").mkdir(parents=True)
    folder = shutil.copytree(LABS / "lab3/06_be_the_cluster", tmp_path / "course/lab1/01_first")
    (folder / "worker.py").write_text("print('another')")
    exercise = Exercise(folder)
    solutions = [solution.files() for solution in (*exercise.solutions("right"), *exercise.solutions("wrong"))]
    for files in (exercise.reference(), *solutions):
        assert (list(files), files["worker.py"]) == (["launch.sh", "worker.py"], b"print('another')")
    assert exercise.stub()["worker.py"] == b"print('another')"


def test_file_to_edit_cannot_also_be_given(tmp_path: Path) -> None:
    folder = shutil.copytree(LABS / "lab3/06_be_the_cluster", tmp_path / "lab1/01_first")
    manifest = folder / "manifest.toml"
    manifest.write_text(manifest.read_text().replace('given = ["worker.py"]', 'given = ["launch.sh"]'))
    with pytest.raises(UsageError, match=r"manifest.toml: .*launch.sh both in files and in given"):
        _ = Exercise(folder).manifest


def test_solutions_table_lists_every_exercise_and_wrong_solution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["learn", "dev", "table"]) == 0
    assert capsys.readouterr().out == f"{SOLUTIONS_TABLE}\n"
    text = (tmp_path / SOLUTIONS_TABLE).read_text()
    assert text == table(EXERCISES)
    for exercise in EXERCISES:
        part = text.partition(f"`{exercise.id}`")[2].partition("\n## ")[0]
        assert [one.name for one in exercise.solutions("wrong") if f"| {one.name} |" not in part] == []


def test_solutions_table_update_rewrites_only_the_given_sections() -> None:
    text = table(EXERCISES)
    other = text.replace(section(EXERCISES[3]), f"## {EXERCISES[3].number} an old title\n\nan old row\n").replace(
        "| uphill |", "| unproved |"
    )
    once = updated(other, EXERCISES, [EXERCISES[3]])
    assert once != text
    assert once.replace("unproved", "uphill") == text
    without = text.replace(section(EXERCISES[5]) + "\n", "")
    assert updated(without, EXERCISES, [EXERCISES[5]]) == text
