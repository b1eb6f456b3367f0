"""What a world runs: one of Frog's own programs, or a script."""

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
"""Frog's own programs that run on every rank."""


_GO_ON = frozenset({"train", "finetune"})
"""Those that go on from their last checkpoint when they are started again."""


def can_go_on(program: Sequence[str]) -> bool:
    """Whether a program may be started again in the middle of its run. What a script does is its own business."""
    return program[0] in _GO_ON or program[0] not in _PROGRAMS


def can_be_joined(program: Sequence[str]) -> bool:
    """Whether another rank may come into a run of a program. What a script does is its own business."""
    return program[0] == "train" or program[0] not in _PROGRAMS


def target(program: Sequence[str]) -> list[str]:
    """The words that torchrun takes for a program: `train RUN.toml ...`, or a Python script with its arguments.

    Raises:  UsageError if there is nothing to run.
    """
    if not program:
        raise UsageError("nothing to run", "frog run --nproc 4 -- train config/demo.toml")
    name, *rest = program
    if name in _PROGRAMS:
        return ["-m", _PROGRAMS[name], *rest]
    if not Path(name).is_file():
        raise UsageError(
            f"{name}: neither a frog command that runs on every rank ({', '.join(_PROGRAMS)}) nor a script",
            "frog run --nproc 4 -- train RUN.toml",
        )
    return [name, *rest]
