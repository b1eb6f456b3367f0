"""A terminal emulator for tests: it shows a program's output as a user sees it."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyte
from harness import LIMIT_S

FROG = (sys.executable, "-c", "import sys; from frog.cli import main; sys.exit(main())")
"""Prefix of a frog command line."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class TerminalScreen(pyte.Screen):
    """A screen like xterm's and tmux's: after a full line the cursor is still on the last column."""

    def erase_in_line(self, *args: Any, **options: Any) -> None:
        self._to_last_column()
        super().erase_in_line(*args, **options)

    def erase_in_display(self, *args: Any, **options: Any) -> None:
        self._to_last_column()
        super().erase_in_display(*args, **options)

    def _to_last_column(self) -> None:
        self.cursor.x = min(self.cursor.x, self.columns - 1)

    @property
    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.display]


def shown_by(output: str, columns: int = 80, rows: int = 24) -> list[str]:
    """Return the rows that a terminal of this size shows for `output`."""
    screen = TerminalScreen(columns, rows)
    pyte.Stream(screen).feed(output)
    return screen.rows


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment without the variables that describe a terminal."""
    left_out = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM")
    return {name: value for name, value in os.environ.items() if name not in left_out} | {"TERM": "xterm", **changes}


def output_in_terminal(command: Sequence[str], columns: int, env: Mapping[str, str], folder: Path) -> str:
    """Return a program's output on a terminal with 24 rows. Kills a program that still waits after LIMIT_S."""
    keyboard, screen = pty.openpty()
    termios.tcsetwinsize(keyboard, (24, columns))
    with subprocess.Popen(command, stdin=screen, stdout=screen, stderr=screen, env=env, cwd=folder) as process:
        os.close(screen)
        deadline = threading.Timer(LIMIT_S, process.kill)
        deadline.start()
        parts = []
        try:
            while part := os.read(keyboard, 65536):
                parts.append(part)
        except OSError:  # the program has ended
            pass
        process.wait()
        deadline.cancel()
    os.close(keyboard)
    assert process.returncode != -signal.SIGKILL, f"{command} had not ended after {LIMIT_S} s"
    return b"".join(parts).decode().replace("\r\n", "\n")


def output_in_pipe(command: Sequence[str], env: Mapping[str, str], folder: Path) -> str:
    """Return a program's output to a pipe."""
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, cwd=folder
    ).stdout.decode()


def lines_of(output: str) -> list[str]:
    """Return the lines of an output without escape sequences."""
    return _ESCAPES.sub("", output).split("\n")
