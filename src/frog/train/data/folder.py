"""The paths of a prepared set, and the lock that prevents two processes from preparing the same name."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from frog.core.errors import DataError
from frog.core.files import open_lock, put_back, put_in_place
from frog.core.user_input import name_problem

DEFAULT_NAME = "python-docs"
DATA_ROOT = Path("data")


@dataclass(frozen=True)
class SetFolder:
    """`data/<name>/`, or `data/.<name>.partial-<pid>/` during preparation, which no reader opens."""

    path: Path

    @property
    def manifest_json(self) -> Path:
        return self.path / "manifest.json"

    @property
    def tokenizer_json(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def token_bytes(self) -> Path:
        return self.path / "token_bytes.npy"


def set_folder(name: str, root: Path = DATA_ROOT) -> SetFolder:
    """Return the folder of a set. Raises DataError if the name is not a valid folder name."""
    if problem := name_problem(name):
        raise DataError(f"data set: {problem}", "choose another name: --name my-corpus")
    return SetFolder(root / name)


@contextmanager
def claim(name: str, root: Path, wait: bool = False) -> Iterator[None]:
    """Lock `name` for preparation. Restore a set that a dead process was replacing, and delete its partial folders.

    The operating system releases the lock when its holder dies. The pid in the file is only for people.

    Raises:  DataError if another process holds the lock and `wait` is False.
    """
    root.mkdir(parents=True, exist_ok=True)
    path = root / f".{name}.lock"
    with open(open_lock(path), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.seek(0)
            raise DataError(
                f"{root / name}: process {file.read().strip()} is preparing it now", "wait for it, or end that process"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        put_back(root / name)
        for leftover in root.glob(f".{name}.partial-*"):
            shutil.rmtree(leftover)
        yield


@contextmanager
def replace_when_whole(name: str, root: Path) -> Iterator[SetFolder]:
    """Yield a partial folder; rename it to the set's name at the end of the block, or delete it if the block raises.

    Assumes: the caller has locked `name` with `claim`.
    """
    final = set_folder(name, root).path
    partial = root / f".{name}.partial-{os.getpid()}"
    partial.mkdir()
    try:
        yield SetFolder(partial)
        put_in_place(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
