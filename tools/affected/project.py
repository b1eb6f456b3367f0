"""The project as a graph: Frog, its tests, tools, scripts, exercises and pages, read from the folders as they are.

Frog's modules have their dotted names; every other file is called by its path, `tests/harness.py`. An exercise
(`labs/lab2/01_average_gradients`) and a page (`docs/plan/plan.md`) are nodes of the graph too. Nothing of Frog is
imported here: `tools.mutants` loads a changed copy of it.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.affected.command_table import CLI
from tools.affected.facts import IMPORTING, Facts, Part, read_facts
from tools.affected.graph import ALL, Graph, build_graph, closure, typed_commands

WARM = "tests/warm_frog/"
CHOOSERS = ("tools/affected/", "tools/ci/")
"""The tools that choose and run tests: they name folders and start none of their programs."""
EXERCISE_CASES, PAGE_CASES, BENCHMARK_CASES = "exercise_cases", "page_cases", "benchmark_cases"
CASES = (EXERCISE_CASES, PAGE_CASES, BENCHMARK_CASES)
"""Marks of tests whose cases are exercises, pages or benchmarks: each case is chosen for itself."""
BENCHMARKS_TABLE = "benchmarks/run.py"
PROGRAMS = ("scripts", "benchmarks", "notebooks", "tools")
_CONSOLE = re.compile(r"^```(?:console|sh|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_EXERCISE = re.compile(r"\d\d_\w+")
_IMPORTED = re.compile(r"\bfrog\.[\w.]+")
_COMMAND = re.compile(r"\bfrog (\w+)|\b-m (frog[\w.]*)")
_PROGRAM = re.compile(r"[\w./-]+\.(?:py|toml|json|sh|sbatch)\b")


@dataclass
class Project:
    """The graph with the files that are not modules."""

    root: Path
    graph: Graph
    module_of: dict[str, str]
    """Module of each Python file, by its path from the root."""
    tests: list[str]
    """Test files, which are modules called by their path."""
    exercises: dict[str, str] = field(default_factory=dict)
    """Each exercise's node by its id, `lab2/01_average_gradients`."""
    pages: list[str] = field(default_factory=list)
    """Pages with commands that a test runs."""
    benchmarks: dict[str, str] = field(default_factory=dict)
    """Each program's node by its name, `planner.py`."""
    names: Counter[str] = field(default_factory=Counter)
    """How many files have a name: `README.md` is in many folders."""

    @property
    def cases(self) -> dict[str, str]:
        """The nodes of all exercises, pages and benchmarks, by the ids of their cases."""
        return {**self.exercises, **{page: page for page in self.pages}, **self.benchmarks}


def read_project(root: Path, cache: Path | None = None) -> Project:
    """Read all Python files and pages. cache: a file with the facts of an earlier call, for files that are the same."""
    reader = _CachedReader(root, cache)
    files, facts = {}, {}
    for module, path in _python_files(root):
        is_test = module.startswith("tests/")
        files[module], facts[module] = path, reader.read(path, module, is_test and not path.name.startswith("test_"))
    reader.save()
    module_of = {path.relative_to(root).as_posix(): module for module, path in files.items()}
    tests = [module for module in files if _is_test(module)]
    names = _TestFiles(files)
    for module in files:
        if not module.startswith("frog"):
            _rename_imports(module, facts[module], names)
    for module in files:
        if module.startswith(WARM):  # it can run all commands, and a test says which one
            facts[module] = Facts({IMPORTING: Part()}, set(), {IMPORTING})
    graph = build_graph(files, facts)
    project = Project(root, graph, module_of, tests, names=Counter(_file_names(root)))
    _add_tests(project)
    _add_files_of_packages(project)
    _add_programs(project)
    _add_exercises(project)
    _add_pages(project)
    _add_benchmarks(project)
    return project


def _python_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield modules of Frog by their dotted names, and all other Python files by their paths."""
    source = root / "src"
    for path in sorted((source / "frog").rglob("*.py")):
        yield ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"), path
    for folder in ("tests", *PROGRAMS):
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root).as_posix(), path
    for path in sorted([*root.glob("*.py"), *root.glob("labs/*/*/*.py"), *root.glob("labs/*/*/reference/*.py")]):
        yield path.relative_to(root).as_posix(), path


def _file_names(root: Path) -> Iterator[str]:
    """Yield the names of the files in the project's folder and below its folders of sources, tests and texts."""
    yield from (path.name for path in root.iterdir() if path.is_file())
    for folder in ("src", "tests", "docs", "labs", "config", *PROGRAMS):
        for _, folders, files in os.walk(root / folder):
            folders[:] = [name for name in folders if name not in ("__pycache__", "node_modules")]
            yield from files


def _is_test(module: str) -> bool:
    return module.startswith("tests/") and module.rpartition("/")[2].startswith("test_")


class _CachedReader:
    """Reads facts, or takes them from a file if neither the source nor the reader has changed since."""

    def __init__(self, root: Path, cache: Path | None) -> None:
        code = (Path(__file__).with_name("facts.py")).read_bytes()
        self._version = hashlib.sha256(code).hexdigest()
        self._cache = cache
        self._known: dict[tuple[str, str, int, int], bytes] = {}
        if cache is not None and cache.exists():
            version, known = pickle.loads(cache.read_bytes())
            self._known = known if version == self._version else {}
        self._seen: dict[tuple[str, str, int, int], bytes] = {}

    def read(self, path: Path, module: str, methods: bool) -> Facts:
        state = path.stat()
        key = (str(path), module, state.st_mtime_ns, state.st_size)
        if key not in self._known:
            self._known[key] = pickle.dumps(read_facts(path, module, methods=methods))
        self._seen[key] = self._known[key]
        facts: Facts = pickle.loads(self._known[key])
        return facts

    def save(self) -> None:
        if self._cache is not None:
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            staging = self._cache.with_name(f"{self._cache.name}.{os.getpid()}")
            staging.write_bytes(pickle.dumps((self._version, self._seen)))
            staging.replace(self._cache)  # two tests may write it at once


# ---- tests -----------------------------------------------------------------------------------------------------------


class _TestFiles:
    """Finds the file that an import in a file outside of Frog means."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files
        self._in_tests: defaultdict[str, list[str]] = defaultdict(list)
        for path in files:
            if path.startswith("tests/"):
                self._in_tests[path.rpartition("/")[2]].append(path)

    def find(self, module: str, words: list[str]) -> str | None:
        """Return a file next to the importing one, in a folder above, or with a unique name in `tests`."""
        if words[0] == "frog":
            return None
        folder = module.rpartition("/")[0]
        while True:
            for end in (".py", "/__init__.py"):
                if (path := "/".join([*filter(None, [folder]), *words]) + end) in self._files:
                    return path
            if not folder:
                break
            folder = folder.rpartition("/")[0]
        found = self._in_tests.get(f"{words[0]}.py", [])
        return found[0] if module.startswith("tests/") and len(words) == 1 and len(found) == 1 else None


def _rename_imports(module: str, facts: Facts, files: _TestFiles) -> None:
    """Replace the names of other files outside of Frog in a file's imports by their paths."""
    for part in facts.parts.values():
        for name, target in part.imports.items():
            words = target.split(".")
            for count in range(len(words), 0, -1):
                if found := files.find(module, words[:count]):
                    part.imports[name] = ".".join([found, *words[count:]])
                    break


def _add_tests(project: Project) -> None:
    """Add the edges that only tests have: fixtures, methods of the harness, words of commands, programs next to it."""
    graph = project.graph
    helpers = {module for module in graph.files if module.startswith("tests/") and module not in project.tests}
    methods = {(module, name) for module in helpers for name in graph.facts[module].parts if "." in name}
    by_name: defaultdict[str, set[str]] = defaultdict(set)
    for module in helpers:
        if not module.endswith(("__init__.py", "conftest.py")):
            by_name[module.rpartition("/")[2]].add(module)
    starting = _starting(graph, {*project.tests, *helpers})
    for module in (*project.tests, *helpers):
        facts = graph.facts[module]
        conftests = _conftests_of(module, graph.files)
        if _may_run_any_command(graph, module):
            graph.uses[f"{module}:{ALL}"] |= {f"command:{command}" for command in graph.commands}
        known = facts.whole.names | {name for part in facts.parts.values() for name in part.imports}
        of_classes = {
            (helper, name)
            for helper, name in methods
            if (owner := name.partition(".")[0]) in known
            or helper == module
            or (owner.lower() in known and module.startswith(helper.rpartition("/")[0]))
        }
        for name, part in facts.parts.items():
            uses = graph.uses[f"{module}:{name}"]
            for conftest in conftests:
                parts = graph.facts[conftest].parts
                mentioned = part.names | part.strings | graph.facts[conftest].always
                uses |= {f"{conftest}:{fixture}" for fixture in parts if fixture in mentioned}
            uses |= {f"{helper}:{method}" for helper, method in of_classes if method.split(".")[1] in part.attributes}
            if module in starting and PAGE_CASES not in facts.whole.attributes:  # its words are those of the pages
                uses |= {f"command:{command}" for command in typed_commands(part, graph.commands)}
            for text in (*part.strings, *part.paths):
                base = text.rpartition("/")[2]
                if base in by_name:
                    uses |= {f"{helper}:{ALL}" for helper in _nearest(module, by_name[base])}


_STARTERS = {"subprocess", "Popen", "Harness", "harness", "warm_env", "cold_env", "execv", "pty"}
"""Names that a file mentions if it starts programs."""


def _starting(graph: Graph, modules: set[str]) -> set[str]:
    """Return the files of tests that can start a command of Frog, themselves or through the files that they import."""
    imports: defaultdict[str, set[str]] = defaultdict(set)
    found = set()
    for module in modules:
        whole = graph.facts[module].whole
        targets = set(whole.imports.values())
        names = whole.names | {name for target in targets for name in target.split(".")}
        if names & _STARTERS or any(target.startswith(CLI) for target in targets):
            found.add(module)
        for target in targets:
            if (other := target.partition(".py")[0] + ".py") in modules:
                imports[other].add(module)
    return set(closure(imports, found))


def _may_run_any_command(graph: Graph, module: str) -> bool:
    """True if a file uses the table of commands, or starts commands that it does not name."""
    whole = graph.facts[module].whole
    of_cli = {target for target in whole.imports.values() if target.startswith((CLI, "frog.core.commands"))}
    return bool(of_cli) and (of_cli != {f"{CLI}.main"} or not typed_commands(whole, graph.commands))


def _conftests_of(module: str, files: dict[str, Path]) -> list[str]:
    folders = module.split("/")[:-1]
    paths = ["/".join([*folders[:count], "conftest.py"]) for count in range(1, len(folders) + 1)]
    return [path for path in paths if path in files and path != module]


def _nearest(module: str, found: set[str]) -> set[str]:
    """Return the files in the same folder, or all."""
    folder = module.rpartition("/")[0]
    return {one for one in found if one.rpartition("/")[0] == folder} or found


# ---- other files -----------------------------------------------------------------------------------------------------


def _add_files_of_packages(project: Project) -> None:
    """Give files of Frog that nothing imports to the parts that name them, or else to their package.

    These are data files, such as templates and tables, and programs that Frog starts by their path. A data file also
    uses the commands and modules in its text. Its node is its path.
    """
    graph, source = project.graph, project.root / "src"
    targets = {target.partition(":")[0] for node, used in graph.uses.items() for target in used
               if target.partition(":")[0] != node.partition(":")[0]}  # fmt: skip
    by_path = {path: module for module, path in graph.files.items()}
    for path in sorted((source / "frog").rglob("*")):
        module = by_path.get(path)
        if not path.is_file() or "__pycache__" in path.parts or module in targets:
            continue
        if path.name in ("__init__.py", "README.md"):
            continue
        node = f"{module}:{ALL}" if module else path.relative_to(project.root).as_posix()
        if module is None and path.suffix != ".md":
            text = path.read_bytes().decode(errors="replace")
            for command, named in _COMMAND.findall(text):
                if command in graph.commands:
                    graph.uses[node].add(f"command:{command}")
                if named in graph.files:
                    graph.uses[node].add(f"{named}:{ALL}")
        for owner in _owners(graph, path, source, module):
            graph.uses[owner].add(node)


def _owners(graph: Graph, path: Path, source: Path, module: str | None) -> set[str]:
    """Return the parts in the nearest package that name a file or one of its folders; the package if none does."""
    inside: set[str] = set()
    for folder in path.parents:
        if folder == source / "frog":
            break
        package = ".".join(folder.relative_to(source).parts)
        inside = {one for one in graph.files if one.startswith(f"{package}.") or one == package} - {module}
        words = {*path.relative_to(folder).parts, path.stem}
        found = {
            f"{one}:{name}"
            for one in inside
            for name, part in graph.facts[one].parts.items()
            if any(word in words for text in (*part.strings, *part.paths) for word in re.split(r"[/:]", text))
        }
        if found:
            return found
        if inside and module is None:
            break
    return {f"{one}:{ALL}" for one in inside}


def _add_programs(project: Project) -> None:
    """Add the edges from what names a program or its folder, `scripts/say_hello.py`, to that program."""
    graph = project.graph
    starting = _starting(graph, {module for module in graph.files if module.startswith("tests/")})
    by_name: defaultdict[str, set[str]] = defaultdict(set)
    for path in graph.files:
        if path.startswith(PROGRAMS) or (path.endswith(".py") and "/" not in path):
            words = path.split("/")
            for count in range(1, len(words)):
                by_name["/".join(words[:count])].add(path)
                by_name["/".join(words[count:])].add(path)
            by_name[path].add(path)
    for module, facts in graph.facts.items():
        if module.startswith(CHOOSERS):
            continue
        if module in starting | by_name.keys() and PAGE_CASES not in facts.whole.attributes:
            for name, part in facts.parts.items():
                for text in (*part.words, *part.paths):
                    found = by_name.get(text.removeprefix("{}/"), set()) - {module}
                    graph.uses[f"{module}:{name}"] |= {f"{path}:{ALL}" for path in found}


def _add_exercises(project: Project) -> None:
    """Add a node per exercise, which uses all its Python files, and let tests that name an exercise use these too."""
    graph = project.graph
    by_name: defaultdict[str, set[str]] = defaultdict(set)
    for manifest in sorted(project.root.glob("labs/lab*/*/manifest.toml")):
        node = manifest.parent.relative_to(project.root).as_posix()
        project.exercises[node.removeprefix("labs/")] = node
        inside = {f"{module}:{ALL}" for module in graph.files if module.startswith(f"{node}/")}
        graph.uses[node] |= inside | _case_tests(project, EXERCISE_CASES)
        by_name[manifest.parent.name] |= inside
    for test in project.tests:
        for name, part in graph.facts[test].parts.items():
            for text in (*part.strings, *part.paths):
                for folder in _EXERCISE.findall(text):
                    graph.uses[f"{test}:{name}"] |= by_name.get(folder, set())


def _case_tests(project: Project, mark: str) -> set[str]:
    """Return the tests that have a mark."""
    return {
        f"{module}:{name}"
        for module in project.tests
        for name, part in project.graph.facts[module].parts.items()
        if mark in part.attributes
    }


def _add_pages(project: Project) -> None:
    """Add a node per page with commands, which uses those commands and the programs and files that they name."""
    graph, root = project.graph, project.root
    for path in sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")]):
        text = path.read_text()
        _add_examples(project, path.relative_to(root).as_posix(), "\n".join(_PYTHON.findall(text)))
        typed = "\n".join(_CONSOLE.findall(text))
        if not re.search(r"^\$ ", typed, re.MULTILINE):
            continue
        page = path.relative_to(root).as_posix()
        project.pages.append(page)
        graph.uses[page] |= _case_tests(project, PAGE_CASES)
        for command, named in _COMMAND.findall(typed):
            if command in graph.commands:
                graph.uses[page].add(f"command:{command}")
            if named in graph.files:
                graph.uses[page].add(f"{named}:{ALL}")
        _add_named_files(project, page, typed)
    for path in sorted((root / "config").rglob("*")):  # a run file names its model, a job file the run file
        if path.suffix in (".toml", ".json", ".sbatch", ".sh", ".yaml"):
            _add_named_files(project, path.relative_to(root).as_posix(), path.read_text())


def _add_benchmarks(project: Project) -> None:
    """Add a node per program in `benchmarks`, and the edges to the commands that may be a part's words.

    The test that runs all of them, and the table of them, are not uses of each.
    """
    graph = project.graph
    for path in sorted(path for path in graph.files if path.startswith("benchmarks/")):
        parts, name = graph.facts[path].parts, path.removeprefix("benchmarks/")
        for part, facts in parts.items():
            commands = typed_commands(facts, graph.commands)
            graph.uses[f"{path}:{part}"] |= {f"command:{command}" for command in commands}
        if "/" not in name and path != BENCHMARKS_TABLE and "main" in parts:
            project.benchmarks[name] = f"benchmark:{name}"
            graph.uses[f"benchmark:{name}"].add(f"{path}:{ALL}")


def _add_named_files(project: Project, node: str, text: str) -> None:
    """Add the edges from a page or file to the programs and files that its text names."""
    for name in _PROGRAM.findall(text):
        beside = f"{node.rpartition('/')[0]}/{name}"
        if name in project.graph.files:
            project.graph.uses[node].add(f"{name}:{ALL}")
        elif name != node:
            project.graph.uses[node] |= {one for one in (name, beside) if (project.root / one).is_file()}


def _add_examples(project: Project, page: str, code: str) -> None:
    """Add the edges from tests that name a page to the modules that the page's examples in Python import."""
    graph = project.graph
    modules = {module for module in _IMPORTED.findall(code) if module in graph.files}
    if not modules:
        return
    for test in project.tests:
        for name, part in graph.facts[test].parts.items():
            if any(
                text.endswith(".md") and page.endswith(text.removeprefix("{}/")) for text in (*part.words, *part.paths)
            ):
                graph.uses[f"{test}:{name}"] |= {f"{module}:{ALL}" for module in modules}
