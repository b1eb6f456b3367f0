"""The error with which a rank ended, as its `error` event or its agent has it."""

from __future__ import annotations

from dataclasses import dataclass

from frog.core.facts import ErrorFacts
from frog.runs.schema import ErrorEvent, ReportedError


@dataclass(frozen=True)
class RankError:
    """What a rank said as it failed. Rules look at `kind` and `facts`; the words are passed on to people."""

    kind: str
    """Its class: CommError, KeyError."""
    message: str
    hint: str | None
    facts: ErrorFacts
    unix_ns: int
    file: str

    @property
    def lost_peers(self) -> bool:
        """Whether a collective failed under it: it has no reason of its own."""
        return self.kind == "CommError"

    @property
    def first_line(self) -> str:
        return self.message.partition("\n")[0]


def rank_error(error: ReportedError | ErrorEvent, file: str) -> RankError:
    """An error from what says it."""
    return RankError(error.type, error.message, error.hint, error.facts, error.unix_ns, file)
