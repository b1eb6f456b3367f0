"""The facts of an error, as data. A message is for people and may be reworded any day; programs read these fields.

An error gets its facts where it is raised. Facts that are only in another program's text (torch's, gloo's, the
system's) are parsed from it once, where the error is caught.
"""

from __future__ import annotations

import errno
from dataclasses import asdict, dataclass
from typing import Any, Literal

DamageCause = Literal[
    "corrupt",  # bytes of a file have changed
    "torn",  # bytes of a file are missing
    "absent",  # a file is missing
]
"""Why a checkpoint cannot be trusted, most severe first. `observe/diagnose/checkpoint_rules.py` describes each."""

Cause = Literal[
    DamageCause,
    "timed_out",  # no answer in time
    "closed",  # the other end of a connection is gone
    "refused",  # no process listens there
    "mismatch",  # ranks disagree about a collective's size or kind
    "no_space",  # the disk or the quota is full
    "no_memory",
    "not_finite",  # a loss or a gradient is NaN or infinite
]


@dataclass(frozen=True, kw_only=True)
class Damage:
    """The reason why a checkpoint cannot be trusted."""

    cause: DamageCause
    what: str
    """The file and its difference from the manifest, for people."""
    step: int | None = None
    rank: int | None = None
    """The rank that wrote the file, if it was a single rank."""

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True, kw_only=True)
class NotFinite:
    """A rank whose own loss or gradient norm is not finite."""

    rank: int
    loss: str
    """The value as text, since JSON has no NaN."""
    grad_norm: str
    of_loss: bool
    """True if the loss itself is not finite; False if only the gradient is not."""
    sample_ids: tuple[int, ...] = ()
    """The samples of the step."""


@dataclass(frozen=True, kw_only=True)
class ErrorFacts:
    """The facts of an error; None for those that do not apply or are unknown."""

    cause: Cause | None = None
    op: str | None = None
    """The failed collective, as the events name it; "rendezvous" if the world did not form."""
    axis: str | None = None
    payload_bytes: int | None = None
    seq: int | None = None
    """The collective's index on this rank, counted from 0."""
    peer: int | None = None
    """The rank at the other end of a send or a receive."""
    waited_s: float | None = None
    step: int | None = None
    """The step of the checkpoint that could not be written."""
    damage: tuple[Damage, ...] = ()
    """The checkpoints that cannot be trusted."""
    not_finite: tuple[NotFinite, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the fields that have a value."""
        return {name: value for name, value in asdict(self).items() if value not in (None, ())}


def system_cause(error: BaseException) -> Cause | None:
    """Return the cause of an error raised by the operating system or Python."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no_space"
    return "no_memory" if isinstance(error, MemoryError) else None
