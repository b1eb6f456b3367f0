"""cluster.json, which `frog slurm up` writes so that the other commands find the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

from msgspec import Meta

from frog.core.errors import FrogError, UsageError
from frog.core.schema import Name, Natural, Port, Typed, read_typed

CLUSTER_FILE = "cluster.json"
_REMOVE = "end its processes, then remove the folder"


class ClusterKind(Typed, frozen=True):
    """The kind of a cluster, common to all formats."""

    KIND: ClassVar[str] = "a cluster of frog slurm"

    kind: Literal["slurm", "emulator"]


class ShapeFields(Typed, frozen=True):
    """Size of a simulated cluster."""

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
