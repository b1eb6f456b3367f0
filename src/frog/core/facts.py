"""What is known of an error, as data. A message is for people and may be reworded any day; programs read these fields.

An error gets its facts where it is raised. What only another program's words can say (torch's, gloo's, the system's) is
read from them once, where they are caught, and never again.
"""

from __future__ import annotations

import errno
from dataclasses import asdict, dataclass
from typing import Any, Literal

DamageCause = Literal[
    "corrupt",  # bytes of a file have changed
    "torn",  # bytes of a file are missing
    "absent",  # a file is missing altogether
]
"""Why a checkpoint cannot be trusted, the gravest cause first. `frog.diagnose.checkpoint_rules` has words for each."""

Cause = Literal[
    DamageCause,
    "timed_out",  # nobody answered in time
    "closed",  # the other end of a connection is gone
    "refused",  # nobody listens there
    "mismatch",  # ranks disagree about a collective's size or kind
    "no_space",  # the disk or the quota is full
    "no_memory",
    "not_finite",  # a loss or a gradient is NaN or infinite
]


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Why a checkpoint cannot be trusted."""

    cause: DamageCause
    what: str
    """For people: the file, and how it differs from its manifest."""
    step: int | None = None
    rank: int | None = None
    """Whose file it is, if one rank wrote it."""

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True, kw_only=True)
class NotFinite:
    """A rank whose own loss or gradient norm is not finite."""

    rank: int
    loss: str
    """As text, since JSON has no NaN."""
    grad_norm: str
    of_loss: bool
    """Whether the loss itself is not finite; else the gradient alone."""
    sample_ids: tuple[int, ...] = ()
    """What it was computing on."""


@dataclass(frozen=True, kw_only=True)
class ErrorFacts:
    """What is known of an error; None where that does not apply or is not known."""

    cause: Cause | None = None
    op: str | None = None
    """The collective that failed, as the events name it; "rendezvous" if the world did not come together."""
    axis: str | None = None
    payload_bytes: int | None = None
    seq: int | None = None
    """Which of the rank's collectives it was, counted from 0."""
    peer: int | None = None
    """The rank at the other end of a send or a receive."""
    waited_s: float | None = None
    step: int | None = None
    """Of the checkpoint that could not be written."""
    damage: tuple[Damage, ...] = ()
    """The checkpoints that cannot be trusted."""
    not_finite: tuple[NotFinite, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The fields that say something."""
        return {name: value for name, value in asdict(self).items() if value not in (None, ())}


def system_cause(error: BaseException) -> Cause | None:
    """The cause of an error that the operating system or Python has raised."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no_space"
    return "no_memory" if isinstance(error, MemoryError) else None
