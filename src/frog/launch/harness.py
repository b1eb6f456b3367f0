"""A program under a deadline: run it, end all of it, find what it has left.

Campaigns of faults and `frog doctor` stand on this:

    with Program(command, scratch) as program:
        code = program.wait(60)            # None: it did not end in time
        program.end()                      # it, and all that it has started, also what has outlived it
        program.all_gone(10), program.left_files(), program.output

What is asked of a program from outside must not lean on what it says about itself. Whether all its processes are gone
is known from a pipe: each inherits it as standard input, so its other end closes with the last of them, also of those
that have left their session or lost their parent.
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
"""In the temporary folder torch keeps what it has compiled, for all processes and for ever."""


class Program:
    """A program that was started in a session of its own, and all that it starts.

    In `scratch`, what it writes on stdout and stderr goes to output.txt, and its temporary files are under tmp.
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
        """Its exit code, or None if it does not end in time."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self, grace_s: float = 0.0) -> None:
        """Ask it to stop, if there is time for that; then kill what is left of all that it has started."""
        if self.process.poll() is None and grace_s:
            self.process.terminate()
            self.wait(grace_s)
        if self.process.poll() is None:
            kill_tree(self.process)
            self.process.wait()
        if not self.all_gone(0):
            for member in self._left():
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()

    def _left(self) -> list[psutil.Process]:
        """Its processes, known by their temporary folder: also those that have lost their parent."""
        mine = str(self._temporary)
        return [one for one in psutil.process_iter(["environ"]) if (one.info["environ"] or {}).get("TMPDIR") == mine]

    def all_gone(self, within_s: float) -> bool:
        """Whether none of its processes runs any more; wait so long for that."""
        return bool(select.select([self._reading], [], [], within_s)[0])

    def left_files(self) -> list[str]:
        """The temporary files and folders that are still there."""
        return [path.name for path in self._temporary.iterdir() if not path.name.startswith(_TORCHS_CACHE)]

    @property
    def output(self) -> str:
        """What it has written so far."""
        return self._log.read_text(errors="replace")


def tree(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    """The process and all that it has started and that has not lost its parent."""
    root = psutil.Process(process.pid)
    return [root, *root.children(recursive=True)]


def kill_tree(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    """SIGKILL a process and all that it has started at once; return them."""
    family = tree(process)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    return family
