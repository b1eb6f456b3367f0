"""`make affected` on this project, and the check that it knows of every file that a test executes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.affected.__main__ import CACHE, described, select
from tools.affected.changes import UnknownBaseError, changed_files, verified_commit
from tools.affected.project import Project, read_project
from tools.affected.selection import reached

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def project() -> Project:
    return read_project(ROOT, ROOT / CACHE)


def one(names: list[str], end: str) -> str:
    """Return the only name with this end: folders may move."""
    (found,) = [name for name in names if name.endswith(end)]
    return found


OBSERVED = [
    *("test_memory_formulas.py", "test_native_rules.py", "test_history.py", "test_verdict_text.py"),
    *("test_run_folder_page.py", "test_strategy_section.py"),
]
"""Quick test files of several rooms, each with a name that only one folder has."""


@pytest.mark.slow
def test_executed_functions_are_in_files_that_a_test_is_known_to_use(project: Project, tmp_path: Path) -> None:
    """Run a few test files and record what they execute. A file that the graph does not know would not be selected."""
    files = [one(project.tests, f"/{name}") for name in OBSERVED]
    path = tmp_path / "executed.json"
    env = {**os.environ, "EXECUTED": str(path), "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "executed", "-m", "not slow", "-n", "0", *files]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
    executed = json.loads(path.read_text())
    assert executed.keys() == set(files)
    for test, sources in executed.items():
        modules = {project.module_of[str(Path(source).relative_to(ROOT))] for source in sources}
        assert len(modules) > 1
        assert modules - project.graph.used_by(test) == set(), test


def test_imported_modules_are_known_to_be_loaded(project: Project) -> None:
    code = "import frog.observe.view.report, sys; print(*(name for name in sys.modules if name.startswith('frog')))"
    module = one([name for name in project.graph.files if name.startswith("frog.")], "view.report")
    done = subprocess.run(
        [sys.executable, "-c", code.replace("frog.observe.view.report", module)],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split()) & project.graph.files.keys()
    assert len(loaded) > 20
    assert loaded - project.graph.loaded_by(module) == set()


def test_planner_reaches_its_tests_and_not_those_of_the_data(project: Project) -> None:
    module = one(sorted(project.module_of), "/plan/memory.py")
    selection = reached(project, [module])
    assert one(project.tests, "/test_memory_formulas.py") in selection.files
    assert one(project.tests, "/test_windows.py") not in selection.files
    assert not selection.cases.keys() & project.exercises.keys()
    assert len(selection.files) < len(project.tests) / 3


def test_grader_reaches_every_exercise(project: Project) -> None:
    module = one(sorted(project.module_of), "/learn/grader/judge.py")
    assert reached(project, [module]).cases.keys() >= project.exercises.keys()


def test_file_of_an_exercise_reaches_that_exercise(project: Project) -> None:
    name = next(iter(project.exercises))
    selection = reached(project, [f"labs/{name}/reference/other.py"])
    assert name in selection.cases
    assert len(selection.cases.keys() & project.exercises.keys()) < 4


def test_every_command_has_modules_and_every_case_has_uses(project: Project) -> None:
    names = project.graph.commands
    assert len(names) > 25
    assert [name for name, targets in names.items() if not targets] == []
    for node in project.cases.values():
        assert project.graph.uses[node], node


def test_clone_without_the_verified_commit_runs_everything(project: Project) -> None:
    with pytest.raises(UnknownBaseError, match="no commit 0123abc"):
        changed_files(ROOT, "0123abc")
    selection = select(project, "0123abc")
    assert selection.files.keys() == set(project.tests)
    (line,) = described(project, selection)
    assert line == "everything: what changed is not known: the repository has no commit 0123abc"


def test_verified_names_a_whole_commit() -> None:
    assert len(verified_commit(ROOT)) == 40


def test_changed_new_and_deleted_files_are_found(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        own = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *own, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    for name in ("same", "changed", "deleted", "committed"):
        (tmp_path / name).write_text("a")
    git("add", ".")
    git("commit", "-m", "a")
    (tmp_path / "committed").write_text("b")
    git("commit", "-am", "b")
    (tmp_path / "changed").write_text("b")
    (tmp_path / "deleted").unlink()
    (tmp_path / "new").write_text("a")
    assert changed_files(tmp_path, "HEAD~1") == ["changed", "committed", "deleted", "new"]
