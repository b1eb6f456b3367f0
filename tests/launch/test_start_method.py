"""Who is forked: Frog's own programs; scripts are new programs, unless they are asked to be forked too."""

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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ranks are forked on Linux alone")
@pytest.mark.parametrize(("method", "words"), [("", "is a new program"), ("fork", "is forked")])
def test_a_script(harness: Harness, method: str, words: str) -> None:
    (harness.root / "who.py").write_text(SCRIPT)
    done = harness.run("frog", "run", "--nproc", "2", "--", "who.py", env={"FROG_START": method})
    assert sorted(done.stdout.splitlines()) == [f"0 {words}", f"1 {words}"]


def test_a_method_that_there_is_not(harness: Harness) -> None:
    done = harness.run("frog", "run", "--nproc", "1", "--", "run.toml", env={"FROG_START": "clone"}, code=2)
    assert "FROG_START=clone: expected fork or spawn" in done.stderr
    assert "Traceback" not in done.stderr
