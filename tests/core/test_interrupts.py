"""Ctrl-C while a command is loading."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from harness import LIMIT_S

_INTERRUPTED = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv = ["frog", "runs"]
from frog.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("frog.observe.view.view_commands", -signal.SIGINT),
        ("argparse", -signal.SIGINT),
        ("frog.observe.view.runs", 130),
    ],
)
def test_interrupt_while_a_command_loads_prints_nothing(module: str, code: int) -> None:
    command = [sys.executable, "-c", _INTERRUPTED.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (code, "")
