"""The rules that `frog learn dev check` and this test apply to every exercise, and to every lab's page."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from frog.cli import main
from frog.learn.edits import KINDS
from frog.learn.grader.exercise import LABS, Exercise, docs_folder, find_exercises
from frog.learn.grader.verdict import Verdict
from frog.learn.rules import broken_rules, ends_in_a_rejection, exercise_problems, lab_problems, session_problems
from frog.learn.solution_checks import SolutionCase

SOURCE, ID = "lab2/06_metrics", "lab2/01_copied"


def test_course_follows_every_rule() -> None:
    assert broken_rules(LABS, find_exercises()) == []


@pytest.fixture
def copied(tmp_path: Path) -> Exercise:
    """A copy of an exercise in labs of its own, whose pages have a row for it."""
    folder = shutil.copytree(LABS / SOURCE, tmp_path / "labs" / ID)
    readme = (folder / "README.md").read_text()
    (folder / "README.md").write_text(readme.replace("2.6", "2.1"))
    shutil.copytree(docs_folder() / "labs", tmp_path / "docs/labs")
    minutes = Exercise(folder).manifest.minutes
    (tmp_path / "docs/labs/lab2.md").write_text(
        f"about {minutes / 60:.1f} hours more\n\n| `frog learn check {ID}` | to measure | {minutes} |\n"
    )
    (tmp_path / "docs/teach").mkdir()
    (tmp_path / "docs/teach/programme.md").write_text(
        "| 7, if you like | [lab 2](../labs/lab2.md) | its exercises, 0.2 hours | a |\n"
    )
    (tmp_path / "docs/teach/session-b.md").write_text(
        "\n## The lab, 30 minutes\n\n| 0 | 10 | `frog learn watch 2.1` |\n| 10 | 1 | everybody stops |\n"
    )
    return Exercise(folder)


def replace(name: str, old: str, new: str) -> Callable[[Path], object]:
    """Return a change of a file of the exercise."""

    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text, f"{name} does not contain {old}"
        (folder / name).write_text(text.replace(old, new, 1))

    return change


def append(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text((folder / name).read_text() + text)


def write(name: str, text: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    return change


def without_solutions(folder: Path) -> None:
    (folder / "solutions.toml").unlink(missing_ok=True)
    for kind in KINDS:
        shutil.rmtree(folder / kind, ignore_errors=True)


PAGE = "../../../docs/labs/lab2.md"
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "manifest": (replace("manifest.toml", "title = ", "titel = "), "missing required field title"),
    "missing readme": (lambda folder: (folder / "README.md").unlink(), "has no file README.md"),
    "missing check": (lambda folder: (folder / "check.py").unlink(), "has no file check.py"),
    "reference": (write("reference/other.py", ""), "reference/ contains metrics.py, other.py, expected metrics.py"),
    "stub": (
        lambda folder: shutil.copy(folder / "reference/metrics.py", folder / "metrics.py"),
        "the stub is the same as the reference",
    ),
    "function": (
        replace("manifest.toml", "functions = [", 'functions = ["gone", '),
        "manifest.toml lists the function gone, which metrics.py does not define",
    ),
    "broken stub": (append("metrics.py", "\ndef (:\n"), "invalid syntax (metrics.py, line"),
    "few solutions": (without_solutions, "has 0 wrong solutions, expected at least 4"),
    "unknown misconception": (
        write("wrong/my-own-belief.py", "pass"),
        "manifest.toml has no misconception my-own-belief, which wrong/my-own-belief is named after",
    ),
    "unused misconception": (
        append("manifest.toml", '\n[[misconceptions]]\nid = "never-shown"\nbelief = "a"\nquestion = "b"\n'),
        "no wrong solution shows the misconception never-shown of manifest.toml",
    ),
    "same as the reference": (
        lambda folder: shutil.copy(folder / "reference/metrics.py", folder / "wrong/raised.9.py"),
        "wrong/raised.9 is the same as the reference",
    ),
    "same twice": (
        lambda folder: [write(f"wrong/raised.{n}.py", "pass")(folder) for n in (8, 9)],
        "wrong/raised.9 is the same as wrong/raised.8",
    ),
    "stale edit": (
        append("solutions.toml", "\n[[wrong.raised]]\nreplace = 'not there'\nby = ''\n"),
        "wrong/raised: `not there` occurs 0 times in reference/metrics.py, expected once",
    ),
    "invalid table": (append("solutions.toml", "\n[[rong.a]]\n"), "found the table rong"),
    "readme words": (
        replace("README.md", "You will be able to", "You can"),
        "README.md does not contain the words: You will be able to",
    ),
    "readme width": (append("README.md", f"\n```\n{'x ' * 20}{'y' * 90}\n```\n"), "README.md: a line has"),
    "readme markdown": (append("README.md", "\n# Another title\n"), "README.md: a terminal shows the word"),
    "readme command": (append("README.md", "\n```console\n$ ls\n```\n"), "README.md: no test runs `ls`"),
    "readme number": (
        append("README.md", "\n```console\n$ frog learn check 2.7\n```\n"),
        "README.md: found `frog learn check 2.7`, expected `frog learn check 2.1`",
    ),
    "page to read": (
        replace("manifest.toml", 'read = "docs/labs/lab2.md', 'read = "docs/none.md'),
        "manifest.toml: read = docs/none.md#theory: learners do not get this page",
    ),
    "uses": (
        replace("manifest.toml", "minutes = 10", 'minutes = 10\nuses = ["lab2/09_later"]'),
        "manifest.toml uses lab2/09_later, which is not an earlier exercise",
    ),
    "judge": (
        append("check.py", "\n\ndef explain_x() -> NoReturn:\n    pass\n"),
        "check.py: explain_x is annotated NoReturn, but may return without a rejection",
    ),
    "no row": (
        replace(PAGE, "frog learn check", "frog learn"),
        f"lab2.md has no rows for it, expected one: | `frog learn check {ID}` |",
    ),
    "two rows": (append(PAGE, f"| `frog learn check {ID}` | again | 10 |\n"), "docs/labs/lab2.md has 2 rows for it"),
    "row's minutes": (
        replace(PAGE, "| 10 |", "| 2 x 10 |"),
        "lab2.md: its row says 20 minutes, but manifest.toml 10",
    ),
    "row's form": (replace(PAGE, "| 10 |", "| ten |"), "docs/labs/lab2.md: its row does not end with its minutes"),
    "no page": (lambda folder: (folder / PAGE).unlink(), "docs/labs/lab2.md does not exist"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rule_of_an_exercise_is_reported(copied: Exercise, name: str) -> None:
    assert exercise_problems(copied) == []
    change, problem = BROKEN[name]
    (copied.folder / "wrong").mkdir(exist_ok=True)
    change(copied.folder)
    found = exercise_problems(Exercise(copied.folder))
    assert [said for said in found if problem in said], found
    assert all(said.startswith(f"{ID}: ") for said in found)


def test_no_stub_contains_the_solution_of_an_earlier_exercise() -> None:
    """Compare functions of several statements that a stub leaves to the learner with those of all later stubs."""
    solved: dict[str, str] = {}
    found = []
    for exercise in find_exercises():
        stubs = [data.decode() for name, data in exercise.stub().items() if name.endswith(".py")]
        bodies = {body for text in stubs for body in bodies_in(text).values()}
        found += [f"{exercise.id} contains {where}" for body, where in solved.items() if body in bodies]
        for name in exercise.manifest.files:
            if name.endswith(".py"):
                own = bodies_in(exercise.stub()[name].decode())
                for place, body in bodies_in(exercise.reference()[name].decode()).items():
                    if own.get(place) != body and body.count("\n") >= 2:
                        solved.setdefault(body, f"{place} of {exercise.id}")
    assert len(solved) > 60
    assert found == []


def bodies_in(source: str) -> dict[str, str]:
    """Return the statements of each function and method, without its docstring, by its qualified name."""
    found = {}
    for owner in ast.walk(ast.parse(source)):
        for node in getattr(owner, "body", None) or () if isinstance(owner, ast.Module | ast.ClassDef) else ():
            if isinstance(node, ast.FunctionDef):
                has_docstring = ast.get_docstring(node) is not None
                name = f"{getattr(owner, 'name', '')}.{node.name}".lstrip(".")
                found[name] = "\n".join(map(ast.unparse, node.body[has_docstring:]))
    return found


def test_later_lab_needs_more_solutions(copied: Exercise, tmp_path: Path) -> None:
    without_solutions(copied.folder)
    for lab, expected in (("lab3", {"4 wrong"}), ("lab4", {"12 wrong", "2 right"})):
        (tmp_path / "labs" / lab).mkdir()
        exercise = Exercise(shutil.copytree(copied.folder, tmp_path / "labs" / lab / "01_copied"))
        said = "\n".join(exercise_problems(exercise))
        found = re.findall(r"has 0 (wrong|right) solutions, expected at least (\d+)", said)
        assert {f"{least} {kind}" for kind, least in found} == expected


def test_labs_without_pages_need_no_rows(copied: Exercise, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "docs")
    assert exercise_problems(copied) == []
    assert lab_problems(tmp_path / "labs", 2) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            replace(PAGE, "about 0.2", "about 1.5"),
            "lab2.md says about 1.5 hours more, but its exercises take 0.2",
        ),
        (replace(PAGE, "hours more", "hours"), "docs/labs/lab2.md does not say how long its exercises take: about 0.2"),
        (
            append(PAGE, "| `frog learn check lab2/99_gone` | a | 5 |\n"),
            "a row for lab2/99_gone, which does not exist",
        ),
        (write("../02_empty/a", ""), "02_empty: has no manifest.toml"),
        (lambda folder: shutil.copytree(folder, folder.parent / "01_again"), "another exercise has the number 2.1 too"),
        (replace("../../../docs/teach/programme.md", "0.2", "3"), "docs/teach/programme.md says 3 hours for lab 2"),
    ],
)
def test_broken_rule_of_a_lab_is_reported(copied: Exercise, change: Callable[[Path], object], problem: str) -> None:
    labs = copied.folder.parents[1]
    assert lab_problems(labs, 2) == []
    change(copied.folder)
    assert [said for said in lab_problems(labs, 2) if problem in said]


def test_session_that_allows_too_few_minutes_is_reported(copied: Exercise) -> None:
    labs = copied.folder.parents[1]
    assert list(session_problems(labs)) == []
    replace("../../../docs/teach/session-b.md", "| 10 |", "| 9 |")(copied.folder)
    assert list(session_problems(labs)) == ["docs/teach/session-b.md allows 9 minutes for 2.1, which take 10"]


def test_block_with_a_path_to_its_end_is_detected() -> None:
    for source, ends in (
        ("grade.reject('a', 'b')", True),
        ("grade.compare(1, 2, 'a')", False),
        ("if x:\n    grade.reject('a', 'b')", False),
        ("if x:\n    grade.reject('a', 'b')\nelse:\n    explain(grade)", True),
    ):
        assert ends_in_a_rejection(ast.parse(source).body, {"explain"}) is ends


def test_check_command_applies_the_rules_and_ruff(
    copied: Exercise, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ruff")
    project = copied.folder.parents[2]

    def check_cases(cases: list[SolutionCase], workers: int) -> list[tuple[SolutionCase, Verdict]]:
        return [(case, Verdict(exercise=case.exercise.id, status="unsolved", seed=1, seconds=0)) for case in cases]

    def check() -> tuple[int, str]:
        code = main(["learn", "dev", "check", "2.1", "--labs", str(project / "labs"), "--only", "stub"])
        return code, capsys.readouterr().out

    monkeypatch.setattr("frog.learn.solution_checks.check_cases", check_cases)
    (project / "pyproject.toml").write_text("[tool.ruff]\nline-length = 120\nlint.select = ['E4']\n")
    passed = f"ok    0.0 s  {ID} stub\n1 of 1 as expected, in 0 s\n"
    assert check() == (0, passed)
    append("README.md", "\n```console\n$ ls\n```\n")(copied.folder)
    append("check.py", "\n\ny = [1,  2]\nimport os\n")(copied.folder)
    code, said = check()
    assert (code, said.endswith(passed)) == (1, True)
    assert f"NOT  {ID}: README.md: no test runs `ls`" in said
    assert "check.py:" in said
    assert "E402" in said
    assert "check.py: not formatted; run ruff format" in said
