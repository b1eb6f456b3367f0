"""Run every command in the documentation, in order, in a copy of the project, as a reader would type it.

The commands of the labs' pages run in a new course folder instead, without a clone.

A block fenced as `console` has commands after `$ ` and part of their output below each. Commands of one page share a
folder, so that later commands find the files of earlier ones; after `cd FOLDER` they run there. A command that ends in
`# fails` must fail. Commands that train for long take fewer steps here (`FEWER_STEPS`). Commands in other blocks do not
run here; a comment before the block, invisible to readers, gives the reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from warm_frog import cold_env, warm_env

from frog.learn.folder import create_folder
from frog.learn.rules import README_COMMANDS, commands_in

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
NEEDS = re.compile(r"^<!-- needs: ([a-z, ]+) -->$", re.MULTILINE)
"""Requirements of a page's commands. If one is missing, the test is skipped and the summary names it."""
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PROGRAMS = "frog|python|torchrun|git|pip|docker|export|sbatch|mpirun|mpiexec|deepspeed|accelerate|cargo|make|mkdir"
TYPED = re.compile(rf"^ *(?:\$|{PROGRAMS}) ", re.MULTILINE)
NOT_RUN = re.compile(r"^ *<!-- (?:not run: .+|run by: (tests/[\w/]+\.py)) -->\n", re.MULTILINE)
NOT_HERE = ("git clone", "make setup", "make demo", "make test", "make check", "make clean")
"""Commands that create the environment, run for long, or run this test: `.ci/run` runs them in a fresh clone."""

FEWER_STEPS = {
    "train_tiny_transformer.py --epochs 2": "train_tiny_transformer.py --epochs 2 --steps-per-epoch 20",
    "--epochs 1 --steps-per-epoch 40": "--epochs 1 --steps-per-epoch 10",
    "--epochs 1 --steps-per-epoch 80": "--epochs 1 --steps-per-epoch 10",
    "ddp_simulation_train.py": "ddp_simulation_train.py --samples 96",
    "frog plan calibrate --threads 1": "frog plan calibrate --threads 1 --quick --ranks 2",
    "--name guard": "--name guard --epochs 2",
    "--name guard-writes": "--name guard-writes --epochs 1",
    "--set train.steps=80 --set eval.every=40 --set checkpoint.every=20": (
        "--set train.steps=16 --set eval.every=8 --set checkpoint.every=4"
    ),
}
"""Parts of documented commands, and their equivalents with fewer steps for the tests."""


def commands_of(page: Path) -> list[str]:
    """Return the commands of a page."""
    return commands_in(page.read_text())


def with_fewer_steps(command: str) -> str:
    """Replace the parts of a command that would train for long."""
    for part, shorter in FEWER_STEPS.items():
        command = re.sub(rf"{re.escape(part)}(?!\S)", shorter, command)
    return command


def absent_needs(page: Path) -> list[str]:
    """Return the page's requirements that this machine does not meet."""
    there = {
        "slurm": shutil.which("slurmctld") is not None,
        "open mpi": shutil.which("mpirun") is not None,
        "network namespaces": Path("/dev/net/tun").exists() and namespaces_allowed(),
    }
    return [need for match in NEEDS.findall(page.read_text()) for need in match.split(", ") if not there[need]]


def namespaces_allowed() -> bool:
    """True if this user may create user, mount and network namespaces."""
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "-Urnm", "true"], capture_output=True).returncode == 0


def test_documentation_contains_commands() -> None:
    assert commands_of(ROOT / "README.md")
    assert all(commands_of(ROOT / "docs" / "labs" / f"lab{number}.md") for number in range(1, 7))


def test_each_shortened_part_occurs_in_a_command() -> None:
    commands = [command for page in PAGES for command in commands_of(page)]
    for part, shorter in FEWER_STEPS.items():
        assert any(shorter in with_fewer_steps(command) for command in commands), part


def silent_blocks(page: Path) -> Iterator[str]:
    """Yield the first line of each block of commands that neither runs nor has a comment that says why."""
    text = page.read_text()
    for block in FENCED.finditer(text):
        line_before = text[: block.start()].splitlines(keepends=True)[-1]
        why = NOT_RUN.search(text if block[1] == "sh" else line_before)  # one comment per page for `sh` blocks
        if block[1] != "console" and TYPED.search(block[2]) and not (why and (not why[1] or (ROOT / why[1]).is_file())):
            yield f"{page.relative_to(ROOT)}: {block[2].splitlines()[0]}"


def test_blocks_that_do_not_run_give_a_reason() -> None:
    assert len(PAGES) > 50
    assert [line for page in PAGES for line in silent_blocks(page)] == []


RUN_FOR_EXERCISES = {
    "frog learn check": "tests/learn/test_learn_commands.py",
    "frog learn predict": "tests/learn/test_learn_commands.py",
    "torchrun --nproc_per_node=4 scripts/ddp_simulation_train.py": "docs/labs/lab2.md",
    "torchrun --standalone --nproc_per_node=2 train.py": "labs/lab2/16_repair_torchrun/check.py",
    "tail -n 3 logs/": "docs/labs/lab2.md",
    "python draw.py 3 6": "tests/learn/test_lab5_drawing.py",
    "frog prove --set strategy.file=": "docs/train/own-strategy.md",
    "frog run --nproc 2 -- train config/demo.toml --set strategy.file=": "docs/train/own-strategy.md",
    "frog run --nproc 4 -- train config/demo.toml --set": "docs/train/strategies.md",
    "frog report": "docs/train/own-strategy.md",
    "frog collectives check": "docs/measure/collectives.md",
    "frog check --nproc 2": "docs/observe/check.md",
}
"""Beginnings of commands on exercise pages, and the files that run such commands."""


def test_commands_of_exercises_run_in_other_tests() -> None:
    pages = sorted((ROOT / "labs").glob("*/*/README.md"))
    assert sum(len(commands_of(page)) for page in pages) > 20
    assert RUN_FOR_EXERCISES.keys() == set(README_COMMANDS)  # tests/learn compares these with each page
    for start, where in RUN_FOR_EXERCISES.items():
        text = (ROOT / where).read_text()
        assert (start if where.endswith(".md") else f'"{start.split()[2]}"') in text, f"{where} does not run {start}"


@pytest.mark.slow
@pytest.mark.page_cases
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands_of(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_all_commands_of_a_page_run(page: Path, default_data: Path, tmp_path: Path) -> None:
    if absent := absent_needs(page):
        pytest.skip(f"not on this machine: {', '.join(absent)}")
    if page.parent == ROOT / "docs" / "labs":
        create_folder(tmp_path, learner="Ada")  # a learner has no clone
    else:
        for name in ("config", "scripts"):
            shutil.copytree(ROOT / name, tmp_path / name)
        for name in ("train.py", "Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, tmp_path / name)
    if page != ROOT / "README.md":  # later pages find the data set there, as a reader does
        shutil.copytree(default_data, tmp_path / "data")
    prefix = Path(sys.prefix)
    (tmp_path / ".venv").symlink_to(prefix)
    (prefix / ".ready").touch()  # the environment exists, because these tests run in it
    here, frog = tmp_path, cold_env()
    for command in commands_of(page):
        if command.startswith(NOT_HERE):
            continue
        if command.startswith("cd ") and "&" not in command:
            here = here / command.removeprefix("cd ")
            continue
        done = subprocess.run(
            ["bash", "-c", with_fewer_steps(command)],
            cwd=here,
            env={**os.environ, **frog, "FROG_CACHE_DIR": str(tmp_path / ".cache")},
            capture_output=True,
            text=True,
            timeout=720,
        )
        assert (done.returncode != 0) == command.endswith("# fails"), f"$ {command}\n{done.stdout}\n{done.stderr}"
        frog = warm_env()
