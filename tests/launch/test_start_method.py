"""The start method of ranks: Frog's own programs are forked; its scripts only with FROG_START=fork, others never."""

from __future__ import annotations

import sys

import pytest
from harness import Harness

SCRIPT = """
import os
from pathlib import Path
forked = "torchrun" in Path("/proc/self/cmdline").read_text()
words = "is forked" if forked else "is a new program"
os.write(1, f"{os.environ['RANK']} {words}\\n".encode())  # in one piece: both ranks write here
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ranks are forked only on Linux")
@pytest.mark.parametrize(("method", "words"), [("", "is a new program"), ("fork", "is forked")])
def test_script_of_frog_is_forked_only_on_request(harness: Harness, method: str, words: str) -> None:
    (harness.root / "who.py").write_text(f"import frog.core.env\n{SCRIPT}")
    done = harness.run("frog", "run", "--nproc", "2", "--", "who.py", env={"FROG_START": method}, warm=False)
    assert sorted(done.stdout.splitlines()) == [f"0 {words}", f"1 {words}"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ranks are forked only on Linux")
def test_other_script_is_never_forked(harness: Harness) -> None:
    (harness.root / "other.py").write_text(SCRIPT)
    done = harness.run("frog", "run", "--nproc", "1", "--", "other.py", env={"FROG_START": "fork"})
    assert done.stdout == "rank 0 | 0 is a new program\n"
