"""Complete the records of collectives with what other evidence shows."""

from __future__ import annotations

from dataclasses import replace

from frog.observe.diagnose.program.evidence import Call, Evidence, RankEvidence, same_line
from frog.observe.diagnose.program.victims import is_mismatch, lost_peers


def mark_failed_calls(evidence: Evidence) -> None:
    """Mark the collective in which a rank failed as not completed; torch marks it like those that succeeded."""
    for rank in evidence.ranks.values():
        error = rank.error
        if (
            rank.calls
            and rank.transfer is None
            and error is not None
            and error.fatal
            and (lost_peers(error) or is_mismatch(error))
        ):
            failed = _failed(rank)
            if failed is not None:
                _mark(rank, failed)


def _failed(rank: RankEvidence) -> Call | None:
    """Return the last call from the line of the error; the last call of all if its line is unknown.

    Return None if that line called no collective, but the rank has begun messages: it failed in one of them.
    """
    lines = [rank.error.line, *rank.error.frames] if rank.error is not None else []
    of_line = [call for call in rank.calls if any(same_line(call.line, line) for line in lines)]
    if lines[0:1] != [None] and not of_line and rank.messages is not None and rank.messages.last:
        return None
    return max(of_line or rank.calls, key=lambda call: (call.created_ns or 0, call.seq))


def _mark(rank: RankEvidence, failed: Call) -> None:
    rank.calls = [
        replace(call, done=False) if call.group == failed.group and call.seq >= failed.seq else call
        for call in rank.calls
    ]
    if rank.completed.get(failed.group, 0) >= failed.seq:
        rank.completed[failed.group] = failed.seq - 1


def add_lines(evidence: Evidence) -> None:
    """Add the lines of calls that a rank recorded without: those of its peers' calls with the same number and form."""
    known = {
        (call.group, call.seq, call.op, call.elements): call.line
        for rank in evidence.ranks.values()
        for call in rank.calls
        if call.line is not None and not call.p2p
    }
    for rank in evidence.ranks.values():
        rank.calls = [
            replace(call, line=known.get((call.group, call.seq, call.op, call.elements))) if call.line is None else call
            for call in rank.calls
        ]
