"""Slurm's programs on this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from frog.cluster.slurm.cluster_file import ClusterKind, read_cluster_file
from frog.core.env import variable
from frog.core.errors import UsageError

SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")
"""Folders of daemons that an ordinary user's PATH does not include."""

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")


def find_program(name: str) -> str:
    """Return the path of one of Slurm's programs, never of an emulator's; the bare name if it is not installed."""
    path = os.pathsep.join([path_without_emulators(), *SYSTEM_FOLDERS])
    return shutil.which(name, path=path) or name


def path_without_emulators() -> str:
    """Return PATH without the emulator's commands, which `frog slurm env` puts first."""
    parts = (variable("PATH") or os.defpath).split(os.pathsep)
    return os.pathsep.join(part for part in parts if not _is_emulators(Path(part)))


def _is_emulators(folder: Path) -> bool:
    if folder.name != "bin":
        return False
    try:
        return read_cluster_file(folder.parent, ClusterKind).kind == "emulator"
    except (FileNotFoundError, UsageError):
        return False


def missing_programs() -> list[str]:
    """Return the programs that a cluster needs and that are not installed."""
    return [name for name in NEEDED if not os.path.isabs(find_program(name))]


def need_programs() -> None:
    """Raise UsageError if Slurm is not installed."""
    missing = missing_programs()
    if missing:
        raise UsageError(
            f"Slurm is not installed on this machine: {', '.join(missing)} not found",
            "apt-get install slurm-wlm (Debian, Ubuntu); or, without it, the emulator: frog slurm up --emulator",
        )
