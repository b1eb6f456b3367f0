"""One `frog slurm` at a time in a folder."""

from __future__ import annotations

import contextlib
import fcntl
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from frog.core.errors import UsageError

LOCK_FILE = "frog-slurm.lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder and hold it while inside, against a second up or down; remove it after if nothing is in it.

    SIGTERM ends what happens inside as Ctrl-C does: with nothing left behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / LOCK_FILE
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        with open(lock, "w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"{folder}: another `frog slurm` is at work there", "wait for it") from None
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    folder.rmdir()
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
