"""Rules about messages between two ranks: one that is never sent or received, or is longer than expected."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from frog.core.runs.observed import CodeLine, Message, Transfer
from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis, note
from frog.observe.diagnose.program.code_blocks import calling_loops, sends_and_receives
from frog.observe.diagnose.program.code_lines import collective_frames, is_user_file
from frog.observe.diagnose.program.code_partings import handler_past, parting_lines, parting_of, stack_of
from frog.observe.diagnose.program.compared_calls import Difference
from frog.observe.diagnose.program.condition_sources import source_words
from frog.observe.diagnose.program.evidence import (
    Call,
    Evidence,
    GroupNames,
    RankEvidence,
    at_place,
    place,
    same_line,
)
from frog.observe.diagnose.program.parting_words import SKIP_TOGETHER, passes_alone
from frog.observe.diagnose.program.peer_errors import lost_peers, timed_out
from frog.observe.diagnose.program.rank_reports import after_error, describe_call, report_ranks
from frog.observe.diagnose.program.stack_rules import reason_of_absence

_NOT_MET = (
    "every send needs a recv on the other rank at the same time, and every recv a send: compare the two lines\n"
    "if both ranks send first, let one of them receive first, or use isend and irecv (batch_isend_irecv)"
)


def transfer_peers(evidence: Evidence) -> dict[int, int]:
    """Return the ranks that waited for a message when the program stopped, and the rank for which each waited."""
    ranks = evidence.ranks
    still = evidence.hung or any(rank.error is not None and timed_out(rank.error) for rank in ranks.values())
    return {
        number: rank.transfer.peer
        for number, rank in ranks.items()
        if rank.transfer is not None
        and rank.transfer.peer is not None
        and _was_waiting(rank)
        and (still or (rank.error is not None and _has_ended(ranks.get(rank.transfer.peer))))
    }


def _was_waiting(rank: RankEvidence) -> bool:
    return lost_peers(rank.error) if rank.error is not None else rank.state == "running"


def _has_ended(rank: RankEvidence | None) -> bool:
    return rank is not None and rank.error is None and (rank.state == "ended" or rank.exit_code == 0)


def without_transfers(evidence: Evidence, found: Difference) -> Difference:
    """Leave out the ranks that did not come to a collective because they wait for a message, unless all do."""
    rest = tuple(number for number in found.absent if number not in transfer_peers(evidence))
    return replace(found, absent=rest) if rest else found


def transfer(evidence: Evidence) -> Diagnosis | None:
    """Explain why a message between two ranks was never sent or received."""
    peers = transfer_peers(evidence)
    if (other := _wrong_peers(evidence, peers)) is not None:
        return other
    for number in peers:
        path = _path(peers, number)
        last = path[-1]
        diagnosis = (
            _circle(evidence, path[path.index(peers[last]) :])
            if last in peers
            else _waits_for_rank_elsewhere(evidence, path)
        )
        if diagnosis is not None:
            return diagnosis
    return None


def _wrong_peers(evidence: Evidence, peers: dict[int, int]) -> Diagnosis | None:
    """Find a rank that sends and one that receives, each the first message to a rank that waits for none.

    They probably mean each other: an index within a group was used as a rank of the world, or the other way round.
    """
    waiting = [evidence.ranks[number] for number in peers if not {peers[number]} & peers.keys()]
    senders = [rank for rank in waiting if rank.transfer is not None and rank.transfer.is_send]
    receivers = [rank for rank in waiting if rank.transfer is not None and not rank.transfer.is_send]
    for one, other in itertools.product(senders, receivers):
        mine, yours = one.transfer, other.transfer
        if mine is None or yours is None or one is other or not (_is_first(one) and _is_first(other)):
            continue
        if (mine.size, mine.dtype, mine.tag) == (yours.size, yours.dtype, yours.tag):
            return _pair(evidence, one, other).with_more(
                finding=f"{_waits(one)}, and {_waits(other)}; neither message has another side: rank {one.rank} and "
                f"rank {other.rank} probably mean each other, and name wrong peers",
                advice="dst and src are ranks of the world: an index within a group or a pipeline must be translated "
                "(dist.get_global_rank(group, index)), or given as group_dst and group_src",
            )
    return None


def _is_first(rank: RankEvidence) -> bool:
    """True if the message for which a rank waits is the only one that it has begun with this peer, as far as known."""
    if rank.transfer is None or rank.messages is None or not rank.messages.whole:
        return False
    kinds = ("isend", "send") if rank.transfer.is_send else ("irecv", "recv")
    numbers = [number for op, peer, *_, number in rank.messages.counts if op in kinds and peer == rank.transfer.peer]
    return sum(numbers) <= 1


def _path(peers: dict[int, int], start: int) -> list[int]:
    """Return a rank, the one for which it waits, and so on, until one that waits for no message, or comes again."""
    path = [start]
    while path[-1] in peers and peers[path[-1]] not in path:
        path.append(peers[path[-1]])
    return path


def _circle(evidence: Evidence, circle: list[int]) -> Diagnosis:
    """Explain ranks that wait for each other, each for the next one."""
    ranks = sorted(circle)
    finding = f"{span(ranks)} wait for each other: {'; '.join(_waits(evidence.ranks[number]) for number in ranks[:8])}"
    left = [number for number in ranks if _deviation(evidence.ranks[number]) is not None]
    if len(left) == 1:
        one, other = evidence.ranks[left[0]], evidence.ranks[circle[circle.index(left[0]) - 1]]
        return _pair(evidence, one, other, *ranks).with_more(
            finding=f"{finding}{_other_tags(one, other)}{left_order(one)}",
            advice=out_of_order(one, other),
        )
    if len(ranks) > 2:
        return _ring(evidence, circle, finding)
    one, other = evidence.ranks[ranks[0]], evidence.ranks[ranks[-1]]
    diagnosis = _pair(evidence, one, other, *ranks).with_more(finding=finding)
    if not _is_one_message(one, other):
        return diagnosis
    if groups := _other_groups(evidence, one, other):
        return diagnosis.with_more(
            finding=f"{finding}{groups}",
            advice="both ranks of a message must name the same group: derive it from the pair of ranks, not from what "
            "one rank is, such as odd or even",
        )
    if tags := _other_tags(one, other):
        return diagnosis.with_more(
            finding=f"{finding}{tags}",
            advice="use the same tag on both ranks; if tags number the messages, one rank has skipped one or is ahead",
        )
    return diagnosis.with_more(
        fault="network",
        finding=f"{finding}: the message does not arrive",
        advice="compare the sizes and types of both tensors, then look at the network between their hosts",
    )


def _ring(evidence: Evidence, circle: list[int], finding: str) -> Diagnosis:
    """Explain three ranks or more of a circle, each of which waits for the next one.

    If one place in it has two ranks that both send, or both receive, the first of them meets a rank that does its part
    with it, but is busy with another one.
    """
    ranks = sorted(circle)
    sends = [message.is_send if (message := evidence.ranks[each].transfer) is not None else None for each in circle]
    alike = [at for at, each in enumerate(sends) if each == sends[(at + 1) % len(sends)]]
    one, other = evidence.ranks[ranks[0]], evidence.ranks[ranks[-1]]
    why = ""
    if len(alike) == len(circle):
        verbs = ("send", "receive") if sends[0] else ("receive", "send")
        why = f": all of them {verbs[0]} first, so that none can begin: at least one must {verbs[1]} first"
    elif len(alike) == 1:
        at = alike[0]
        one, other, elsewhere = (evidence.ranks[circle[(at + step) % len(circle)]] for step in (0, -1, 1))
        does, waits = ("sends to", "receives from") if sends[at] else ("receives from", "sends to")
        why = (
            f"; rank {other.rank} {waits} rank {one.rank}, which {does} rank {elsewhere.rank} instead, and that one "
            f"{'sends' if sends[at] else 'receives'}, too: the order or the plan of rank {one.rank} is probably "
            "another one than that of its peers"
        )
    return _pair(evidence, one, other, *ranks).with_more(finding=f"{finding}{why}")


def _is_one_message(one: RankEvidence, other: RankEvidence) -> bool:
    """True if two ranks wait for each other, one to send and one to receive."""
    mine, yours = one.transfer, other.transfer
    return (
        mine is not None
        and yours is not None
        and (mine.peer, yours.peer) == (other.rank, one.rank)
        and mine.is_send != yours.is_send
    )


def _other_tags(one: RankEvidence, other: RankEvidence) -> str:
    mine, yours = one.transfer, other.transfer
    differ = _is_one_message(one, other) and mine and yours and mine.tag != yours.tag
    return ": their tags differ" if differ else ""


def _other_groups(evidence: Evidence, one: RankEvidence, other: RankEvidence) -> str:
    """Say that two ranks wait for one message in different groups; empty if the groups are equal or unknown."""
    groups = [_group_of(rank) for rank in (one, other)]
    if not all(groups) or groups[0] == groups[1]:
        return ""
    one_does, other_does = (
        f"rank {rank.rank} {'sends' if rank.transfer is not None and rank.transfer.is_send else 'receives'} in "
        + GroupNames(rank.groups).find(group).label(evidence.world)
        for rank, group in zip((one, other), groups, strict=True)
    )
    return f": their groups differ: {one_does}, and {other_does}"


def _group_of(rank: RankEvidence) -> str:
    """Return torch's name for the group of the message for which a rank waits; empty if that is unknown."""
    waits = rank.transfer
    if waits is None or isinstance(waits, Message):
        return waits.group if isinstance(waits, Message) else ""
    begun = rank.messages.last if rank.messages is not None else []
    alike = [each for each in begun if not each.done and (each.is_send, each.peer) == (waits.is_send, waits.peer)]
    return alike[-1].group if alike else ""


def _deviation(rank: RankEvidence) -> Deviation | None:
    return deviation(rank.messages.last) if rank.messages is not None else None


def left_order(rank: RankEvidence) -> str:
    """Say which message a rank began where it began another each time before; empty if it kept its order."""
    turned = _deviation(rank)
    if turned is None:
        return ""
    usual = "" if same_line(turned.message.line, turned.usual.line) else at_place(turned.usual.line)
    return (
        f"; rank {rank.rank} left its order: after a message {_way(turned.after)}, it began one {_way(turned.message)}"
        f"{at_place(turned.message.line)}, but each time before, one {_way(turned.usual)}{usual}"
    )


def out_of_order(odd: RankEvidence, other: RankEvidence) -> str:
    """Return advice about a rank that left the order of its messages."""
    return (
        f"find out why rank {odd.rank} left its order: a condition, a tag, a peer, or the number of rounds\n"
        f"if it should, rank {other.rank} must do its part in the same order"
    )


def _way(message: Transfer) -> str:
    peer = f"rank {message.peer}" if message.peer is not None else "any rank"
    return f"{'to' if message.is_send else 'from'} {peer}{_tag(message)}"


def _tag(message: Transfer) -> str:
    return f" with tag {message.tag}" if message.tag else ""


def _waits_for_rank_elsewhere(evidence: Evidence, path: list[int]) -> Diagnosis | None:
    """Explain a rank that waits for one which is elsewhere."""
    waits, rank = evidence.ranks[path[-2]], evidence.ranks.get(path[-1])
    if rank is None:
        return None
    call = next((call for call in rank.pending if not call.p2p), None)
    if call is not None:
        return _in_collective(evidence, waits, rank, call)
    if rank.transfer is not None and rank.transfer.peer is None and _was_waiting(rank):
        return _from_any(evidence, waits, rank)
    fault, doing, advice = reason_of_absence(rank)
    return _pair(evidence, rank, waits).with_more(
        fault=fault,
        certain=fault in ("ended", "stop"),
        finding=f"{_waits(waits)}, but rank {rank.rank} {doing}",
        advice=advice,
    )


def _from_any(evidence: Evidence, waits: RankEvidence, rank: RankEvidence) -> Diagnosis:
    """Explain a rank that waits for one which waits for a message from any rank, which none sends."""
    others = [other for number, other in evidence.ranks.items() if number != rank.rank]
    ended = [other for other in others if _has_ended(other)]
    left = [other for other in others if _deviation(other) is not None]
    odd, why = rank, ""
    if ended:
        odd, why = ended[0], f"; rank {ended[0].rank} ended without an error"
    elif len(left) == 1:
        odd, why = left[0], left_order(left[0])
    elif (fewest := _sent_fewest(others, rank)) is not None:
        odd, why = fewest, f"; rank {fewest.rank} has sent it fewer than any other rank"
    return _pair(evidence, odd, rank if odd is not rank else waits, waits.rank).with_more(
        fault="ended" if ended else "message",
        finding=f"{_waits(waits)}, but {_waits(rank)}, and no rank sends one{why}",
    )


def _sent_fewest(ranks: list[RankEvidence], receiver: RankEvidence) -> RankEvidence | None:
    """Return the only rank that has sent a receiver the fewest messages of the tag for which it waits."""
    tag = receiver.transfer.tag if receiver.transfer is not None else 0
    sent: dict[int, list[RankEvidence]] = {}
    for rank in ranks:
        if rank.messages is None or not rank.messages.whole:
            return None
        numbers = [
            number
            for op, peer, own, _, number in rank.messages.counts
            if (op, peer, own) == ("isend", receiver.rank, tag)
        ]
        sent.setdefault(sum(numbers), []).append(rank)
    fewest = sent.get(min(sent, default=0), [])
    return fewest[0] if len(fewest) == 1 and len(sent) > 1 else None


def _in_collective(evidence: Evidence, waits: RankEvidence, rank: RankEvidence, call: Call) -> Diagnosis | None:
    """Explain a rank that waits for one which waits in a collective, unless others do not come to that collective.

    A rank that left the order of its messages is the odd one. Otherwise it is the first, if the other one has begun as
    many messages in each round as before, or if the first never had a message and most ranks came to the collective.
    """
    members = call.group.members or tuple(evidence.world)
    callers = [number for number in members if _called(evidence.ranks.get(number), call)]
    if not {*members} - {*callers} <= transfer_peers(evidence).keys():
        return None
    if (past := _past_a_handler(evidence, waits, rank, call)) is not None:
        return past
    is_extra = not waits.num_messages and len(callers) * 2 > len(members)
    in_step = _keeps_step(rank, call)
    first_is_odd = _deviation(rank) is None and (is_extra or in_step or _deviation(waits) is not None)
    odd, other = (waits, rank) if first_is_odd else (rank, waits)
    surplus = _surplus(waits, rank)
    if surplus and _deviation(rank) is None:
        odd, other, first_is_odd = waits, rank, True
    skipped = f": rank {waits.rank} probably skipped that collective" if first_is_odd and in_step else ""
    why = surplus or left_order(odd) or skipped or _schedule_alone(waits, rank, call) or _one_round_more(waits, rank)
    return _pair(evidence, odd, other).with_more(
        collective=describe_call(evidence, call),
        finding=f"{_waits(waits)}, but rank {rank.rank} waits in {describe_call(evidence, call)}{why}",
    )


def _past_a_handler(evidence: Evidence, waits: RankEvidence, rank: RankEvidence, call: Call) -> Diagnosis | None:
    """Find a rank that came to its message once more without the collective, past which an error may have led it."""
    stack = tuple(frame for frame in waits.stack if is_user_file(frame.file))
    lines, handler = parting_lines(stack_of(call), stack), handler_past(stack_of(call), stack)
    if lines is None or handler is None or lines[1].line >= lines[0].line or not waits.num_messages:
        return None
    if _deviation(rank) is not None or any(same_line(each.line, call.line) for each in waits.pending):
        return None
    return _pair(evidence, waits, rank).with_more(
        fault="skipped",
        collective=describe_call(evidence, call),
        finding=f"{_waits(waits)}, but rank {rank.rank} waits in {describe_call(evidence, call)}, which comes before "
        f"it: an error probably led rank {waits.rank} past that, and {handler} caught it{after_error(waits)}",
        advice=SKIP_TOGETHER,
    )


def _surplus(waits: RankEvidence, rank: RankEvidence) -> str:
    """Say that a rank has sent another one more messages than that one took and gave back; empty if it has not.

    Both sides of a schedule usually have as many messages one way as the other: so the rank with more is the odd one.
    """
    there, taken = _number(waits, "send", rank.rank), _number(rank, "recv", waits.rank)
    back = {_number(rank, "send", waits.rank), _number(waits, "recv", rank.rank)}
    if there is None or taken is None or there <= taken or back != {taken} or not taken:
        return ""
    line = waits.transfer.line if isinstance(waits.transfer, Message) else _waiting_line(waits)
    loops = " or ".join(map(str, calling_loops(line))) if line is not None else ""
    return (
        f"; rank {waits.rank} has sent it {there} messages and taken {taken}, rank {rank.rank} has sent and taken "
        f"{taken}: rank {waits.rank} probably sends too many{f', in {loops}' if loops else ''}"
    )


def _one_round_more(waits: RankEvidence, rank: RankEvidence) -> str:
    """Say that a rank waits for one message more than another one has begun with it; empty if it does not."""
    if waits.transfer is None:
        return ""
    own, others = ("send", "recv") if waits.transfer.is_send else ("recv", "send")
    begun, met = _number(waits, own, rank.rank), _number(rank, others, waits.rank)
    if begun is None or not met or begun <= met:
        return ""
    line = _waiting_line(waits)
    loops = " or ".join(map(str, calling_loops(line))) if line is not None else ""
    has, does = ("taken", "sends") if waits.transfer.is_send else ("sent", "waits for")
    return (
        f"; rank {rank.rank} has {has} {met} of its messages, and rank {waits.rank} {does} number {met + 1}"
        f"{f', in {loops}' if loops else ''}: the number of rounds probably differs between the ranks"
    )


def _number(rank: RankEvidence, op: str, peer: int) -> int | None:
    """Return how many messages a rank has begun to send to another one, or to receive; None if that is not known."""
    if rank.messages is None or not rank.messages.whole:
        return None
    return sum(number for own, other, *_, number in rank.messages.counts if own.endswith(op) and other == peer)


def _schedule_alone(waits: RankEvidence, rank: RankEvidence, call: Call) -> str:
    """Name the branch by which a rank called a function that sends and receives, without the other; empty without one.

    A branch right around a message says nothing: `if rank == 0:` often sends, and its `else` receives.
    """
    stack = tuple(frame for frame in waits.stack if is_user_file(frame.file))
    parting = parting_of(stack, stack_of(call), ())
    if parting is None or parting.block.kind != "if":
        return ""
    inside = list(itertools.takewhile(lambda frame: not parting.block.holds(frame), stack))
    if len(inside) == len(stack) or not any(map(sends_and_receives, inside)):
        return ""
    return f": {passes_alone(parting.block, waits.rank, rank.rank, True)}{source_words(parting.block)}"


def _keeps_step(rank: RankEvidence, call: Call) -> bool:
    """True if a rank has begun as many messages of each kind in this round, which the collective ends, as before."""
    rounds = sum(same_line(each.line, call.line) for each in rank.calls)
    if rounds < 2 or rank.messages is None or not rank.messages.whole or not rank.messages.counts:
        return False
    return all(number % rounds == 0 for *_, number in rank.messages.counts)


def _called(rank: RankEvidence | None, call: Call) -> bool:
    return rank is not None and any((each.group, each.seq) == (call.group, call.seq) for each in rank.calls)


def _pair(evidence: Evidence, odd: RankEvidence, other: RankEvidence, *more: int) -> Diagnosis:
    """Return the fields of a diagnosis of two ranks that do not meet. more: ranks to report, too."""
    return Diagnosis(
        "message",
        "",
        rank=odd.rank,
        node_rank=odd.node_rank,
        line=place(_waiting_line(odd)) or None,
        peer_line=place(_waiting_line(other)) or None,
        certain=False,
        evidence=report_ranks(evidence, [*dict.fromkeys([odd.rank, other.rank, *more])]),
        advice=_NOT_MET,
    )


def _waits(rank: RankEvidence) -> str:
    if rank.transfer is None:
        return f"rank {rank.rank}"
    size = "x".join(map(str, rank.transfer.size)) or "1"
    what = f"{rank.transfer.op} of {size} {rank.transfer.dtype} {_way(rank.transfer)}"
    return f"rank {rank.rank} waits in {what}{at_place(_waiting_line(rank))}{_begun(rank)}"


def _begun(rank: RankEvidence) -> str:
    """Return the line that began the message, if the rank waits in another."""
    line = rank.transfer.line if isinstance(rank.transfer, Message) else None
    return "" if line is None or same_line(line, _waiting_line(rank)) else f" (begun{at_place(line)})"


def _waiting_line(rank: RankEvidence) -> CodeLine | None:
    return rank.error.line if rank.error is not None and rank.error.line is not None else rank.line


# ---- a rank's messages and those that it began before, as the steps of a loop repeat ---------------------------------

_LEAST_REPEATS = 2
"""How often a message must have followed another, and no other one, to be the usual one."""


_MOST_SINCE = 32
"""Most messages that a rank may have begun since it left their order: others accepted what is older."""


class Deviation(NamedTuple):
    """A place at which a rank began another message than each time before."""

    after: Message
    usual: Message
    message: Message


def deviation(messages: list[Message]) -> Deviation | None:
    """Return the last place at which a rank left the order of its messages; None if it did not, as far as known.

    What it did again later, such as to leave an inner loop, is part of its order. A rank that receives from any rank
    has none of its own.
    """
    latest = None
    if any(message.peer is None for message in messages):
        return None
    pairs = [(message_form(one), message_form(other)) for one, other in itertools.pairwise(messages)]
    times = Counter(pairs)
    followers: dict[tuple[object, ...], list[Message]] = {}
    for number, (one, message) in enumerate(itertools.pairwise(messages), 2):
        last, this = pairs[number - 2]
        before = followers.setdefault(last, [])
        is_new = times[last, this] == 1 and number > len(messages) - _MOST_SINCE
        if is_new and len(before) >= _LEAST_REPEATS and len({message_form(each) for each in before}) == 1:
            latest = Deviation(one, before[-1], message)
        before.append(message)
    return latest


def message_form(message: Message) -> tuple[object, ...]:
    """Return what the same message of another step has in common with this one."""
    line = (message.line.file, message.line.line) if message.line is not None else None
    return message.op, message.peer, message.tag, message.group, line


# ---- a message that is longer than the tensor of its receiver, which gloo then ends ----------------------------------

_SAME_SIZE = "both ranks need tensors of the same size: compare the batch and the sequence length on both"


def longer_message(evidence: Evidence, receiver: RankEvidence, reported: tuple[str, str]) -> Diagnosis | None:
    """Find the rank that sent a receiver, which reported a message of another size, what it did not expect.

    The record of the receiver is lost. That of the sender shows whether the message had another size each time before.
    reported: the line of the log that says so, and the log.
    """
    inside = _torch_function(receiver)
    for sender in sorted(evidence.ranks.values(), key=lambda rank: not _sends_to(rank, receiver)):
        waits = _sends_to(sender, receiver)
        message = _last_sent(sender, receiver.rank) or (sender.transfer if waits else None)
        if message is None or not (inside == "recv" or (waits and inside is None)):
            continue
        diagnosis = _longer_message_from(receiver, sender, message)
        first = note(receiver.exited_ns, f"rank {receiver.rank}", *reported)
        return diagnosis.with_more(first, *report_ranks(evidence, [receiver.rank, sender.rank]))
    return None


def _sends_to(rank: RankEvidence, receiver: RankEvidence) -> bool:
    """True if a rank waited until the end for a message to the receiver."""
    return rank.transfer is not None and rank.transfer.is_send and rank.transfer.peer == receiver.rank


def _torch_function(rank: RankEvidence) -> str | None:
    """Return the function of torch.distributed in which a rank was; None if it was in none."""
    return next((frame.function for frame in collective_frames(rank.stack)), None)


def _last_sent(sender: RankEvidence, receiver: int) -> Message | None:
    sent = sender.messages.last if sender.messages is not None else []
    return next((message for message in reversed(sent) if message.is_send and message.peer == receiver), None)


def _size_before(sender: RankEvidence, message: Transfer) -> list[int] | None:
    """Return the size that a message had in an earlier step."""
    if not isinstance(message, Message) or sender.messages is None:
        return None
    alike = [other for other in sender.messages.last if message_form(other) == message_form(message)]
    return alike[-2].size if len(alike) > 1 else None


def _longer_message_from(receiver: RankEvidence, sender: RankEvidence, message: Transfer) -> Diagnosis:
    """Return the diagnosis. The sender is the odd one if it left its order, or its message had another size before."""
    sent = message.line if isinstance(message, Message) else _error_line(sender)
    before, why = _size_before(sender, message), left_order(sender)
    if before is not None and before != message.size:
        fault, advice, why = "shape", _SAME_SIZE, f", but of {_size_text(before)} before"
    elif why:
        fault, advice = "message", out_of_order(sender, receiver)
    else:
        fault, advice = "shape", _SAME_SIZE
    odd, line, peer_line = (sender, sent, receiver.line) if why else (receiver, receiver.line, sent)
    return Diagnosis(
        fault,
        f"rank {receiver.rank} received a message of another size than it expects{at_place(receiver.line)}; "
        f"rank {sender.rank} sent it one of {_size_text(message.size)} {message.dtype}{at_place(sent)}{why}",
        rank=odd.rank,
        node_rank=odd.node_rank,
        line=place(line) or None,
        peer_line=place(peer_line) or None,
        certain=False,
        advice=f"{advice}\nthe record of the rank that received the message was lost when gloo ended its process",
    )


def _error_line(rank: RankEvidence) -> CodeLine | None:
    return rank.error.line if rank.error is not None else None


def _size_text(size: list[int]) -> str:
    return "x".join(map(str, size)) or "1"
