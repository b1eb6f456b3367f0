"""Folders that last for one launch. If the launcher is killed, the next launch removes its folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Create a folder for temporary files, and remove it at the end of the block. A lock marks it as in use meanwhile.

    It is created in `parent`, or in the system's folder for temporary files.

    Folders with the same prefix whose owner was killed are removed.
    """
    parent = parent or Path(tempfile.gettempdir())
    remove_abandoned(parent, prefix)
    new = Path(tempfile.mkdtemp(prefix=f"new-{prefix}", dir=parent))
    lock = os.open(new, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = new.rename(new.with_name(new.name.removeprefix("new-")))  # the lock is now in place
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the scratch folders of killed processes: those of this user that no process has locked."""
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(folder)
            finally:
                os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder; first make readable what a pod has made unreadable."""
    for path in sorted(folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder)
