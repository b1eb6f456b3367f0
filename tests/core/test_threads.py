"""How torch's threads wait for each other: Frog sets this before torch loads, unless the user has chosen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import LIMIT_S

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.py") if "\nimport torch\n" in path.read_text())

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="another OpenMP library, with other output")


def spin_count(program: str, **chosen: str) -> int:
    """Return how often a waiting thread polls before it sleeps, as the OpenMP library reports it."""
    left_out = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    env |= {"OMP_DISPLAY_ENV": "verbose", **chosen}
    command = [sys.executable, str(ROOT / program), "--help"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    found = re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    assert found, done.stderr
    return int(found[1])


@pytest.mark.parametrize(
    "program", ["train.py", *(pytest.param(f"scripts/{name}", marks=pytest.mark.slow) for name in SCRIPTS)]
)
def test_waiting_thread_sleeps_immediately(program: str) -> None:
    assert spin_count(program) == 0


@pytest.mark.slow
def test_threads_keep_the_users_choice() -> None:
    assert spin_count("train.py", OMP_WAIT_POLICY="active") > 0
    assert spin_count("scripts/train_tiny_transformer.py", GOMP_SPINCOUNT="900") == 900
