"""The path of a step: the files to open to follow `frog train` to the optimizer step, with ddp."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from harness import Harness

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).parent / "path_worker.py"
MOST_FILES = 9


@pytest.fixture(scope="module")
def path(harness: Harness) -> dict[str, list[str]]:
    """Return the files that lead to each action of a step, in call order."""
    harness.run("frog", "run", "--nproc", "2", "--threads", "1", "--", str(WORKER), "path")
    one, other = (json.loads((harness.root / f"path-{rank}.json").read_text()) for rank in range(2))
    assert one == other
    found: dict[str, list[str]] = one
    return found


def test_training_step_follows_frog_order(path: dict[str, list[str]]) -> None:
    assert list(path) == ["forward", "reduce", "optimize", "zero"]


def test_step_path_has_at_most_nine_files(path: dict[str, list[str]]) -> None:
    files = list(dict.fromkeys(file for action in path.values() for file in action))
    assert len(files) <= MOST_FILES, files
    assert all(file.startswith(("cli.py", "train/", "parallel/", "model/", "comm/", "optim/")) for file in files)


def test_architecture_page_lists_the_step_path(path: dict[str, list[str]]) -> None:
    section = (
        (ROOT / "docs" / "architecture.md").read_text().partition("## The path of a step\n")[2].partition("\n## ")[0]
    )
    listed = re.findall(r"^\| `src/frog/([\w/]+\.py)` \|", section, re.MULTILINE)
    assert set(listed) == {file for action in path.values() for file in action}


def test_training_loop_mentions_neither_elastic_training_nor_faults() -> None:
    loop = (ROOT / "src" / "frog" / "train" / "loop.py").read_text()
    assert re.findall(r"elastic|membership|survive|fault|inject|chaos", loop) == []


def test_training_files_do_not_mention_fault_injection() -> None:
    folder = ROOT / "src" / "frog" / "train"
    named = {
        path.name: re.findall(r"chaos|inject|\bFault|frog\.config\.fault", path.read_text())
        for path in folder.rglob("*.py")
    }
    assert {name for name, words in named.items() if words} == set()
