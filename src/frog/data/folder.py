"""The paths of a prepared set, and the claim that keeps two processes from preparing one name at once."""

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
from frog.core.names import name_problem

DEFAULT_NAME = "python-docs"
DATA_ROOT = Path("data")


@dataclass(frozen=True)
class SetFolder:
    """`data/<name>/`. While it is prepared it is `data/.<name>.partial-<pid>/`: a name that nothing opens."""

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
    """Where the set of that name lies. Raises DataError if the name cannot be a folder's."""
    if problem := name_problem(name):
        raise DataError(f"data set: {problem}", "give another name: --name my-corpus")
    return SetFolder(root / name)


@contextmanager
def claim(name: str, root: Path, wait: bool = False) -> Iterator[None]:
    """Hold the right to prepare `name`, and clear away what dead processes left of it; what they put aside comes back.

    The claim is a lock that the system drops when its holder dies, however it dies; the pid in it is only for people.

    Raises:  DataError if a living process holds it and `wait` is False.
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
    """A partial folder to fill; it takes the name of the set when the block ends, and vanishes if the block raises.

    Assumes: the caller holds the claim on `name`.
    """
    final = set_folder(name, root).path
    partial = root / f".{name}.partial-{os.getpid()}"
    partial.mkdir()
    try:
        yield SetFolder(partial)
        put_in_place(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
