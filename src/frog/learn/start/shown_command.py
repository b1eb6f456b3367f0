"""Run a `frog` command as the learner would type it: show its output, and leave none of its processes behind."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Self

import psutil

from frog.core.env import child_env
from frog.core.terminal import printable, wrapped
from frog.learn.text import Style

_GRACE_S = 20
"""Time for `frog run` to end its ranks; later it is killed."""


class ShownCommand:
    """A running `frog` command. Its lines appear as they arrive, unless they are held back."""

    def __init__(self, words: list[str], folder: Path, style: Style, *, shows: Callable[[str], bool]) -> None:
        self.lines: list[str] = []
        """All lines of its output so far."""
        self._style, self._shows = style, shows
        self._arrived = threading.Condition()
        self._is_over = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "frog", *words],
            cwd=folder,
            env=child_env(OMP_NUM_THREADS="1"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name="output", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of_an_error: object) -> None:
        """End the command and its ranks, if they still run."""
        ranks = self._descendants()
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        for process in [self._process, *ranks]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.kill()  # psutil sends nothing to a process that got a dead one's id
        self._process.wait()
        self._reader.join(_GRACE_S)

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, or None if the command does not end in time."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(_GRACE_S)
        return code

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, is_there: Callable[[list[str]], bool], timeout_s: float) -> bool:
        """Wait until the output has what `is_there` looks for. Return False if it ends before, or not in time."""
        with self._arrived:
            self._arrived.wait_for(lambda: is_there(self.lines) or self._is_over, timeout_s)
            return is_there(self.lines)

    def kill_rank(self, pid: int) -> bool:
        """Send SIGKILL to a rank. Return False if this process is not one of the command's, or has ended."""
        with contextlib.suppress(psutil.Error):
            for process in self._descendants():
                if process.pid == pid:
                    process.kill()
                    return True
        return False

    def _descendants(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            descendants: list[psutil.Process] = psutil.Process(self._process.pid).children(recursive=True)
            return descendants
        return []

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                with self._arrived:
                    self.lines.append(line.rstrip("\n"))
                    self._arrived.notify_all()
                if self._shows(line):
                    show_line(line, self._style)
        with self._arrived:
            self._is_over = True
            self._arrived.notify_all()


def show_line(line: str, style: Style) -> None:
    """Print a line of a command's output, wrapped and indented."""
    for part in wrapped(f"  {printable(line.rstrip())}", style.columns, hang=2):
        print(part, flush=True)


@contextlib.contextmanager
def ends_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that running commands are ended."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
