"""The error with which a rank ended, as its `error` event or its agent has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from frog.core.facts import ErrorFacts

T = TypeVar("T")


@dataclass(frozen=True)
class RankError:
    """What a rank said as it failed. Rules look at `kind` and `facts`; the words are passed on to people."""

    kind: str
    """Its class: CommError, KeyError."""
    message: str
    hint: str | None
    facts: ErrorFacts
    has_facts: bool
    """False if an older Frog wrote it: then `facts` are empty because nobody noted any."""
    unix_ns: int | None
    file: str

    @property
    def lost_peers(self) -> bool:
        """Whether a collective failed under it: it has no reason of its own."""
        return self.kind == "CommError"

    @property
    def first_line(self) -> str:
        return self.message.partition("\n")[0]


def read_error(table: object, file: str) -> RankError | None:
    """An error from an event's fields; None if there is none. Fields that an older Frog did not write are empty."""
    if isinstance(table, str):
        return RankError("Error", table, None, ErrorFacts(), False, None, file)
    if not isinstance(table, Mapping):
        return None
    facts = decoded(table.get("facts"), ErrorFacts)
    kind, message, hint, unix_ns = (table.get(key) for key in ("type", "message", "hint", "unix_ns"))
    return RankError(
        str(kind or "Error"), str(message or ""), hint, facts or ErrorFacts(), facts is not None, unix_ns, file
    )


def decoded(value: Any, kind: type[T]) -> T | None:
    """Part of an event as an instance of `kind`; None if it is not of that form."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None
