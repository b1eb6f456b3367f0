"""Judges how the copies of an undisturbed session ended."""

from __future__ import annotations

from frog.core.errors import describe_exit
from frog.measure.peers.findings import Finding
from frog.measure.peers.observed import Observed, RankEnd

NO_OPERATION = 3
"""The exit code with which a peer reports that it does not support an operation."""
_MOST_QUOTED = 300


def judge_ends(seen: Observed) -> Finding | None:
    """Check that all ended on their own, with exit code 0, and left no process behind."""
    where = f"world {seen.world}: "
    if seen.breach is not None:
        return Finding(seen.breach.id, where + seen.breach.observed + _progress(seen))
    if failed := [rank for rank, end in enumerate(seen.ends) if end.code]:
        return _failed(seen, failed)
    if seen.left:
        ranks = " and ".join(map(str, seen.left))
        return Finding("left-over", f"{where}rank {ranks} ended and left a running process behind.")
    return None


def has_no_operation(seen: Observed) -> bool:
    """True if all peers report that they do not support the operation."""
    return all(end.code == NO_OPERATION for end in seen.ends)


def _failed(seen: Observed, failed: list[int]) -> Finding:
    """Return the first failure that was not caused by the loss of another rank."""
    rank = min(failed, key=lambda rank: (seen.ends[rank].lost is not None, seen.ends[rank].at_s))
    end = seen.ends[rank]
    text = f"world {seen.world}: rank {rank} {describe_exit(end.code or 0)}{last_words(end)}"
    if end.code == NO_OPERATION:
        return Finding("no-operation", text)
    if end.lost is None:
        return Finding("crashed", text)
    gone = seen.ends[end.lost] if 0 <= end.lost < seen.world else None
    if gone is not None and gone.code == 0 and gone.at_s <= end.at_s:
        return Finding("sizes-disagree", f"{text}. Rank {end.lost} had ended with exit code 0.")
    return Finding("lost-nobody", text)


def last_words(end: RankEnd) -> str:
    """Quote the last line of its output, or state that there was none."""
    lines = end.output.strip().splitlines()
    return f"; its last output: {lines[-1].strip()[:_MOST_QUOTED]}" if lines else ", without any output."


def _progress(seen: Observed) -> str:
    """Describe the progress of a session when it was ended."""
    at_work = [str(rank) for rank, end in enumerate(seen.ends) if end.code is None]
    sent = sum(seen.sent.values())
    return f" Rank {', '.join(at_work) or 'none'} had not ended; {sent:,} bytes had been sent in all."
