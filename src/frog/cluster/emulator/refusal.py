"""Errors of the emulator's commands."""

from __future__ import annotations

from frog.core.errors import FrogError


class SlurmRefusal(FrogError):
    """An error of a command, with Slurm's message and exit code."""

    def __init__(self, what: str, hint: str | None = None, *, exit_code: int = 1, plain: bool = False) -> None:
        super().__init__(what, hint)
        self.exit_code = exit_code
        self.plain = plain
        """True if Slurm prints the message without `sbatch: error:` before it."""


def unknown(what: str) -> SlurmRefusal:
    """Return an error for a feature that only real Slurm has; running without it would give another result."""
    return SlurmRefusal(
        f"the Slurm emulator does not support {what}", exit_code=255, hint="omit it, or use a real Slurm"
    )
