"""Which tests of a small project a changed file reaches, rule by rule."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tools.affected.project import Project, read_project
from tools.affected.selection import draw_tenth, reached

FILES = {
    "src/frog/__init__.py": "__version__ = '1'",
    "src/frog/cli.py": """
        def main(words):
            return adder(words[0])
        def adder(command):
            match command:
                case "plan":
                    from frog.plan.command import add_plan as add
                case "train":
                    return add_train
                case _:
                    from frog.docs import add_docs as add
            return add
        def add_train():
            from frog.train.loop import run
            return run
        """,
    "src/frog/core/commands.py": """
        EXAMPLES = {"plan": "frog plan 8", "train": "frog train run.toml", "docs": "frog docs"}
        """,
    "src/frog/docs.py": "def add_docs(): pass",
    "src/frog/plan/__init__.py": "",
    "src/frog/plan/command.py": """
        def add_plan():
            from frog.plan.memory import bytes_of
            return bytes_of
        """,
    "src/frog/plan/memory.py": """
        from frog.plan.gpus import TABLE
        def bytes_of(): return TABLE
        def other(): from frog.train.unused import nothing
        """,
    "src/frog/plan/gpus.py": 'from pathlib import Path\nTABLE = (Path(__file__).parent / "gpus.toml").read_text',
    "src/frog/plan/gpus.toml": "",
    "src/frog/plan/words.toml": 'run = "frog train run.toml"',
    "src/frog/plan/alone.py": 'def words(): return "words.toml"',
    "src/frog/plan/example.py": "def two(): return 2",
    "src/frog/train/__init__.py": """
        from importlib import import_module
        _MODULES = {"run": "loop"}
        def __getattr__(name): return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        """,
    "src/frog/train/loop.py": """
        import sys
        from frog.train.strategies import STRATEGIES
        from importlib import import_module
        def run(name): return import_module(STRATEGIES[name]).build()
        def start(): return [sys.executable, "-m", "frog.train.rank"]
        """,
    "src/frog/train/strategies.py": 'STRATEGIES = {"ddp": "frog.train.ddp"}\ndef names(): return list(STRATEGIES)',
    "src/frog/train/ddp.py": "def build(): pass",
    "src/frog/train/rank.py": "def rank(): pass",
    "src/frog/train/unused.py": "def nothing(): pass",
    "src/frog/observe/__init__.py": "",
    "src/frog/observe/hook/__init__.py": "",
    "src/frog/observe/hook/frog_pond/__init__.py": "def install():\n    from . import depth\n    depth.start()",
    "src/frog/observe/hook/frog_pond/depth.py": "def start(): pass",
    "src/frog/observe/environment.py": 'POND = "frog_pond"\ndef environment(): return {"FROG_HOOKS": POND}',
    "tests/conftest.py": """
        import pytest
        from harness import Harness
        @pytest.fixture
        def harness(): return Harness()
        """,
    "tests/harness.py": """
        import subprocess
        from pathlib import Path
        ROOT = Path(__file__).parents[1]
        class Harness:
            def run(self, *words): subprocess.run(words)
            def train(self): self.run("frog", "train", "run.toml")
        """,
    "tests/test_memory.py": "from frog.plan.memory import bytes_of\ndef test_a(): bytes_of()",
    "tests/test_names.py": "from frog.train.strategies import names\ndef test_a(): names()",
    "tests/test_loop.py": "from frog.train import run\ndef test_a(): run('ddp')",
    "tests/test_start.py": "from frog.train.loop import start\ndef test_a(): start()",
    "tests/test_words.py": "from frog.plan.alone import words\ndef test_a(): words()",
    "tests/test_plan_command.py": "from frog.cli import main\ndef test_a(): main(['plan', '8'])",
    "tests/test_docs_command.py": "def test_a(harness): harness.run('frog', 'docs')",
    "tests/test_train_command.py": "from harness import Harness\ndef test_a(harness: Harness): harness.train()",
    "tests/test_page.py": 'from pathlib import Path\ndef test_a(): (Path() / "docs" / "plan.md").read_text()',
    "tests/test_wild.py": 'from pathlib import Path\ndef test_a(): Path(__file__).with_name("wild.toml").read_text()',
    "tests/wild.toml": "",
    "tests/test_hooks.py": "from frog.observe.environment import environment\ndef test_a(): environment()",
    "tests/e2e/test_pages.py": """
        import pytest
        PAGES = []
        @pytest.mark.slow
        @pytest.mark.page_cases
        @pytest.mark.parametrize("page", PAGES)
        def test_commands(page): (PAGES / "config").read_text(), (PAGES / "README.md").read_text()
        """,
    "tests/test_benchmarks.py": """
        import pytest
        from pathlib import Path
        BENCHMARKS = [path.name for path in (Path() / "benchmarks").glob("*.py")]
        @pytest.mark.slow
        @pytest.mark.benchmark_cases
        @pytest.mark.parametrize("script", BENCHMARKS)
        def test_benchmark(script): pass
        """,
    "benchmarks/run.py": 'TABLE = {"memory": "memory.py", "trained": "trained.py"}\ndef main(): pass',
    "benchmarks/memory.py": "from frog.plan.memory import bytes_of\ndef main(): bytes_of()",
    "benchmarks/trained.py": "from trained_words import WORDS\ndef main(): return WORDS",
    "benchmarks/trained_words.py": 'WORDS = ["frog", "train"]',
    "benchmarks/loop.py": 'import subprocess\ndef main(): subprocess.run(["frog", "train", "run.toml"])',
    "tests/test_root_pages.py": 'from harness import ROOT\ndef test_a(): list(ROOT.glob("*.md"))',
    "tests/test_own_pages.py": """
        from harness import ROOT
        def test_a(tmp_path): ROOT, list(tmp_path.glob("*.py")), (tmp_path / "README.md"), (tmp_path / "model.json")
        """,
    "tests/test_keys.py": 'def test_a(run): assert run["config"]["labs"] == {"config": 1}',
    "tests/test_run_files.py": 'from harness import ROOT\ndef test_a(): sorted((ROOT / "config").glob("*.toml"))',
    "tests/test_rooms.py": 'from harness import ROOT\ndef test_a(): list((ROOT / "src/frog").glob("*/README.md"))',
    "CHANGELOG.md": "",
    "src/frog/plan/README.md": "",
    "src/frog/train/README.md": "",
    "config/run.toml": "[model]\nconfig = 'model.json'",
    "config/model.json": "{}",
    "config/alone.py": "",
    "docs/run.md": "```console\n$ frog train config/run.toml\n```\n",
    "docs/plan.md": "```console\n$ frog plan 8\n```\n```python\nfrom frog.plan.example import two\n```\n",
    "docs/train.md": "```console\n$ frog train run.toml\n```\n",
    "labs/lab1/01_first/manifest.toml": "",
    "labs/lab1/01_first/check.py": "from frog.plan.memory import bytes_of\ndef check(): bytes_of()",
    "labs/lab1/02_second/manifest.toml": "",
    "labs/lab1/02_second/check.py": "",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return read_project(root)


FIRST, SECOND = "lab1/01_first", "lab1/02_second"
PLAN = {"test_memory", "test_plan_command", FIRST, "docs/plan.md", "memory.py"}
TRAIN = {"test_train_command", "docs/train.md", "docs/run.md", "test_words", "loop.py", "trained.py"}
BENCHMARKS = {"memory.py", "trained.py", "loop.py"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("src/frog/plan/memory.py", PLAN),
        ("src/frog/plan/gpus.toml", PLAN),
        ("src/frog/plan/command.py", {"test_plan_command", "docs/plan.md"}),
        ("src/frog/plan/alone.py", {"test_words"}),
        ("src/frog/plan/words.toml", {"test_words"}),
        ("src/frog/train/unused.py", set()),
        ("src/frog/train/strategies.py", {"test_names", "test_loop", *TRAIN}),
        ("src/frog/train/ddp.py", {"test_loop", *TRAIN}),
        ("src/frog/train/rank.py", {"test_start"}),
        ("src/frog/docs.py", {"test_docs_command"}),
        ("src/frog/observe/hook/frog_pond/depth.py", {"test_hooks"}),
        ("docs/plan.md", {"test_page", "docs/plan.md", "test_docs_command"}),  # "docs" could also be the folder
        ("src/frog/plan/example.py", {"test_page"}),
        ("tests/wild.toml", {"test_wild"}),
        ("tests/test_memory.py", {"test_memory"}),
        ("labs/lab1/02_second/check.py", {SECOND}),
        ("labs/lab1/02_second/wrong/other.py", {SECOND}),
        ("LICENSE", set()),
        ("CHANGELOG.md", {"test_root_pages"}),
        ("src/frog/plan/README.md", {"test_rooms"}),
        ("config/run.toml", {"test_run_files", "docs/run.md", "test_train_command", "loop.py"}),
        ("config/model.json", {"test_run_files", "docs/run.md", "test_own_pages"}),  # no other file has its name
        ("config/alone.py", {"test_run_files"}),
        ("benchmarks/memory.py", {"memory.py", "test_benchmarks"}),
        ("benchmarks/trained_words.py", {"trained.py", "test_benchmarks"}),
        ("benchmarks/run.py", {*BENCHMARKS, "test_benchmarks"}),
        ("tests/test_benchmarks.py", {*BENCHMARKS, "test_benchmarks"}),
    ],
)
def test_changed_file_reaches_the_tests_that_use_it(project: Project, changed: str, expected: set[str]) -> None:
    selection = reached(project, [changed])
    assert selection.everything is None
    files = {Path(file).stem for file in selection.files}
    assert files | selection.cases.keys() == expected


@pytest.mark.parametrize(
    "changed", ["src/frog/core/files.py", "pyproject.toml", "tests/harness.py", "tests/conftest.py", "a/new/file.txt"]
)
def test_shared_or_unknown_file_reaches_everything(project: Project, changed: str) -> None:
    selection = reached(project, [changed])
    assert selection.everything is not None
    assert changed in selection.everything
    assert selection.files.keys() == set(project.tests)
    assert selection.cases.keys() == {FIRST, SECOND, *project.pages, *BENCHMARKS}


def test_deleted_module_reaches_the_users_of_its_package(project: Project) -> None:
    assert "tests/test_memory.py" in reached(project, ["src/frog/plan/deleted.py"]).files


def test_reason_names_the_file_and_the_uses_between(project: Project) -> None:
    files = reached(project, ["src/frog/plan/gpus.py"]).files
    uses = "used by frog.plan.memory, used by frog.plan.command, used by frog plan"
    assert files["tests/test_plan_command.py"].startswith(f"src/frog/plan/gpus.py changed, {uses}")


def test_tenth_of_the_rest_changes_with_the_commit(project: Project) -> None:
    draws = []
    for commit in map(str, range(200)):
        selection = reached(project, ["src/frog/plan/memory.py"])
        draw_tenth(project, selection, commit)
        assert not set(selection.drawn) & (selection.files.keys() | selection.cases.keys())
        draws.append(selection.drawn)
    num_left = len(project.tests) + len(project.cases) - len(PLAN)
    assert len({name for drawn in draws for name in drawn}) == num_left
    assert 0.5 < sum(map(len, draws)) / len(draws) / (num_left / 10) < 1.5
