"""Architecture rules: layers, one reader of the environment, no torch in packages that must not load it."""

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

SOURCE = Path(__file__).parents[1] / "src" / "frog"
LAYERS = {
    "core": 0,
    "core/runs": 1,
    **dict.fromkeys(("core/config", "observe"), 2),
    **dict.fromkeys(("train/comm", "train/data", "train/model", "train/optim", "observe/diagnose"), 3),
    **dict.fromkeys(("train/checkpoint", "train/parallel", "cluster"), 4),
    **dict.fromkeys(("launch", "train"), 5),
    "plan": 6,
    **dict.fromkeys(("measure/chaos", "train/prove", "train/profile", "observe/view"), 7),
    "learn": 8,
    "measure/peers": 9,
    "cli": 10,
}
"""Layers of the rooms and their larger parts, as in docs/architecture.md."""

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


def package_of(path: Path) -> str:
    """Return the room of a file, or the part of it that has its own layer."""
    if path.name in ("cli.py", "__main__.py"):
        return "cli"
    parts = path.relative_to(SOURCE).parts
    return part if (part := "/".join(parts[:2])) in LAYERS else parts[0]


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

PAGES = sorted((SOURCE.parents[1] / "scripts").glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_packages_import_only_lower_layers(path: Path) -> None:
    package = package_of(path)
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "torch":
            may = path.name.endswith("_rank.py") or path.relative_to(SOURCE).as_posix().startswith(WITH_TORCH)
            assert may, f"{package} may not import torch"
        if name not in MODULES or (target := package_of(MODULES[name])) == package:
            continue
        assert LAYERS[target] < LAYERS[package], f"{package} (layer {LAYERS[package]}) imports {name}"


def test_modules_have_no_import_cycles() -> None:
    graph = {name: imports_of(path) & MODULES.keys() - {name} for name, path in MODULES.items()}
    assert cycle_in(graph) is None


def test_packages_have_no_import_cycles() -> None:
    """The same holds for subpackages. A package's own files, which may be above or below those, count separately."""

    def node_of(path: Path) -> str:
        inner = path.relative_to(SOURCE).parent
        own = len(inner.parts) < 2 or inner.as_posix() in LAYERS
        alone = own or path.name.endswith("_commands.py")  # a subpackage's command line is above its other files
        return str(path if alone else SOURCE / inner)

    graph: dict[str, set[str]] = {}
    for path in FILES:
        targets = {node_of(MODULES[name]) for name in imports_of(path) & MODULES.keys()} - {node_of(path)}
        graph.setdefault(node_of(path), set()).update(targets)
    assert cycle_in(graph) is None


def test_every_package_has_a_docstring() -> None:
    folders = {path.parent for path in FILES}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").read_text().startswith('"""')] == []


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
    done = subprocess.run([sys.executable, "-c", code, *command.split()], cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def test_architecture_page_lists_the_same_layers() -> None:
    rows = re.findall(
        r"^\| (\d+) \| ([a-z, /]+) \|", (SOURCE.parents[1] / "docs" / "architecture.md").read_text(), re.MULTILINE
    )
    assert {package: int(layer) for layer, packages in rows for package in packages.split(", ")} == LAYERS


def test_no_source_file_is_too_long() -> None:
    long = {path.name: count for path in FILES + PAGES if (count := len(path.read_text().splitlines())) > 400}
    assert not long


def test_names_of_test_files_are_unique() -> None:
    """pytest imports them by name, and two of one name fail when they run together."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, number in names.items() if number > 1] == []
