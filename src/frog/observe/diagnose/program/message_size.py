"""Explain a message between two ranks that is longer than the tensor of its receiver, which gloo then ends.

The record of the receiver is lost. That of the sender shows whether the message had another size each time before.
"""

from __future__ import annotations

from frog.core.runs.observed import CodeLine, Message, Transfer
from frog.observe.diagnose.diagnosis import Diagnosis, note
from frog.observe.diagnose.program.evidence import Evidence, RankEvidence, at_place, place
from frog.observe.diagnose.program.places import collective_frames
from frog.observe.diagnose.program.rank_reports import report_ranks
from frog.observe.diagnose.program.transfer_rules import left_order, message_form, out_of_order

_SAME_SIZE = "both ranks need tensors of the same size: compare the batch and the sequence length on both"


def longer_message(evidence: Evidence, receiver: RankEvidence, reported: tuple[str, str]) -> Diagnosis | None:
    """Find the rank that sent a receiver, which reported a message of another size, what it did not expect.

    reported: the line of the log that says so, and the log.
    """
    inside = _function(receiver)
    for sender in sorted(evidence.ranks.values(), key=lambda rank: not _sends_to(rank, receiver)):
        waits = _sends_to(sender, receiver)
        message = _last_sent(sender, receiver.rank) or (sender.transfer if waits else None)
        if message is None or not (inside == "recv" or (waits and inside is None)):
            continue
        found = _found(receiver, sender, message)
        first = note(receiver.exited_ns, f"rank {receiver.rank}", *reported)
        return found.with_more(first, *report_ranks(evidence, [receiver.rank, sender.rank]))
    return None


def _sends_to(rank: RankEvidence, receiver: RankEvidence) -> bool:
    """True if a rank waited until the end for a message to the receiver."""
    return rank.transfer is not None and rank.transfer.is_send and rank.transfer.peer == receiver.rank


def _function(rank: RankEvidence) -> str | None:
    """Return the function of torch.distributed in which a rank was; None if it was in none."""
    return next((frame.function for frame in collective_frames(rank.stack)), None)


def _last_sent(sender: RankEvidence, receiver: int) -> Message | None:
    sent = sender.messages.last if sender.messages is not None else []
    return next((one for one in reversed(sent) if one.is_send and one.peer == receiver), None)


def _size_before(sender: RankEvidence, message: Transfer) -> list[int] | None:
    """Return the size that a message had in an earlier step."""
    if not isinstance(message, Message) or sender.messages is None:
        return None
    alike = [one for one in sender.messages.last if message_form(one) == message_form(message)]
    return alike[-2].size if len(alike) > 1 else None


def _found(receiver: RankEvidence, sender: RankEvidence, message: Transfer) -> Diagnosis:
    """Return the diagnosis. The sender is the odd one if it left its order, or its message had another size before."""
    sent = message.line if isinstance(message, Message) else _error_line(sender)
    before, why = _size_before(sender, message), left_order(sender)
    if before is not None and before != message.size:
        fault, advice, why = "shape", _SAME_SIZE, f", but of {_text(before)} before"
    elif why:
        fault, advice = "message", out_of_order(sender, receiver)
    else:
        fault, advice = "shape", _SAME_SIZE
    odd, line, peer_line = (sender, sent, receiver.line) if why else (receiver, receiver.line, sent)
    return Diagnosis(
        fault,
        f"rank {receiver.rank} received a message of another size than it expects{at_place(receiver.line)}; "
        f"rank {sender.rank} sent it one of {_text(message.size)} {message.dtype}{at_place(sent)}{why}",
        rank=odd.rank,
        node_rank=odd.node_rank,
        line=place(line) or None,
        peer_line=place(peer_line) or None,
        certain=False,
        advice=f"{advice}\nthe record of the rank that received the message was lost when gloo ended its process",
    )


def _error_line(rank: RankEvidence) -> CodeLine | None:
    return rank.error.line if rank.error is not None else None


def _text(size: list[int]) -> str:
    return "x".join(map(str, size)) or "1"
