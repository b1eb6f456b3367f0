"""Faults in programs that are not Frog's: `kill rank=1 collective=40`, `slow rank=0 after=5 factor=3`.

Their moment is a collective or a time, since Frog does not know the program's steps. The ranks inject them themselves
(`observe/hook/frog_observer/faults.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frog.core.errors import ConfigError
from frog.core.user_input import did_you_mean

PROGRAM_EXAMPLE = 'frog chaos --nproc 2 --fault "kill rank=1 collective=40" -- my.py'


@dataclass(frozen=True)
class ProgramKind:
    """A kind of fault, and the field that only it has."""

    what: str
    own: Mapping[str, float]
    """Default of each field."""
    needs_network: bool = False
    ends: bool = True
    """True if the world cannot continue after it."""


PROGRAM_KINDS: dict[str, ProgramKind] = {
    "kill": ProgramKind("the process is killed (SIGKILL)", {}),
    "stop": ProgramKind("the process is stopped (SIGSTOP): it still exists but does nothing", {}),
    "exit": ProgramKind("the process exits with `code` (0), without an error", {"code": 0}),
    "raise": ProgramKind("an error is raised in the main thread", {}),
    "slow": ProgramKind("from then on the process takes `factor` (2) times as long", {"factor": 2}, ends=False),
    "memory": ProgramKind("from then on an allocation that needs new memory from the system fails", {}),
    "disk": ProgramKind("from then on every write to a file fails", {}),
    "node": ProgramKind("the node is lost: all its processes are killed", {}),
    "cut": ProgramKind("the node's network is cut; needs --network", {}, needs_network=True),
}


@dataclass(frozen=True)
class ProgramFault:
    """A fault in one rank of a program."""

    kind: str
    rank: int
    collective: int | None = None
    """It happens when the rank has started this many collectives, in all groups together."""
    after_s: float | None = None
    """Or it happens this many seconds after the rank's start."""
    code: int = 0
    factor: float = 2.0

    def __str__(self) -> str:
        when = f"after={self.after_s:g}" if self.collective is None else f"collective={self.collective}"
        own = [f"{name}={getattr(self, name):g}" for name in PROGRAM_KINDS[self.kind].own]
        return " ".join([self.kind, f"rank={self.rank}", when, *own])


def parse_program_faults(texts: Sequence[str], world_size: int, has_network: bool) -> list[ProgramFault]:
    """Parse faults of programs.

    Raises:  ConfigError with the first mistake.
    """
    return [_parse(text, world_size, has_network) for text in texts]


def _parse(text: str, world_size: int, has_network: bool) -> ProgramFault:
    name, *words = text.split() or [""]
    kind = PROGRAM_KINDS.get(name)
    if kind is None:
        raise _mistake(text, f"{name!r} is not a kind of fault: {did_you_mean(name, PROGRAM_KINDS)}", "frog chaos list")
    numbers = _numbers(text, words, kind)
    rank = int(numbers.pop("rank", -1))
    if not 0 <= rank < world_size:
        raise _mistake(text, f"rank= must be 0 to {world_size - 1}", PROGRAM_EXAMPLE)
    if ("collective" in numbers) == ("after" in numbers):
        raise _mistake(text, "needs either collective=N or after=SECONDS", PROGRAM_EXAMPLE)
    if kind.needs_network and not has_network:
        raise _mistake(text, "there is no simulated network", '--nodes 2x1 --network "delay=1ms"')
    collective = int(numbers.pop("collective")) if "collective" in numbers else None
    own: dict[str, Any] = {"after_s": numbers.pop("after", None), **numbers}
    if "code" in own:
        own["code"] = int(own["code"])
    return ProgramFault(name, rank, collective, **own)


_LIMITS: dict[str, tuple[Callable[[float], bool], str]] = {
    "rank": (float.is_integer, "an integer"),
    "collective": (lambda value: value.is_integer() and value >= 1, "an integer from 1"),
    "after": (lambda value: value >= 0, "a number of seconds"),
    "code": (lambda value: value.is_integer() and 0 <= value < 256, "an integer from 0 to 255"),
    "factor": (lambda value: 1 < value <= 100, "more than 1 and at most 100"),
}


def _numbers(text: str, words: Sequence[str], kind: ProgramKind) -> dict[str, float]:
    """Return the fields of a fault, each of which is a number."""
    allowed = ("rank", "collective", "after", *kind.own)
    numbers: dict[str, float] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in allowed or name in numbers:
            hint = "each field once" if name in numbers else f"the fields are {', '.join(allowed)}"
            raise _mistake(text, f"cannot read {word!r}", hint)
        is_valid, wanted = _LIMITS[name]
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or not is_valid(number):
            raise _mistake(text, f"{name}={value} must be {wanted}", PROGRAM_EXAMPLE)
        numbers[name] = number
    return numbers


def _mistake(text: str, what: str, hint: str) -> ConfigError:
    return ConfigError(f"--fault {text!r}: {what}", hint)
