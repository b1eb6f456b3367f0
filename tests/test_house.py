"""The house holds: floors, one reader of the environment, no torch where there must be none."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "frog"
FLOORS = {
    "core": 0,
    "config": 1,
    "events": 1,
    "data": 2,
    "model": 2,
    "comm": 2,
    "parallel": 3,
    "checkpoint": 3,
    "train": 4,
    "launch": 5,
    "plan": 5,
    "chaos": 6,
    "course": 7,
    "view": 7,
    "cli": 8,
}
"""As docs/architecture.md has them."""

WITH_TORCH = {"data", "model", "comm", "parallel", "checkpoint", "train"}


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path.name != "__init__.py" or path.parent != SOURCE]

PAGES = sorted((SOURCE.parents[1] / "scripts").glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    room = room_of(path)
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "torch":
            assert room in WITH_TORCH, f"{room} may not import torch"
        if parts[0] != "frog" or len(parts) == 1 or parts[1] == room:
            continue
        assert FLOORS[parts[1]] < FLOORS[room], f"{room} (floor {FLOORS[room]}) imports {name}"


def test_only_env_reads_the_environment() -> None:
    readers = [path for path in FILES if "os.environ" in path.read_text() or "getenv" in path.read_text()]
    assert [path.relative_to(SOURCE).as_posix() for path in readers] == ["core/env.py"]


@pytest.mark.parametrize("command", ["--help", "train --help", "data --help", "report --help", "runs"])
def test_light_commands_do_not_load_torch(command: str, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom frog.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules or 'tokenizers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command.split()], cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def test_the_map_says_the_same() -> None:
    rows = re.findall(
        r"^\| (\d) \| ([a-z, ]+) \|", (SOURCE.parents[1] / "docs" / "architecture.md").read_text(), re.MULTILINE
    )
    assert {room: int(floor) for floor, rooms in rows for room in rooms.split(", ")} == FLOORS


def test_no_file_has_outgrown_its_room() -> None:
    long = {path.name: count for path in FILES + PAGES if (count := len(path.read_text().splitlines())) > 400}
    assert not long
