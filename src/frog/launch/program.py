"""The program that a world runs: one of Frog's programs, or a script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from frog.core.errors import UsageError

_PROGRAMS = {
    "train": "frog.train",
    "finetune": "frog.train.finetune",
    "prove": "frog.prove.rank",
    "profile": "frog.profile.rank",
    "explain": "frog.learn.explain.rank",
    "collectives": "frog.peers.rank",
}
"""Frog's programs that run on every rank."""


_RESUMABLE = frozenset({"train", "finetune"})
"""Programs that resume from their last checkpoint after a restart."""


def can_resume(program: Sequence[str]) -> bool:
    """True if a program can resume after a restart. Assumed for scripts."""
    return program[0] in _RESUMABLE or program[0] not in _PROGRAMS


def can_be_joined(program: Sequence[str]) -> bool:
    """True if ranks can join a run of this program. Assumed for scripts."""
    return program[0] == "train" or program[0] not in _PROGRAMS


def target(program: Sequence[str]) -> list[str]:
    """Return torchrun's arguments for a program: `train RUN.toml ...`, or a Python script with its arguments.

    Raises:  UsageError if the program does not exist.
    """
    if not program:
        raise UsageError("nothing to run", "frog run --nproc 4 -- train config/demo.toml")
    name, *rest = program
    if name in _PROGRAMS:
        return ["-m", _PROGRAMS[name], *rest]
    if not Path(name).is_file():
        raise UsageError(
            f"{name}: neither a script nor a frog command that runs on every rank ({', '.join(_PROGRAMS)})",
            "frog run --nproc 4 -- train RUN.toml",
        )
    return [name, *rest]
