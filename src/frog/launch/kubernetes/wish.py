"""What a run asks of a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from frog import __version__
from frog.config import RunConfig

LONGEST_NAME = 52
"""Of a Job: its pods add an index and five characters, and a host name has 63 at most."""

Kind = Literal["job", "trainjob"]


@dataclass(frozen=True)
class Wish:
    """What one submission asks for."""

    config: RunConfig
    files: Mapping[str, str]
    """What the ConfigMap holds: the run file and what it names, by file name."""
    run_file: str
    settings: tuple[str, ...] = ()
    """KEY=VALUE for --set."""
    nodes: int = 2
    ranks_per_node: int = 4
    gpus: bool = True
    image: str = f"frog:{__version__}"
    namespace: str = "default"
    name: str | None = None
    claim: str | None = None
    """An existing volume claim; None: one is made."""
    storage: str = "50Gi"
    storage_class: str | None = None
    cpus: int | None = None
    memory: str | None = None
    restarts: int = 3
    runtime: str = "torch-distributed"
    command: str = ""
    """How it was asked for, for the file's first line."""

    @property
    def job_name(self) -> str:
        """A name that Kubernetes takes."""
        if self.name is not None:
            return self.name
        plain = re.sub(r"[^a-z0-9]+", "-", self.config.name.lower()).strip("-")
        return f"frog-{plain}"[:LONGEST_NAME].rstrip("-")

    @property
    def cpus_per_pod(self) -> int:
        return self.cpus or self.ranks_per_node * (8 if self.gpus else 1)

    @property
    def memory_per_pod(self) -> str:
        return self.memory or f"{self.ranks_per_node * (32 if self.gpus else 2)}Gi"
