"""The client of the grader, a reserve process with torch loaded that answers requests over a pipe."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Self

import msgspec

from frog.core.env import neutral_env
from frog.core.errors import LaunchError
from frog.learn.grader.exercise import Exercise
from frog.learn.grader.verdict import Verdict

NUM_SEEDS = 10**6
"""Seeds of checks are below this number."""


class Grader:
    """Checks exercises. Starts loading torch at once, so that the first check finds it ready."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._pipe = Connection(os.dup(self._socket.fileno()))
        words = ["-m", "frog.learn.grader.reserve", str(theirs.fileno())]
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-u", *words],  # -P: a learner's random.py may be in this directory
            env=neutral_env(**threads),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self._is_ready = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of_an_error: object) -> None:
        self.close()

    def wait(self) -> None:
        """Wait until the grader is ready. Raises LaunchError if it does not start."""
        try:
            if not self._is_ready:
                self._pipe.recv_bytes()
                self._is_ready = True
        except (EOFError, OSError):
            raise self._gone() from None

    def check(self, exercise: Exercise, files: dict[str, bytes], seed: int | None = None) -> Verdict:
        """Check a learner's files, with a new seed by default. Raises LaunchError if the grader has ended."""
        self.wait()
        number = secrets.randbelow(NUM_SEEDS) if seed is None else seed
        request = {"exercise": str(exercise.folder), "files": files, "seed": number}
        try:
            self._pipe.send_bytes(msgspec.msgpack.encode(request))
            return msgspec.json.decode(self._pipe.recv_bytes(), type=Verdict)
        except (EOFError, OSError):
            raise self._gone() from None

    def _gone(self) -> LaunchError:
        return LaunchError(f"the grader's process ended with {self._process.wait()}", "try again; its error is above")

    def close(self) -> None:
        """End the grader and everything it runs; a check pending in another thread raises LaunchError."""
        if not self._is_ready:  # it runs nothing yet, and would finish loading torch before it reads a request
            self._process.kill()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._socket.close()
        self._pipe.close()
