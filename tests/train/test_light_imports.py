"""A command imports what it runs: other strategies, LoRA, elastic worlds and rules for other programs stay on disk."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from harness import LIMIT_S, Harness

RANK = """
import os, sys
from pathlib import Path
from frog.train.main import main
code = main(["run.toml", "--set", "name=light", "--set", "train.steps=2"])
Path(f"modules.{os.environ['RANK']}").write_text("\\n".join(sys.modules))
sys.exit(code)
"""

COMMAND = """
import sys
from frog.cli import main
code = main(sys.argv[1:])
print("\\n" + "\\n".join(sys.modules), file=sys.stderr)
sys.exit(code)
"""

UNUSED = tuple(
    f"frog.{name}"
    for name in (
        "core.config.finetune",
        *(f"train.comm.{name}" for name in ("collectives", "elastic", "process_group")),
        *(f"train.model.{name}" for name in ("adapter", "lora")),
        *(f"train.parallel.{name}" for name in ("model", "own", "schedules", "torch_impl")),
        *(f"train.parallel.data.{name}" for name in ("diloco", "zero1", "zero2", "zero3")),
        *("train.elastic", "train.finetune"),
    )
)
"""Packages and modules that ddp on gloo does not need."""


@pytest.fixture(scope="module")
def trained(harness: Harness) -> Harness:
    """Train two steps with ddp on two ranks, which write down what they have imported."""
    (harness.root / "light.py").write_text(RANK)
    harness.run("torchrun", "--standalone", "--nproc_per_node=2", "light.py", warm=False)
    return harness


def test_names_of_unused_modules_exist() -> None:
    assert [name for name in UNUSED if importlib.util.find_spec(name) is None] == []


@pytest.mark.slow
def test_training_with_ddp_imports_no_other_strategy(trained: Harness) -> None:
    for rank in (0, 1):
        modules = (trained.root / f"modules.{rank}").read_text().splitlines()
        assert "frog.train.parallel.data.ddp" in modules
        assert [name for name in modules if name.startswith(UNUSED)] == []


def test_diagnosis_of_an_own_run_imports_no_rule_for_other_programs(trained: Harness) -> None:
    line = [sys.executable, "-c", COMMAND, "diagnose", "light"]
    done = subprocess.run(line, cwd=trained.root, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert "healthy: 2 steps by 2 ranks" in done.stdout
    modules = done.stderr.splitlines()
    assert "frog.observe.diagnose.run_diagnosis" in modules
    assert [
        name
        for name in modules
        if name.startswith(("frog.observe.diagnose.program", "frog.observe.diagnose.known_errors"))
    ] == []


def test_diagnosis_of_another_program_imports_no_rule_for_own_runs(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("RuntimeError: Address already in use\n")
    line = [sys.executable, "-c", COMMAND, "diagnose", "job.log"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    modules = done.stderr.splitlines()
    assert "frog.observe.diagnose.program.program_diagnosis" in modules
    assert "frog.observe.diagnose.run_diagnosis" not in modules


def test_reading_a_run_file_does_not_import_the_records_of_runs() -> None:
    code = (
        "import sys, frog.core.config.load; print([name for name in sys.modules if name.startswith('frog.core.runs')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout == "[]\n"
