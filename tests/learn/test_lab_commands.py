"""Every command of the labs' pages and of the exercises works in a course folder, without a clone.

tests/e2e runs all commands of the labs' pages in one; these tests are the quick part.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import frog
from frog.learn.folder import create_folder
from frog.learn.grader.exercise import find_exercises

ROOT = Path(frog.__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "labs").glob("*.md"))
BLOCK = re.compile(r"^ *```(console|sh|bash|text)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"(?<![\w./-])((?:[\w-]+/)*[\w-]+\.(?:py|toml|json|sbatch|yaml|md|sh|csv))(?![\w/])")
CREATED = re.compile(r"(?:>>?|-o|cp \S+) ([\w./-]+)")
BY_COMMANDS = ("runs/", "data/", "logs/")
"""Folders that commands write to."""
PROGRAMS = ("frog ", "python ", "torchrun ", "export ", "bash ", "head ", "tail ", "cat ", "sed ", "NODE_RANK")


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_folder(tmp_path_factory.mktemp("course") / "mine", learner="Ada").path


def commands_of(page: Path) -> Iterator[str]:
    """Yield the commands of all blocks: those after a prompt, and in other blocks those that begin with a program."""
    for kind, block in BLOCK.findall(page.read_text()):
        for line in re.sub(r"\\\n *", " ", block).splitlines():
            command = line.strip().removeprefix("$ ")
            if line.startswith("$ ") or (kind != "console" and command.startswith(PROGRAMS)):
                yield command


def missing_files(page: Path, folders: list[Path]) -> list[str]:
    """Return the files that a page's commands name and that neither exist nor come from an earlier command."""
    missing, created = [], set[str]()
    for command in commands_of(page):
        named = FILE.findall(command)
        created |= set(CREATED.findall(command))
        missing += [
            f"{page.relative_to(ROOT)}: {name}: {command}"
            for name in named
            if not name.startswith(BY_COMMANDS) and name not in created
            and not any((folder / name).exists() for folder in folders)
        ]  # fmt: skip
    return missing


def test_files_that_lab_pages_name_are_in_a_course_folder(course: Path) -> None:
    assert sum(len(list(commands_of(page))) for page in PAGES) > 60
    assert [line for page in PAGES for line in missing_files(page, [course])] == []


def test_files_that_exercises_name_are_in_a_course_folder(course: Path) -> None:
    exercises = find_exercises()
    places = {exercise.id: course / "exercises" / exercise.id for exercise in exercises}
    pages = [(exercise.folder / "README.md", [places[exercise.id], course]) for exercise in exercises]
    assert [line for page, folders in pages for line in missing_files(page, folders)] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("scripts/fake_multi_node_launcher.py --explain --nnodes 4 --nproc-per-node 8 --node-rank 3", "24"),
        ("-m frog schedule --schedule all --stages 3 --micro-batches 6", "1f1b"),
        ("-m frog slurm explain config/slurm_example.sbatch", "#SBATCH"),
        ("scripts/train_tiny_transformer.py --help", "--epochs"),
    ],
)
def test_quick_commands_run_in_a_course_folder(course: Path, words: str, says: str) -> None:
    done = subprocess.run([sys.executable, *words.split()], cwd=course, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


def test_program_that_the_learner_changed_is_kept(course: Path) -> None:
    config = course / "config" / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 4'))
    subprocess.run([sys.executable, "-m", "frog", "learn", "list"], cwd=course, check=True, capture_output=True)
    assert '"num_hidden_layers": 4' in config.read_text()
