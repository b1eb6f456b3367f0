"""A Slurm cluster simulated on this machine, by a real Slurm or by the emulator: its folder, its size, its names."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, ClassVar, Literal, NoReturn, TypeVar

from msgspec import Meta

from frog.core.errors import FrogError, UsageError, signal_code
from frog.core.files import open_lock
from frog.core.schema import Name, Natural, Port, Typed, read_typed

CLUSTER_FILE = "cluster.json"
"""File that `frog slurm up` writes, so that the other commands find the cluster."""
LOCK_FILE = "frog-slurm.lock"
COMMANDS = "commands"
"""Folder of the commands without effect, inside a cluster's folder."""

MEMORY_MB = 512_000
"""Megabytes per simulated node, large enough for job files that ask for much memory."""

_REMOVE = "end its processes, then remove the folder"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}")
_MOST = {"nodes": 64, "gpus_per_node": 16, "cpus_per_node": 1024}


@dataclass(frozen=True)
class Shape:
    """Size of a simulated cluster."""

    nodes: int
    gpus_per_node: int
    cpus_per_node: int

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            least, given = (0 if name == "gpus_per_node" else 1), getattr(self, name)
            if not least <= given <= most:
                raise UsageError(
                    f"--{name.replace('_', '-')} {given}: must be between {least} and {most}",
                    "frog slurm up --nodes 2 --gpus-per-node 4",
                )

    @property
    def node_names(self) -> list[str]:
        """Slurm's names of the nodes, in node-rank order."""
        return [f"node{number}" for number in range(1, self.nodes + 1)]

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


# ---- cluster.json ----------------------------------------------------------------------------------------------------


class ClusterKind(Typed, frozen=True):
    """The kind of a cluster, common to all formats."""

    KIND: ClassVar[str] = "a cluster of frog slurm"

    kind: Literal["slurm", "emulator"]


class ShapeFields(Typed, frozen=True):
    """The fields of a `Shape` in cluster.json."""

    nodes: Annotated[int, Meta(ge=1, le=64)]
    gpus_per_node: Annotated[int, Meta(ge=0, le=16)]
    cpus_per_node: Annotated[int, Meta(ge=1, le=1024)]


class SiteFields(Typed, frozen=True):
    """Paths and ports of a real Slurm. Its scratch folder is removed with it, so it must contain no other files."""

    name: Annotated[str, Meta(pattern="^frog-[0-9a-f]{8}$")]
    folder: Name
    scratch: Annotated[str, Meta(pattern="^/[^\\x00]{0,900}/frog-slurm-[^/\\x00]+$")]
    host: Name
    address: Name
    user: Name
    ports: list[Port]
    first_job: Natural


class SlurmFile(ClusterKind, frozen=True):
    """Record of a real Slurm."""

    FORMAT: ClassVar[int | None] = 1

    site: SiteFields
    shape: ShapeFields


class EmulatorFile(ClusterKind, frozen=True):
    """Record of the emulator."""

    FORMAT: ClassVar[int | None] = 1

    port: Port
    token: Name
    """Secret that each request must carry."""
    pid: Annotated[int, Meta(ge=2, le=1 << 22)]
    cluster: Annotated[str, Meta(pattern="^frog[0-9a-f]{8}$")]
    """Mark in the environment of its processes."""


T = TypeVar("T", bound=ClusterKind)


def read_cluster_file(folder: Path, kind: type[T], error: type[FrogError] = UsageError) -> T:
    """Return the cluster of a folder. Raises FileNotFoundError if there is none, `error` if the file is invalid."""
    return read_typed(folder / CLUSTER_FILE, kind, _REMOVE, error)


# ---- the lock --------------------------------------------------------------------------------------------------------


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


# ---- names of another site -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteNames:
    """Names that a cluster on this machine accepts besides its own."""

    partitions: tuple[str, ...] = ()
    """Further names of the one partition."""
    features: tuple[str, ...] = ()
    """Features for --constraint, which every node has."""
    commands: tuple[str, ...] = ()
    """Commands that do nothing but say so on stderr."""

    def __post_init__(self) -> None:
        for option, names in (("partition", self.partitions), ("feature", self.features), ("stub", self.commands)):
            for name in names:
                if not _NAME.fullmatch(name):
                    raise UsageError(f"--{option} {name!r}: expected a name", f"--{option} NAME[,NAME]")

    @property
    def all_partitions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("main", *self.partitions)))

    def write_commands(self, folder: Path) -> None:
        """Write the commands into a folder for PATH.

        A script may also `source` one, such as conda's `activate`, so none may end with `exit`.
        """
        if self.commands:
            folder.mkdir(exist_ok=True)
        for name in self.commands:
            say = f'echo "frog: no effect here: {name} $*" >&2'
            (folder / name).write_text(f"#!/bin/sh\n{say}\n")
            (folder / name).chmod(0o755)


def remove_commands(folder: Path) -> None:
    """Remove the commands that `write_commands` wrote, and no other files."""
    for file in folder.glob("*"):
        if file.is_file() and "frog: no effect here: " in file.read_text(errors="replace"):
            file.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def split_names(texts: list[str]) -> tuple[str, ...]:
    """Return the names in repeated options with commas."""
    return tuple(dict.fromkeys(name for text in texts for name in text.replace(",", " ").split()))


def shell_path(folder: Path, *others: str) -> list[str]:
    """Return the folders to put before `others` in PATH."""
    commands = folder.resolve() / COMMANDS
    return [*([str(commands)] if commands.is_dir() else []), *(other for other in others if other != str(commands))]


# ---- tables of `frog slurm status` -----------------------------------------------------------------------------------


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows in columns of even width; the first row is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
