"""Slurm's programs on this machine."""

from __future__ import annotations

import os
import shutil

from frog.core.env import variable
from frog.core.errors import UsageError

SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")
"""Where daemons lie that an ordinary user's PATH does not name."""

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")


def find_program(name: str) -> str:
    """Path of one of Slurm's programs; the bare name if it is not installed."""
    path = os.pathsep.join([variable("PATH") or os.defpath, *SYSTEM_FOLDERS])
    return shutil.which(name, path=path) or name


def missing_programs() -> list[str]:
    """What is not installed of what a cluster needs."""
    return [name for name in NEEDED if not os.path.isabs(find_program(name))]


def need_programs() -> None:
    """Raise UsageError if Slurm is not installed."""
    missing = missing_programs()
    if missing:
        raise UsageError(
            f"Slurm is not installed on this machine: {', '.join(missing)} not found",
            "apt-get install slurm-wlm (Debian, Ubuntu); or, without it, the emulator: frog slurm up --emulator",
        )
