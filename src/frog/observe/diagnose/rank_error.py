"""The error with which a rank ended, from its `error` event or its agent's report."""

from __future__ import annotations

from dataclasses import dataclass

from frog.core.errors import ErrorFacts
from frog.core.runs.event_schema import ErrorEvent, ReportedError


@dataclass(frozen=True)
class RankError:
    """The reported error of a rank. Rules read `kind` and `facts`; the text is only shown to people."""

    kind: str
    """Class of the error: CommError, KeyError."""
    message: str
    hint: str | None
    facts: ErrorFacts
    unix_ns: int
    file: str

    @property
    def lost_peers(self) -> bool:
        """True if one of its collectives failed, so that the cause lies in another rank."""
        return self.kind == "CommError"

    @property
    def first_line(self) -> str:
        return self.message.partition("\n")[0]


def rank_error(error: ReportedError | ErrorEvent, file: str) -> RankError:
    """Convert a reported error or an error event."""
    return RankError(error.type, error.message, error.hint, error.facts, error.unix_ns, file)
