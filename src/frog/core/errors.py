"""Errors, the facts that programs read from them, and exit codes.

`FrogError` is the root of the tree. An error says what happened and what to do next; `ErrorFacts` says the same in
fields, because texts may be reworded at any time. An exit code tells how a process ended.
"""

from __future__ import annotations

import errno
import signal
import time
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


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9; a number without a name on this system stays a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_code(number: int) -> int:
    """Return the exit code of a program that a signal ends."""
    return 128 + number


ASKED_TO_STOP = (signal_code(signal.SIGINT), signal_code(signal.SIGTERM))
"""Exit codes of a Frog program that was asked to stop, and stopped."""


def shell_code(code: int) -> int:
    """Convert Popen's return code to a shell's."""
    return code if code >= 0 else signal_code(-code)


def describe_exit(code: int) -> str:
    """Describe how a process with Popen's return code ended: "was killed by SIGKILL", "ended with exit code 3"."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


MOST_WORDS = 16_000
"""Most characters of an error message, which may quote a whole file."""


class FrogError(Exception):
    """An error that Frog can explain. Shown without a traceback, as `what` and then `try: hint`."""

    exit_code = 1

    def __init__(self, what: str, hint: str | None = None, facts: ErrorFacts | None = None) -> None:
        super().__init__(what)
        self.what = _bounded(what)
        self.hint = hint and _bounded(hint)
        self.facts = facts or ErrorFacts()

    def __str__(self) -> str:
        return self.what if self.hint is None else f"{self.what}\n  try: {self.hint}"


def _bounded(words: str) -> str:
    return words if len(words) <= MOST_WORDS else f"{words[:MOST_WORDS]}…"


class UsageError(FrogError):
    """The user asked for something impossible: wrong arguments, a missing folder."""

    exit_code = 2


class ConfigError(UsageError):
    """A run file or a model file contains an invalid value."""


class DataError(UsageError):
    """A corpus or a prepared data set cannot be used."""


class ShapeError(UsageError):
    """Two sizes that must be equal differ."""


class RunError(UsageError):
    """A run folder is missing, unfinished or unreadable."""


class CheckpointError(FrogError):
    """A checkpoint cannot be written, or no checkpoint can be trusted."""


class CommError(FrogError):
    """A collective or the start of a world failed."""


class LostError(CommError):
    """This rank is excluded from a run that continues without it."""


class LaunchError(FrogError):
    """A world could not be started, or one of its ranks failed."""


class HangError(LaunchError):
    """The ranks of a world waited for each other until the deadline."""


class OwnStrategyError(FrogError):
    """A strategy of one's own failed, or broke a rule of its interface; names the file and the line."""


class NonFiniteError(FrogError):
    """A loss or a gradient is NaN or infinite."""


def report_error(error: BaseException, facts: ErrorFacts | None = None) -> dict[str, Any]:
    """Describe an error for the events and the launcher: its class, message, facts and time.

    facts: for an error that is not one of Frog's, the facts that the caller knows.
    """
    what, hint = (error.what, error.hint) if isinstance(error, FrogError) else (str(error), None)
    known = error.facts if isinstance(error, FrogError) else facts or ErrorFacts(cause=system_cause(error))
    return {
        "type": type(error).__name__,
        "message": what,
        "hint": hint,
        "facts": known.as_json(),
        "unix_ns": time.time_ns(),
    }
