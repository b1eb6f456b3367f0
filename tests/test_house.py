"""Architecture rules: rooms, one reader of the environment, no torch in packages that must not load it."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Set
from pathlib import Path

import pytest
from harness import LIMIT_S

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "frog"
ROOMS = {
    "core": (),
    "launch": ("core",),
    "train": ("launch", "core"),
    "observe": ("train", "launch", "core"),
    "plan": ("train", "launch", "core"),
    "cluster": ("observe", "train", "launch", "core"),
    "measure": ("observe", "train", "launch", "core"),
    "learn": ("measure", "cluster", "train", "launch", "core"),
}
"""The rooms, which are folders, and the rooms that each may use; each is above those that it uses."""

PARTS = {
    "core": [".", "runs", "config"],
    "train": ["comm data model optim", "checkpoint parallel", ".", "prove profile"],
    "observe": [".", "check", "diagnose", "view watch"],
}
"""Parts of a room from the lowest up; "." stands for the room's other files. A part uses only lower ones."""

WITH_TORCH = (
    "train",
    "learn/grader",
    "launch/torchrun",
    "observe/hook/frog_simulated_gpus",
)
"""Folders that may import torch. Elsewhere only `*_rank.py` may, the part that runs on every rank."""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def imports_of(path: Path) -> frozenset[str]:
    """Return the modules that a file imports anywhere: `from frog.plan import memory` means frog.plan.memory."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names |= {name if name in MODULES else node.module for name in whole}
    return frozenset(names)


def room_of(module: str) -> str | None:
    """Return the room of a module; None for files above all rooms, such as cli.py."""
    name = [*module.split("."), ""][1]
    return name if name in ROOMS else None


def part_of(module: str) -> int:
    """Return the position of a module's part in its room."""
    _, room, *inner = module.split(".")
    order = PARTS.get(room, ["."])
    own = [index for index, names in enumerate(order) if inner and inner[0] in names.split()]
    return own[0] if own else order.index(".")


def cycle_in(graph: Mapping[str, Set[str]]) -> list[str] | None:
    """Return a cycle as nodes that lead back to the first one, or None."""
    done: set[str] = set()

    def visit(node: str, trail: list[str]) -> list[str] | None:
        if node in trail:
            return [*trail[trail.index(node) :], node]
        if node in done:
            return None
        found = (visit(target, [*trail, node]) for target in sorted(graph.get(node, ())))
        cycle = next((cycle for cycle in found if cycle), None)
        done.add(node)
        return cycle

    return next((cycle for node in sorted(graph) if (cycle := visit(node, []))), None)


CONTENT = {SOURCE / "measure" / "peers" / "examples"}
"""Files that users copy; the rules do not apply to them."""

HOOK = SOURCE / "observe" / "hook"
"""Code that runs in the ranks of other programs, perhaps with an older Python and without Frog."""

FILES = [
    path
    for path in sorted(SOURCE.rglob("*.py"))
    if CONTENT.isdisjoint(path.parents) and (path.name != "__init__.py" or path.parent != SOURCE)
]

MODULES = {module_of(path): path for path in FILES}


def test_rooms_use_only_the_rooms_and_parts_below_them() -> None:
    """A lower room calls a product through a hook: hooks.py, which every room may use."""
    wrong = []
    for module, path in MODULES.items():
        room = room_of(module)
        for target in sorted(imports_of(path) & MODULES.keys()) if room else ():
            other = room_of(target)
            if other == room and part_of(target) <= part_of(module):
                continue
            if target != "frog.hooks" and other not in ROOMS[room]:
                wrong.append(f"{module} imports {target}")
    assert wrong == []


def test_rooms_are_the_folders_and_their_arrows_have_no_cycle() -> None:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == ROOMS.keys()
    assert cycle_in({room: set(others) for room, others in ROOMS.items()}) is None


def test_every_room_has_a_readme_of_one_screen_that_names_existing_files() -> None:
    """A name is a path from the room or from the project's root, or in a folder of the room."""
    root = SOURCE.parents[1]
    wrong = []
    for room in ROOMS:
        text = (SOURCE / room / "README.md").read_text()
        folders = [root, SOURCE / room, *(path for path in (SOURCE / room).rglob("*") if path.is_dir())]
        names = [
            name for name in re.findall(r"`([\w./]+)`", text) if name.endswith((".py", "/")) and name != "check.py"
        ]
        wrong += [f"{room}: {name}" for name in names if not any((folder / name).exists() for folder in folders)]
        if text.count("\n") > 60 or f"make test-{room}" not in text:
            wrong.append(f"{room}: over 60 lines, or without make test-{room}")
    assert wrong == []


def test_torch_is_imported_only_where_it_may_be() -> None:
    importers = [path for path in FILES if any(name.split(".")[0] == "torch" for name in imports_of(path))]
    places = [path.relative_to(SOURCE).as_posix() for path in importers if not path.name.endswith("_rank.py")]
    assert [place for place in places if not place.startswith(WITH_TORCH)] == []


def test_modules_have_no_import_cycles() -> None:
    graph = {name: imports_of(path) & MODULES.keys() - {name} for name, path in MODULES.items()}
    assert cycle_in(graph) is None


def test_packages_have_no_import_cycles() -> None:
    """The same holds for subpackages. A package's own files, which may be above or below those, count separately."""

    def node_of(path: Path) -> str:
        inner = path.relative_to(SOURCE).parent
        own = len(inner.parts) < 2 or (len(inner.parts) == 2 and inner.parts[0] in PARTS)
        return str(path if own else SOURCE / inner)

    graph: dict[str, set[str]] = {}
    for path in FILES:
        targets = {node_of(MODULES[name]) for name in imports_of(path) & MODULES.keys()} - {node_of(path)}
        graph.setdefault(node_of(path), set()).update(targets)
    assert cycle_in(graph) is None


def test_every_package_has_a_docstring() -> None:
    folders = {path.parent for path in FILES}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").read_text().startswith('"""')] == []


def is_generator(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True if the function itself yields; functions inside it do not count."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    return False


def test_docstrings_say_return_or_yield_as_the_function_does() -> None:
    """The words "Return once …" say when a function without a result returns."""
    wrong = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            said = re.match(r"(Return|Yield)(?! (?:once|when|if|at once)\b)", ast.get_docstring(node) or "")
            result = ast.unparse(node.returns) if node.returns else ""
            means = "Yield" if is_generator(node) else "" if result in ("None", "NoReturn") else "Return"
            if said and said[1] != means and not (said[1] == "Yield" and result.startswith("Itera")):
                wrong.append(
                    f"{path.relative_to(SOURCE)}:{node.lineno}: {node.name}: {said[1]}, but it is {means or None}"
                )
    assert wrong == []


def test_only_env_reads_the_environment() -> None:
    ours = [path for path in FILES if HOOK not in path.parents]
    readers = [path for path in ours if "os.environ" in path.read_text() or "getenv" in path.read_text()]
    assert [path.relative_to(SOURCE).as_posix() for path in readers] == ["core/env.py"]


def test_frogs_own_processes_do_not_import_from_the_current_directory() -> None:
    """A user may have a queue.py there."""
    starts = re.compile(r"(?<!\.fork\(\[)sys\.executable, (?!\"-[IP]\")[^\]]*\"-[mc]\"")
    found = [f"{path.relative_to(SOURCE)}: {start}" for path in FILES for start in starts.findall(path.read_text())]
    assert not found


def test_hook_needs_only_the_standard_library_of_python_3_9() -> None:
    for path in sorted(HOOK.rglob("*.py")):
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
        names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        allowed = {*sys.stdlib_module_names, *(["torch"] if path.parent.name == "frog_simulated_gpus" else [])}
        foreign = [name for name in names if name.partition(".")[0] not in allowed]
        assert not foreign, f"{path.name} imports {foreign}"


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "train --help",
        "data --help",
        "report --help",
        "runs",
        "learn",
        "doctor --help",
        "collectives check --help",
    ],
)
def test_light_commands_do_not_load_torch(command: str, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom frog.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules or 'tokenizers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command.split()], cwd=tmp_path, capture_output=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr.decode()


def test_architecture_page_lists_the_same_rooms() -> None:
    _, _, table = (SOURCE.parents[1] / "docs" / "architecture.md").read_text().partition("| room | parts")
    rows = dict(re.findall(r"^\| ([a-z]+) \|.*\| ([a-z, ]*)\|$", table, re.MULTILINE))
    shown = {room: {name for name in uses.strip().split(", ") if name} for room, uses in rows.items()}
    ground = {"train", "launch", "core"}
    assert shown == {room: set(others) - ground for room, others in ROOMS.items()}


def test_file_names_are_unique_in_their_room() -> None:
    """In a traceback two files of one name are one."""
    names = Counter((room_of(module), path.name) for module, path in MODULES.items() if path.name[:2] != "__")
    assert [f"{room}: {name}" for (room, name), number in names.items() if room and number > 1] == []


def test_names_of_test_files_are_unique() -> None:
    """pytest imports them by name, and two of one name fail when they run together."""
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, number in names.items() if number > 1] == []


SLEEPS = {
    "harness.py": "wait_until, the one helper that looks until a fact is true",
    "learn/grader/test_turns.py": "sleeps on the grader's simulated clock",
    "observe/diagnose/program/planted.py": "a program under test that is slow, blocks or ends late",
    "observe/test_programs.py": "a thread that starts late",
    "cluster/slurm/jobs/listen.py": "a job that waits for signals, run by Slurm without the tests' packages",
}
"""Files of tests that may sleep, and why. Programs in strings are not looked at."""


def test_tests_wait_for_facts_and_not_for_time() -> None:
    sleeping = set()
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            calls = isinstance(node, ast.Attribute) and ast.unparse(node) == "time.sleep"
            if calls or (isinstance(node, ast.ImportFrom) and node.module == "time" and "sleep" in names):
                sleeping.add(str(path.relative_to(TESTS)))
    assert sorted(sleeping - SLEEPS.keys()) == [], "wait for a fact with harness.wait_until"
    assert sorted(SLEEPS.keys() - sleeping) == [], "no longer an exception"
