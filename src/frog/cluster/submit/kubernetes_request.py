"""The resources that a run requests from Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from frog import __version__
from frog.cluster.submit.program_work import ProgramWork, Work

Kind = Literal["job", "trainjob"]

LONGEST_NAME: Mapping[Kind, int] = {
    "job": 63 - len("-9999-xxxxx"),
    "trainjob": 63 - len("-node-0-9999-xxxxx"),
}
"""Longest name of a Job: its pods' names are longer, and a host name has at most 63 characters."""


@dataclass(frozen=True)
class KubernetesRequest:
    """The request of one submission."""

    config: Work
    """The run, or a program."""
    files: Mapping[str, str]
    """Files of the ConfigMap: the run file and the files it names, by name; or those of the program, by path."""
    run_file: str = ""
    data: tuple[str, ...] = ()
    """Files that a program's command names and that the volume must have."""
    settings: tuple[str, ...] = ()
    """KEY=VALUE for --set."""
    nodes: int = 2
    ranks_per_node: int = 4
    gpus: bool = True
    image: str = f"frog:{__version__}"
    namespace: str = "default"
    name: str | None = None
    claim: str | None = None
    """An existing volume claim; None to create one."""
    storage: str = "50Gi"
    storage_class: str | None = None
    cpus: int | None = None
    memory: str | None = None
    restarts: int = 3
    runtime: str = "torch-distributed"
    command: str = ""
    """The command line that made the request, for the file's first line."""

    @property
    def program(self) -> ProgramWork | None:
        """The program; None for a run of Frog's trainer."""
        return self.config if isinstance(self.config, ProgramWork) else None

    @property
    def job_name(self) -> str:
        """A name that Kubernetes accepts for a Job of either kind."""
        if self.name is not None:
            return self.name
        plain = re.sub(r"[^a-z0-9]+", "-", self.config.name.lower()).strip("-")
        return f"frog-{plain}"[: min(LONGEST_NAME.values())].rstrip("-")

    @property
    def cpus_per_pod(self) -> int:
        return self.cpus if self.cpus is not None else self.ranks_per_node * (8 if self.gpus else 1)

    @property
    def memory_per_pod(self) -> str:
        return self.memory if self.memory is not None else f"{self.ranks_per_node * (32 if self.gpus else 2)}Gi"
