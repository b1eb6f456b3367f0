"""A lock on a cluster's folder: one `frog slurm up` or `down` at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from frog.core.errors import UsageError, signal_code
from frog.core.files import open_lock

LOCK_FILE = "frog-slurm.lock"


@contextlib.contextmanager
def locked(folder: Path, *, mode: int = 0o777) -> Iterator[None]:
    """Create the folder and lock it while inside; remove it at the end if it is empty.

    SIGTERM acts like Ctrl-C inside, so that cleanup runs.

    Raises:  UsageError if another process has the lock, or if the folder cannot be created or locked.
    """
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        lock = _lock(folder, mode)
        try:
            yield
        finally:
            (folder / LOCK_FILE).unlink(missing_ok=True)  # while it is locked: see _lock
            with contextlib.suppress(OSError):
                folder.rmdir()
            os.close(lock)
    finally:
        signal.signal(signal.SIGTERM, before)


def _lock(folder: Path, mode: int) -> int:
    """Open and lock the folder's lock file; return its descriptor.

    The last holder may remove the file between our opening and our locking it. A lock on a removed file excludes no
    other process, because the next one creates a new file: so a lock counts only if its path still leads to the file.
    """
    path = folder / LOCK_FILE
    while True:
        try:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(parents=True, mode=mode)
            lock = open_lock(path)
        except FileNotFoundError:  # the last holder removed the folder just now
            continue
        except OSError as error:
            raise UsageError(
                f"{folder}: cannot be used as the cluster's folder: {error.strerror}", "--folder NEW"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise UsageError(f"{folder}: another `frog slurm` is using it", "wait for it") from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        os.close(lock)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(signal_code(number))
