"""What the emulator's commands do not do."""

from __future__ import annotations

from frog.core.errors import FrogError


class SlurmRefusal(FrogError):
    """A command that cannot be carried out: Slurm's words, and Slurm's exit code."""

    def __init__(self, what: str, hint: str | None = None, *, exit_code: int = 1, plain: bool = False) -> None:
        super().__init__(what, hint)
        self.exit_code = exit_code
        self.plain = plain
        """Whether the words stand alone: where Slurm writes no `sbatch: error:` before them."""


def unknown(what: str) -> SlurmRefusal:
    """Real Slurm has this, the emulator does not: better no run than one that does something else."""
    return SlurmRefusal(
        f"the emulator of Slurm does not know {what}", exit_code=255, hint="leave it out, or use a real Slurm"
    )
