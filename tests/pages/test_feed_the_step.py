"""The tutorial script about a data loader that starves the training step."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from harness import LIMIT_S
from page_harness import SCRIPTS


def feed(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / "feed_the_step.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.mark.slow
def test_without_workers_a_step_waits_for_every_read_of_its_batch() -> None:
    done = feed("--workers", "0", "--read-ms", "2", "--batch-size", "5", "--steps", "3")
    waited = re.search(r"waits ([\d.]+) ms", done.stdout)
    assert waited, done.stderr
    assert float(waited[1]) >= 10, "five sequential reads of 2 ms: a sleep never takes less"


def test_empty_batch_is_refused_before_anything_starts() -> None:
    done = feed("--batch-size", "0")
    assert done.returncode == 2
    assert "--batch-size at least 1" in done.stderr
    assert "Traceback" not in done.stderr
