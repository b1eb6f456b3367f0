"""Runs a program under a deadline, ends all its processes, and finds leftovers.

Fault campaigns and `frog doctor` use it:

    with Program(command, scratch) as program:
        code = program.wait(60)            # None: timeout
        program.end()                      # ends it and all processes it started, including orphans
        program.all_gone(10), program.left_files(), program.output

These checks must not depend on the program's own output. A pipe shows whether all processes have ended: each inherits
it as standard input, so its other end closes when the last of them ends, including processes that have left their
session or lost their parent.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from frog.core.env import child_env

_TORCHS_CACHE = "torchinductor_"
"""Folder in the temporary folder in which torch permanently caches compiled code for all processes."""


class Program:
    """A program in its own session, and all processes that it starts.

    In `scratch`, output.txt receives its stdout and stderr, and tmp holds its temporary files.
    """

    def __init__(self, command: Sequence[str], scratch: Path, env: Mapping[str, str] | None = None) -> None:
        self._temporary, self._log = scratch / "tmp", scratch / "output.txt"
        self._temporary.mkdir(exist_ok=True)
        self._reading, writing = os.pipe()
        try:
            with open(self._log, "wb") as log:
                self.process = subprocess.Popen(
                    command,
                    env={**child_env(**(env or {})), "TMPDIR": str(self._temporary)},
                    stdin=writing,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._reading)
            raise
        finally:
            os.close(writing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of_an_error: object) -> None:
        self.end()
        os.close(self._reading)

    def wait(self, timeout_s: float) -> int | None:
        """Return the program's exit code, or None if it does not end in time."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self, grace_s: float = 0.0) -> None:
        """Ask the program to stop and wait `grace_s`; then kill all its remaining processes."""
        if self.process.poll() is None and grace_s:
            self.process.terminate()
            self.wait(grace_s)
        if self.process.poll() is None:
            kill_tree(self.process)
            self.process.wait()
        if not self.all_gone(0):
            for member in self._remaining():
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()

    def _remaining(self) -> list[psutil.Process]:
        """Find the program's processes by their temporary folder, including orphans."""
        mine = str(self._temporary)
        processes = psutil.process_iter(["environ"])
        return [process for process in processes if (process.info["environ"] or {}).get("TMPDIR") == mine]

    def all_gone(self, within_s: float) -> bool:
        """Wait up to `within_s`; True if all its processes have ended."""
        return bool(select.select([self._reading], [], [], within_s)[0])

    def left_files(self) -> list[str]:
        """Return the remaining temporary files and folders."""
        return [path.name for path in self._temporary.iterdir() if not path.name.startswith(_TORCHS_CACHE)]

    @property
    def output(self) -> str:
        """Output so far."""
        return self._log.read_text(errors="replace")


def tree(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    """Return the process and its descendants, without orphans."""
    root = psutil.Process(process.pid)
    return [root, *root.children(recursive=True)]


def kill_tree(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    """Send SIGKILL to a process and its descendants; return them."""
    family = tree(process)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    return family
