"""`frog learn dev new`, `show` and `add`: the commands that authors of exercises write solutions with."""

from __future__ import annotations

import random
import shutil
import tomllib
from pathlib import Path

import pytest
from small_course import SOLUTION, write_course

from frog.cli import main
from frog.learn.edits import KINDS, read_edits
from frog.learn.grader.exercise import LABS, Exercise, find_exercises

ID = "lab1/02_second"
REFERENCE = SOLUTION + "\n\ndef other() -> int:\n" + "    pass  # much in common\n" * 20 + "    return 10\n"


@pytest.fixture
def exercise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Exercise:
    """An exercise of a small course, whose folder is the current directory."""
    folder = write_course(tmp_path / "labs") / ID
    (folder / "reference/step.py").write_text(REFERENCE)
    monkeypatch.chdir(tmp_path)
    return Exercise(folder)


def dev(action: str, *words: str | Path) -> int:
    return main(["learn", "dev", action, *map(str, words), "--labs", "labs"])


def add(text: str, title: str = "wrong/sum-is-average") -> int:
    Path("changed.py").write_text(text)
    return dev("add", ID, title, "changed.py")


def test_added_solution_is_shown_as_it_was(exercise: Exercise, capfd: pytest.CaptureFixture[str]) -> None:
    changed = REFERENCE.replace("return 1\n", "return 2\n")
    assert add(changed) == 0
    entry = "[[wrong.sum-is-average]]\nreplace = '''\n    return 1\n'''\nby = '''\n    return 2\n'''\n"
    table = exercise.folder / "solutions.toml"
    assert table.read_text() == entry
    next_step = f"next: frog learn dev check {ID} --only wrong/sum-is-average\n"
    assert capfd.readouterr().out == f"{table}:\n{entry}{next_step}"
    assert dev("show", ID, "wrong/sum-is-average") == 0
    assert capfd.readouterr().out == changed
    assert dev("show", "1.2", "reference") == 0
    assert capfd.readouterr().out == REFERENCE


def test_solution_added_again_replaces_the_old_one_in_either_form(exercise: Exercise) -> None:
    """Edits become other edits, then a file, then edits again."""
    table, file = exercise.folder / "solutions.toml", exercise.folder / "wrong/sum-is-average.py"
    assert add(REFERENCE.replace("return 10", "return 11"), "right/eleven") == 0
    for text in (REFERENCE.replace("return 1\n", "return 2\n"), REFERENCE.replace("return 10", "return 3")):
        assert add(text) == 0
        assert ([*read_edits(table)["wrong"]], file.exists()) == (["sum-is-average"], False)
        assert exercise.solutions("wrong")[0].files() == {"step.py": text.encode()}
    assert add("def step(): ...\n") == 0
    assert (read_edits(table)["wrong"], file.read_text()) == ({}, "def step(): ...\n")
    assert add(REFERENCE.replace("return 10", "return 3")) == 0
    assert ([*read_edits(table)["wrong"]], file.exists()) == (["sum-is-average"], False)


def test_table_without_solutions_is_removed(exercise: Exercise) -> None:
    assert add(REFERENCE.replace("return 10", "return 3")) == 0
    assert add("def step(): ...\n") == 0
    assert not (exercise.folder / "solutions.toml").exists()


def test_large_difference_stays_a_file(exercise: Exercise, capsys: pytest.CaptureFixture[str]) -> None:
    assert add("def step(): ...\n") == 0
    path = exercise.folder / "wrong/sum-is-average.py"
    assert path.read_text() == "def step(): ...\n"
    said = capsys.readouterr().out
    assert f"{path}: a file, since it has too little in common with the reference for edits\n" in said


@pytest.mark.parametrize(
    ("text", "title", "error"),
    [
        (REFERENCE, "wrong/a", "is the same as the reference, so there is nothing to add"),
        (REFERENCE.replace("10", "11"), "wrong/b", "is the same as right/eleven"),
        ("x", "wrong/A", "wrong/A: expected a name like wrong/sum-is-average.2 or right/all_gather"),
        ("x", "wrong/../../x", "expected a name like"),
        ("x", "left/a", "expected a name like"),
    ],
)
def test_solution_that_cannot_be_added_is_refused(
    exercise: Exercise, capsys: pytest.CaptureFixture[str], text: str, title: str, error: str
) -> None:
    assert add(REFERENCE.replace("10", "11"), "right/eleven") == 0
    before = (exercise.folder / "solutions.toml").read_bytes()
    assert add(text, title) == 2
    assert error in capsys.readouterr().err
    assert (exercise.folder / "solutions.toml").read_bytes() == before


def test_file_and_solution_that_do_not_exist_are_reported(
    exercise: Exercise, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(REFERENCE.replace("10", "11"), "right/eleven") == 0
    assert dev("add", ID, "wrong/a", "nothing.py") == 2
    assert "nothing.py: No such file or directory" in capsys.readouterr().err
    assert dev("show", ID, "right/elevn") == 2
    assert f"{ID}: has no solution right/elevn\n  try: did you mean right/eleven?" in capsys.readouterr().err


def test_unknown_misconception_is_the_next_step(exercise: Exercise, capsys: pytest.CaptureFixture[str]) -> None:
    for title, is_known in (("wrong/raised", True), ("wrong/my-belief.2", False)):
        assert add(REFERENCE.replace("10", str(len(title))), title) == 0
        said = f"next: add a [[misconceptions]] with the id my-belief to {exercise.folder / 'manifest.toml'}\n"
        assert (said not in capsys.readouterr().out) is is_known


def test_edit_that_no_longer_applies_is_left_out_when_shown(
    exercise: Exercise, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An author changes the reference, and repairs a solution: show, change, add."""
    changed = REFERENCE.replace("return 1\n", "return 2\n").replace("return 10", "return 20")
    assert add(changed) == 0
    (exercise.folder / "reference/step.py").write_text(REFERENCE.replace("return 10", "return 5 + 5"))
    capfd.readouterr()
    assert dev("show", ID, "wrong/sum-is-average", "--into", "shown") == 1
    said = capfd.readouterr()
    assert said.out == "shown/step.py\n"
    assert f"{ID}: solutions.toml: wrong/sum-is-average: left out: `return 10` occurs 0 times" in said.err
    shown = tmp_path / "shown/step.py"
    assert shown.read_text() == REFERENCE.replace("return 1\n", "return 2\n").replace("return 10", "return 5 + 5")
    repaired = shown.read_text().replace("5 + 5", "20")
    shown.write_text(repaired)
    assert dev("add", ID, "wrong/sum-is-average", "shown/step.py") == 0
    assert exercise.solutions("wrong")[0].files() == {"step.py": repaired.encode()}


def test_table_in_another_form_is_not_damaged(exercise: Exercise, capsys: pytest.CaptureFixture[str]) -> None:
    table = exercise.folder / "solutions.toml"
    for text in ("wrong.a = [{replace = 'return 10', by = ''}]\n", "[wrong]\na = [{replace = 'return 10', by = ''}]\n"):
        table.write_text(text)
        assert add(REFERENCE.replace("10", "11"), "wrong/a") == 2
        assert "solutions.toml" in capsys.readouterr().err
        assert table.read_text() == text


def test_solution_of_several_files_is_edits_with_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(LABS / "lab1/12_own_module", tmp_path / "labs/lab1/12_own_module")
    monkeypatch.chdir(tmp_path)
    for name in ("right", "wrong", "solutions.toml"):
        path = folder / name
        if path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    exercise, (first, second) = Exercise(folder), ("model.py", "layers.py")
    assert dev("show", "1.12", "reference", "--into", "shown") == 0
    for name in (first, second):
        Path("shown", name).write_text(Path("shown", name).read_text() + "\n# the end\n")
    assert dev("add", "1.12", "wrong/unknown", f"shown/{second}", f"shown/{first}") == 0
    edits = read_edits(folder / "solutions.toml")["wrong"]["unknown"]
    assert {edit.file for edit in edits} == {None, second}
    files = exercise.solutions("wrong")[0].files()
    assert files == {name: Path("shown", name).read_bytes() for name in (first, second)}
    capfd.readouterr()
    assert dev("show", "1.12", "wrong/unknown") == 0
    shown = capfd.readouterr().out
    assert shown.startswith(f"==> {first} <==\n")
    assert shown.count("# the end\n") == 2
    assert dev("add", "1.12", "wrong/raised", "shown") == 2
    assert "shown: the exercise has no file of this name\n  try: name it one of: model.py, layers.py" in (
        capfd.readouterr().err
    )
    Path("shown", second).write_text("pass\n")
    Path("shown", first).write_text("pass\n")
    assert dev("add", "1.12", "wrong/raised", f"shown/{second}") == 0
    assert [path.name for path in (folder / "wrong/raised").iterdir()] == [second]
    assert dev("add", "1.12", "wrong/raised", f"shown/{first}") == 0
    assert [path.name for path in (folder / "wrong/raised").iterdir()] == [first]


@pytest.mark.slow
def test_course_solutions_survive_being_shown_and_added_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add what `show` writes, for solutions drawn from all labs: neither solutions.toml nor any file changes."""
    monkeypatch.chdir(tmp_path)
    for exercise in random.Random(5).sample(find_exercises(), 12):
        copy = Exercise(shutil.copytree(exercise.folder, tmp_path / "labs" / exercise.id))
        solutions = [one for kind in KINDS for one in copy.solutions(kind)]
        before = {path: path.read_bytes() for path in copy.folder.rglob("*") if path.is_file()}
        for solution in random.Random(5).sample(solutions, 4):
            into = tmp_path / exercise.id / solution.title
            assert dev("show", exercise.id, solution.title, "--into", into) == 0
            assert dev("add", exercise.id, solution.title, *into.iterdir()) == 0
        assert {path: path.read_bytes() for path in copy.folder.rglob("*") if path.is_file()} == before


def test_new_exercise_has_a_solution_that_is_an_edit(exercise: Exercise, capsys: pytest.CaptureFixture[str]) -> None:
    assert dev("new", "lab2/20_my_idea") == 0
    assert "frog learn dev add lab2/20_my_idea wrong/NAME FILE" in capsys.readouterr().out
    (solution,) = Exercise(exercise.folder.parents[1] / "lab2/20_my_idea").solutions("wrong")
    assert b"return x_N**2" in solution.files()["step.py"]
    table = tomllib.loads((LABS / "template/solutions.toml").read_text())
    assert len(table["wrong"]["squares-it"]) == 1
