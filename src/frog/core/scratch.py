"""Folders for the time of one launch. One whose launcher was killed is removed by the next."""

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
    """A folder for temporary files, which goes with this block. While it is open it is locked: it has an owner.

    It lies in `parent`, else where the system keeps such files.

    Folders of the same prefix whose owner was killed are removed.
    """
    parent = parent or Path(tempfile.gettempdir())
    remove_abandoned(parent, prefix)
    new = Path(tempfile.mkdtemp(prefix=f"new-{prefix}", dir=parent))
    lock = os.open(new, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = new.rename(new.with_name(new.name.removeprefix("new-")))  # by now it has an owner
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the scratch folders of processes that were killed: those of this user which nobody holds locked."""
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
    """Remove a folder; what a pod made unreadable is made readable first."""
    for path in sorted(folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder)
