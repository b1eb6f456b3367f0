"""A small emulator of Slurm for machines without Slurm: the commands and options that our job files use.

A daemon manages the queue and runs the jobs on simulated nodes; sbatch, srun, squeue, scancel, sinfo and scontrol are
its clients. They behave like Slurm 22.05, which a test compares them with. An unsupported option is an error that names
it.
"""

from __future__ import annotations

from frog.core.errors import FrogError

RELEASE = "22.05.8"
"""Version of the Slurm that the emulator was compared with."""


class SlurmRefusal(FrogError):
    """An error of a command, with Slurm's message and exit code."""

    def __init__(self, what: str, hint: str | None = None, *, exit_code: int = 1, plain: bool = False) -> None:
        super().__init__(what, hint)
        self.exit_code = exit_code
        self.plain = plain
        """True if Slurm prints the message without `sbatch: error:` before it."""


class UnsupportedError(SlurmRefusal):
    """An error of the emulator alone: real Slurm may have the feature."""


def unknown(what: str) -> UnsupportedError:
    """Return an error for a feature that only real Slurm has; running without it would give another result."""
    return UnsupportedError(
        f"the Slurm emulator does not support {what}", exit_code=255, hint="omit it, or use a real Slurm"
    )
