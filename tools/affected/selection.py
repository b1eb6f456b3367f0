"""Which tests, exercises, pages and benchmarks a list of changed files reaches, and why."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from tools.affected.facts import Part
from tools.affected.graph import ALL
from tools.affected.project import (
    BENCHMARK_CASES,
    BENCHMARKS_TABLE,
    CHOOSERS,
    EXERCISE_CASES,
    PAGE_CASES,
    WARM,
    Project,
)

EVERYTHING = (
    "src/frog/core/",
    *("pyproject.toml", "constraints.txt", "Makefile", ".ci/"),
    *CHOOSERS,
    *("tests/conftest.py", "tests/harness.py", "tests/in_process.py", "tests/quick_imports/", WARM),
)
"""Files and folders whose change reaches every test."""
NOTHING = (".ci/verified", ".gitignore", ".dockerignore", "LICENSE")
"""Files that no test reads."""
_SHARE = 10
"""One of so many tests that are not reached runs too."""


@dataclass
class Selection:
    """Test files, and cases of tests by exercise, page or benchmark, each with the reason."""

    files: dict[str, str] = field(default_factory=dict)
    cases: dict[str, str] = field(default_factory=dict)
    """By the ids of the cases: `lab2/01_average_gradients`, `docs/plan/plan.md`, `planner.py`."""
    everything: str | None = None
    """Why every test runs, or None."""
    drawn: list[str] = field(default_factory=list)
    """Files and cases of the tenth that runs although the change does not reach it."""


def reached(project: Project, changed: Iterable[str]) -> Selection:
    """Return what these files reach."""
    starts: dict[str, str] = {}
    for path in changed:
        if path.startswith(NOTHING):
            continue
        if path.startswith(EVERYTHING):
            return everything(project, f"{path} changed")
        nodes = sorted(_nodes_of(project, path))
        if not nodes and not _is_deleted_test(project, path):
            return everything(project, f"{path} changed, and nothing is known about who reads it")
        starts |= {node: path for node in nodes if node not in starts}
    users = project.graph.users_of(starts)
    found = Selection()
    for test in project.tests:
        if f"{test}:{ALL}" in users:
            found.files[test] = _why(f"{test}:{ALL}", users, starts)
    for case, node in project.cases.items():
        if node in users:
            found.cases[case] = _why(node, users, starts)
    return found


def everything(project: Project, why: str) -> Selection:
    """Return a selection of all tests."""
    return Selection(dict.fromkeys(project.tests, why), dict.fromkeys(project.cases, why), everything=why)


def draw_tenth(project: Project, selection: Selection, commit: str) -> None:
    """Add a tenth of what is not reached, which differs from commit to commit."""
    for name in (*project.tests, *project.cases):
        number = int(hashlib.sha256(f"{commit} {name}".encode()).hexdigest(), 16)
        if name not in selection.files and name not in selection.cases and number % _SHARE == 0:
            selection.drawn.append(name)


def _why(node: str, users: dict[str, str], starts: dict[str, str]) -> str:
    """Return the path from a changed file to a node: `src/frog/plan/memory.py changed, used by frog.plan.plan_text`."""
    names = [node.partition(":")[0]]
    while users[node]:
        node = users[node]
        name = node.replace("command:", "frog ") if node.startswith("command:") else node.partition(":")[0]
        if name not in names:
            names.append(name)
    changed = starts[node]
    between = ", used by ".join(["", *reversed(names[1:-1])])
    return f"{changed} changed{between}"


def _is_deleted_test(project: Project, path: str) -> bool:
    return path.startswith("tests/") and path.endswith(".py") and not (project.root / path).exists()


# ---- nodes of a changed file -----------------------------------------------------------------------------------------


def _nodes_of(project: Project, path: str) -> set[str]:
    """Return the nodes that a file belongs to."""
    graph = project.graph
    if module := project.module_of.get(path):
        nodes = graph.nodes_of(module)
        if path == BENCHMARKS_TABLE or BENCHMARK_CASES in graph.facts[module].whole.attributes:
            nodes |= set(project.benchmarks.values())
        exercise = "/".join(path.split("/")[:3])
        if exercise in project.exercises.values():
            nodes.add(exercise)
        return nodes if path.startswith(("src/", "tests/")) else nodes | set(_readers(project, path))
    folder = path.rpartition("/")[0]
    if path.startswith("src/frog/") and not path.endswith(".md"):
        return {path} if _is_used(project, path) else _package(project, folder)
    if path.startswith("tests/"):
        return _readers_in_tests(project, path) if not path.endswith(".py") else _all_tests(project, folder)
    nodes = set(_readers(project, path))
    if path in graph.uses or _is_used(project, path):
        nodes.add(path)
    if path.startswith("labs/"):
        exercise = "/".join(path.split("/")[:3])
        if exercise in project.exercises.values():
            nodes.add(exercise)
        elif path == "labs/general.toml" or not nodes:
            nodes |= set(project.exercises.values())
    return nodes


def _is_used(project: Project, node: str) -> bool:
    return any(node in targets for targets in project.graph.uses.values())


def _package(project: Project, folder: str) -> set[str]:
    """Return the nodes of the modules in a folder of Frog, or in the next one above it that has any."""
    while folder.startswith("src/frog"):
        inside = {module for path, module in project.module_of.items() if path.rpartition("/")[0] == folder}
        if inside:
            return {node for module in inside for node in project.graph.nodes_of(module)}
        folder = folder.rpartition("/")[0]
    return set()


def _all_tests(project: Project, folder: str) -> set[str]:
    """Return the tests in a folder and below it."""
    return {f"{test}:{ALL}" for test in project.tests if test.startswith(f"{folder}/")}


def _readers_in_tests(project: Project, path: str) -> set[str]:
    """Return the files of tests in a data file's folder, or above, that name it; all tests there if none does."""
    folder = path.rpartition("/")[0]
    while folder:
        inside = [module for module in project.graph.files if module.startswith(f"{folder}/")]
        relative = PurePosixPath(path).relative_to(folder)
        words = {*relative.parts, relative.stem}
        found = {
            f"{module}:{ALL}"
            for module in inside
            if any(words & set(text.split("/")) for text in _texts(project.graph.facts[module].whole))
        }
        if found:
            return found
        if any(module in project.tests for module in inside):
            return _all_tests(project, folder)
        folder = folder.rpartition("/")[0]
    return set()


def _texts(part: Part) -> Iterator[str]:
    yield from part.strings
    yield from part.paths


def _readers(project: Project, path: str) -> Iterator[str]:
    """Yield the parts outside of Frog that name a file, one of its folders, or a pattern that matches it.

    Tests that have a case per page or exercise read many files; their cases are chosen one by one, by what the page or
    the exercise names. Frog itself counts if it names the whole path. A part that names a folder of Frog means its
    modules.
    """
    marks = (EXERCISE_CASES,) if path.startswith("labs/") else (PAGE_CASES,)
    only = project.names[path.rpartition("/")[2]] < 2
    for module, facts in project.graph.facts.items():
        if module.startswith("frog"):
            if path in facts.whole.strings or path in facts.whole.paths:
                yield f"{module}:{ALL}"
            continue
        if facts.whole.attributes.intersection(marks):
            continue
        at_root = "/" not in path and bool(facts.whole.names & _ROOTS)
        for name, part in facts.parts.items():
            folders = part.words | part.paths if not path.startswith("src/") else set()
            if any(_names(text, path, only or at_root) for text in _texts(part)) or any(
                _is_folder(text, path) for text in folders
            ):
                yield f"{module}:{name}"


_ROOTS = {"ROOT", "root", "PROJECT", "project"}
"""What files call the project's folder: with one of them, `*.md` may be the files in it."""


def _names(text: str, path: str, bare: bool) -> bool:
    """True if a text is a file's path or the end of it, or a pattern for it. bare: a name without a folder counts.

    A bare name or pattern, `README.md` or `*.md`, says nothing about the folder: it counts for files of the project's
    folder, and for a name that only one file has. In another folder the text that names the folder counts.
    """
    text = text.removeprefix("{}/").strip("/")
    if not text or len(text) > 100 or re.search(r"\s", text):
        return False
    if path.startswith("labs/") and path.split("/")[2:3] == [text]:  # an exercise
        return True
    if "/" not in text and not bare:
        return False
    if "{}" in text or "*" in text:
        pattern = text.replace("{}", "*")
        if set(pattern) <= set("*./[!]_-"):
            return False
        if "/" not in text:
            return "/" not in path and fnmatchcase(path, pattern)
        return any(fnmatchcase(path, one) for one in (pattern, f"*/{pattern}", f"{pattern}/*"))
    return path == text or (path.endswith(f"/{text}") and ("." in text or "/" in text))


def _is_folder(text: str, path: str) -> bool:
    """True if a text is a folder that a path begins with. Keys and indices, `run["config"]`, are no such texts."""
    text = text.removeprefix("{}/").strip("/")
    return bool(text) and path.startswith(f"{text}/")
