"""cluster.json: what `frog slurm up` leaves in a cluster's folder, so that the other commands find it again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

from msgspec import Meta

from frog.core.errors import FrogError, UsageError
from frog.core.schema import Name, Natural, Port, Typed, read_typed

CLUSTER_FILE = "cluster.json"
_REMOVE = "end its processes, then remove the folder"


class ClusterKind(Typed, frozen=True):
    """Whose cluster it is, in every format."""

    KIND: ClassVar[str] = "a cluster of frog slurm"

    kind: Literal["slurm", "emulator"]


class ShapeFields(Typed, frozen=True):
    """How large a cluster is pretended."""

    nodes: Annotated[int, Meta(ge=1, le=64)]
    gpus_per_node: Annotated[int, Meta(ge=0, le=16)]
    cpus_per_node: Annotated[int, Meta(ge=1, le=1024)]


class SiteFields(Typed, frozen=True):
    """Where a real Slurm lives. Its scratch folder is removed with it: so nothing else may stand there."""

    name: Annotated[str, Meta(pattern="^frog-[0-9a-f]{8}$")]
    folder: Name
    scratch: Annotated[str, Meta(pattern="^/[^\\x00]{0,900}/frog-slurm-[^/\\x00]+$")]
    host: Name
    address: Name
    user: Name
    ports: list[Port]
    first_job: Natural


class SlurmFile(ClusterKind, frozen=True):
    """Of a real Slurm."""

    FORMAT: ClassVar[int | None] = 1

    site: SiteFields
    shape: ShapeFields


class EmulatorFile(ClusterKind, frozen=True):
    """Of the emulator."""

    FORMAT: ClassVar[int | None] = 1

    port: Port
    token: Name
    """The secret in each request."""
    pid: Annotated[int, Meta(ge=2, le=1 << 22)]
    cluster: Annotated[str, Meta(pattern="^frog[0-9a-f]{8}$")]
    """What its processes are marked with."""


T = TypeVar("T", bound=ClusterKind)


def read_cluster_file(folder: Path, kind: type[T], error: type[FrogError] = UsageError) -> T:
    """The cluster of a folder. Raises FileNotFoundError if there is none, `error` if the file is no such file."""
    return read_typed(folder / CLUSTER_FILE, kind, _REMOVE, error)
