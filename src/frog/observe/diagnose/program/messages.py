"""Find the message for which a rank waits in a method `wait`, among those that it has begun with `isend` and `irecv`.

It is the first one that the other rank has not begun: messages between two ranks with one tag are numbered alike.
"""

from __future__ import annotations

from frog.core.runs.observed import Message
from frog.observe.diagnose.program.evidence import Evidence, RankEvidence
from frog.observe.diagnose.program.victims import in_collective, lost_peers

_OTHER_SIDE = {"isend": "irecv", "irecv": "isend"}


def add_awaited_messages(evidence: Evidence) -> None:
    """Add to each rank that waited for a message which one it was."""
    for rank in evidence.ranks.values():
        if rank.transfer is None and rank.messages is not None:
            rank.transfer = _awaited(evidence, rank, rank.messages.last)


def _awaited(evidence: Evidence, rank: RankEvidence, messages: list[Message]) -> Message | None:
    pending = [message for message in messages if not message.done]
    if rank.error is not None:
        possible = messages if lost_peers(rank.error) and not in_collective(rank.error) else []
    else:
        possible = pending if rank.in_message else []
    unmet = (message for message in possible if not _is_met(evidence, rank, message))
    return next(unmet, pending[0] if pending and possible else _to_crashed(evidence, possible))


def _to_crashed(evidence: Evidence, messages: list[Message]) -> Message | None:
    """Return the last message to or from a rank whose record was lost in a crash."""
    others = ((message, evidence.ranks.get(message.peer or 0)) for message in reversed(messages))
    return next((message for message, other in others if other and other.crash and other.messages is None), None)


def _is_met(evidence: Evidence, rank: RankEvidence, message: Message) -> bool:
    """True if the other rank has begun its side of a message."""
    other = evidence.ranks.get(message.peer) if message.peer is not None else None
    if other is None or other.messages is None:
        return message.done
    if not (other.messages.whole and rank.messages is not None and rank.messages.whole):
        return message.done
    side = [_OTHER_SIDE[message.op], rank.rank, message.tag, message.group]
    return any(own == side and number >= message.number for *own, number in other.messages.counts)
