"""The demo at a real terminal: keys typed during a step do not start the next one."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import LIMIT_S

PLAYER = """
import sys
from pathlib import Path
from frog.core.console import console
from frog.learn.demo.play import Player
from frog.learn.demo.demo_session import Session, Step

steps = [
    Step(title="one", minutes=1, say="say", ask="ask?", run="touch one; read line < gate", look="answer"),
    Step(title="two", minutes=1, say="say", run="touch two", look="answer"),
]
Player(Session(title="demo", steps=tuple(steps)), Path(sys.argv[1]), False, console()).play(1)
"""
PROMPT = rb"q: quit > "


@pytest.mark.timeout(LIMIT_S)
def test_enter_typed_during_a_step_does_not_start_the_next_step(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PLAYER, str(tmp_path)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as player:
        os.close(theirs)
        printed = _read_until(ours, PROMPT)
        assert b"ask?" in printed
        assert b"answer" not in printed
        os.write(ours, b"\n")
        with open(tmp_path / "gate", "w") as gate:  # opens when the step has started
            os.write(ours, b"\n\n")  # impatient
            _read_until(ours, rb"\n\r?\n")  # the terminal has received and echoed them
            gate.write("\n")
        assert b"answer   q: quit" in (printed := _read_until(ours, PROMPT))
        assert b"look" not in printed
        os.write(ours, b"\n")
        assert b"look" in _read_until(ours, PROMPT)
        os.write(ours, b"q\n")
        player.wait()
    os.close(ours)
    assert (tmp_path / "one").exists()
    assert not (tmp_path / "two").exists()


def _read_until(terminal: int, pattern: bytes) -> bytes:
    printed = b""
    while not re.search(pattern, printed):
        printed += os.read(terminal, 1 << 16)
    return printed
