"""`tools.ci.run_tests` on small folders of tests: which failures are final, which are flaky, and the exit codes."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from tools.ci.run_tests import Outcome, closing_lines, run_all, run_session

ROOT = Path(__file__).parents[3]
SETTINGS = "[tool.pytest.ini_options]\nmarkers = ['slow', 'alone', 'exercise_cases', 'benchmark_cases']\n"
UNLUCKY = """
    import subprocess, sys
    from pathlib import Path
    import pytest

    def first_time(name):
        path = Path(__file__).with_name(name)
        path.write_text(path.read_text() + "x" if path.exists() else "x")
        return path.read_text() == "x"

    @pytest.fixture(scope="module")
    def world():
        subprocess.run([sys.executable, "-S", "-c", ""])

    def test_shares_a_world(world):
        assert not first_time("world")

    @pytest.mark.parametrize("case", ["a b"])
    def test_starts_a_process(case):
        subprocess.run([sys.executable, "-S", "-c", ""])
        assert not first_time("process")

    @pytest.mark.alone
    def test_alone():
        assert not first_time("alone")
"""
FINAL = """
    def test_without_a_process():
        assert not first_time("unit")

    def test_process_fails_twice():
        subprocess.run([sys.executable, "-S", "-c", ""])
        assert False

    def test_passes(): pass
"""


def outcome_of(root: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], workers: str = "0") -> Outcome:
    """Run the tests in these files."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    (root / "pyproject.toml").write_text(SETTINGS)
    for name, text in files.items():
        (root / name).write_text(textwrap.dedent(text))
    return run_all(root, workers, [])


@pytest.mark.slow
def test_process_test_that_passes_the_second_time_is_flaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = outcome_of(tmp_path, monkeypatch, {"test_unlucky.py": UNLUCKY})
    names = ["test_shares_a_world", "test_starts_a_process[a b]", "test_alone"]
    assert outcome.flaky == [f"test_unlucky.py::{name}" for name in names]
    assert (outcome.exit_code, outcome.failed) == (0, {})
    page = "| test | seen | cause |\n|---|---|---|\n| `tests/a.py::test_b` | 2026-11-28 | a port |\n"
    assert closing_lines(outcome, page)[-1] == (
        "flaky: test_unlucky.py::test_alone (add it to docs/development/flaky.md with its cause)"
    )
    outcome.flaky = ["tests/a.py::test_b[1]"]
    assert closing_lines(outcome, page) == ["flaky: tests/a.py::test_b[1] (listed)"]


@pytest.mark.slow
def test_unit_test_runs_once_and_its_failure_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = outcome_of(tmp_path, monkeypatch, {"test_both.py": UNLUCKY + FINAL})
    assert outcome.failed == {
        "test_both.py::test_without_a_process": False,
        "test_both.py::test_process_fails_twice": True,
    }
    assert (tmp_path / "unit").read_text() == "x"
    assert len(outcome.flaky) == 3
    assert outcome.exit_code == 1
    assert "failed: test_both.py::test_without_a_process" in closing_lines(outcome, "")


@pytest.mark.slow
def test_crashed_worker_is_a_final_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash = "import os\ndef test_crash():\n    os.fork() or os._exit(0)\n    os._exit(3)\n"
    outcome = outcome_of(
        tmp_path, monkeypatch, {"test_crash.py": crash, "test_a.py": "def test_a(): pass"}, workers="1"
    )
    assert outcome.failed == {"test_crash.py::test_crash": False}
    assert (outcome.exit_code, outcome.flaky) == (1, [])


def test_file_that_cannot_be_imported_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = outcome_of(
        tmp_path, monkeypatch, {"test_wrong.py": "import no_such_module", "test_a.py": "def test_a(): pass"}
    )
    assert outcome.exit_code == 2
    assert "test_wrong.py" in outcome.failed


@pytest.mark.slow
def test_many_failures_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
        import pytest
        from pathlib import Path

        @pytest.mark.slow
        @pytest.mark.parametrize("n", range(11))
        def test_a(n):
            path = Path(__file__).with_name(str(n))
            assert path.exists() or path.touch()
    """
    outcome = outcome_of(tmp_path, monkeypatch, {"test_many.py": text})
    assert (len(outcome.failed), outcome.flaky, outcome.exit_code) == (11, [], 1)


CHOICES = """
    import pytest

    def test_fast(): pass

    @pytest.mark.slow
    def test_slow(): pass

    @pytest.mark.slow
    @pytest.mark.exercise_cases
    @pytest.mark.parametrize("name", ["lab1/01_a", "lab1/02_b", "lab1/03_c"])
    def test_exercise(name): pass

    @pytest.mark.slow
    @pytest.mark.benchmark_cases
    @pytest.mark.parametrize("script", ["chaos.py", "planner.py"])
    def test_benchmark(script): pass
"""


IN_BOTH = [f"test_{name}.py::test_exercise[lab1/{case}]" for name in ("one", "two") for case in ("02_b", "03_c")]
IN_BOTH += [f"test_{name}.py::test_benchmark[planner.py]" for name in ("one", "two")]
IN_ONE = ["test_one.py::test_fast", "test_one.py::test_slow"]


@pytest.mark.parametrize(
    ("all_fast", "expected"), [(False, IN_BOTH + IN_ONE), (True, [*IN_BOTH, *IN_ONE, "test_two.py::test_fast"])]
)
def test_selection_runs_its_files_and_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_fast: bool, expected: list[str]
) -> None:
    selection = {
        "files": {"test_one.py": "changed"},
        "cases": {"lab1/02_b": "", "planner.py": ""},
        "drawn": ["lab1/03_c"],
    }
    file = tmp_path / "selection.json"
    file.write_text(json.dumps({**selection, "everything": None, "all_fast": all_fast}))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(textwrap.dedent(CHOICES))
    results = run_session(tmp_path, ["-p", "tools.ci.selecting", "--affected", str(file)])
    assert sorted(results.passed) == sorted(expected)
    assert results.exit_code == 0
