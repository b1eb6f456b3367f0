"""Rules about a mismatch that the backend reported in a log, if the records of collectives do not show it.

gloo ends a process that receives a longer message than it expects, so its record is lost. The record of another rank
shows whether that rank left the order in which it has called its collectives before.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from frog.core.runs.observed import CodeLine
from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis, note
from frog.observe.diagnose.program.code_blocks import Block, blocks_around, innermost_loop, is_readable, loop_over_a_set
from frog.observe.diagnose.program.code_lines import is_user_file
from frog.observe.diagnose.program.code_partings import (
    Parting,
    holds_stack,
    other_tests,
    parting_of,
    rank_branch,
    rank_test_between,
    skipped_round,
    stack_of,
    tries_again,
    ways_out,
)
from frog.observe.diagnose.program.code_uses import used_under
from frog.observe.diagnose.program.compared_calls import is_unusual, usual_after
from frog.observe.diagnose.program.condition_sources import source_words, sources_of_loop
from frog.observe.diagnose.program.evidence import Call, Evidence, Group, RankEvidence, at_place, place, same_line
from frog.observe.diagnose.program.parting_words import (
    AGREE_FIRST,
    EVEN_ROUNDS,
    OUT_OF_BRANCH,
    SKIP_TOGETHER,
    again_words,
    begins_anew,
    by_backward,
    change_from_usual,
    has_passed,
    leaves_loop,
    left_out_of_round,
    more_than_usual,
    passes_alone,
    several_sizes,
    skipped_words,
    visits_of,
)
from frog.observe.diagnose.program.peer_errors import in_collective
from frog.observe.diagnose.program.rank_reports import (
    RECORD_COLLECTIVES,
    after_error,
    describe_call,
    led_by_error,
    report_ranks,
    survived_error,
    they_wait,
)
from frog.observe.diagnose.program.transfer_rules import longer_message

_NOWHERE = CodeLine(file="", line=0)


@dataclass(frozen=True)
class _Meeting:
    """The rank that received an unexpected message, and one that waits in another call."""

    receiver: int
    message: tuple[str, str]
    """The line of the log, and the log."""
    line: CodeLine | None
    other: int | None
    call: Call | None
    """The call in which the other rank waits."""


def reported(evidence: Evidence) -> Diagnosis | None:
    """Explain a mismatch that the backend reported."""
    met = _meeting(evidence)
    if met is None:
        return None
    return (
        _led_there(evidence, met)
        or longer_message(evidence, evidence.ranks[met.receiver], met.message)
        or _used_by_one(evidence, met)
        or _parted(evidence, met)
        or _left_its_order(evidence, met)
        or _parted(evidence, met, after_errors=True)
        or _left_out(evidence, met)
        or _other_rounds(evidence, met)
        or _in_a_loop_of_one_size(evidence, met)
        or _unexpected(evidence, met)
    )


def _led_there(evidence: Evidence, met: _Meeting) -> Diagnosis | None:
    """Find a rank that made its call while it was handling an error."""
    other = evidence.ranks[met.other] if met.other is not None else None
    if other is None or met.call is None or not (words := led_by_error(other)):
        return None
    return _found(evidence, met).with_more(
        fault="skipped",
        rank=met.other,
        node_rank=other.node_rank,
        line=place(met.call.line) or None,
        peer_line=place(met.line) or None,
        finding=f"rank {met.receiver} received a message of another size than its collective{at_place(met.line)} "
        f"expects; rank {met.other} called {describe_call(evidence, met.call)}: {words}",
        advice=SKIP_TOGETHER,
    )


def _meeting(evidence: Evidence) -> _Meeting | None:
    said = {number: rank for number, rank in evidence.ranks.items() if rank.mismatch}
    crashed = {number: rank for number, rank in evidence.ranks.items() if evidence.mismatch and rank.exit_code == -6}
    receiver = min(said or crashed, default=None)
    if receiver is None:
        return None
    rank = evidence.ranks[receiver]
    pending = {number: own.pending[0] for number, own in evidence.ranks.items() if number != receiver and own.pending}
    pending = pending or _garbled(evidence, receiver)
    other = min(pending, key=lambda number: pending[number].created_ns or 0, default=None)
    message = rank.mismatch or evidence.mismatch or ("", "")
    call = _with_line(evidence.ranks[other], pending[other]) if other is not None else None
    return _Meeting(receiver, message, rank.line, other, call)


def _garbled(evidence: Evidence, receiver: int) -> dict[int, Call]:
    """Return the last calls of ranks that an error inside a collective ended: they received something else."""
    ranks = {number: rank for number, rank in evidence.ranks.items() if number != receiver and rank.calls}
    return {
        number: max(rank.calls, key=lambda call: call.created_ns or 0)
        for number, rank in ranks.items()
        if rank.error is not None and in_collective(rank.error)
    }


def _with_line(rank: RankEvidence, call: Call) -> Call:
    """Return a call with its line: that of the rank's error, if its record has no stacks."""
    error_line = rank.error.line if rank.error is not None else None
    return replace(call, line=call.line or error_line)


def _parted(evidence: Evidence, met: _Meeting, *, after_errors: bool = False) -> Diagnosis | None:
    """Find the loop or the branch that holds the line of one of both ranks and not that of the other.

    after_errors: also for a rank that survived an error, which may have skipped a call.
    """
    if met.other is None or met.call is None or met.call.line is None or met.line is None:
        return None
    before = _before(evidence, met.other, met.call)
    frames = [frame for frame in evidence.ranks[met.receiver].stack if is_user_file(frame.file)] or [met.line]
    stacks = {met.receiver: tuple(frames), met.other: stack_of(met.call)}
    alone = rank_test_between(stacks[met.other], stacks[met.receiver])
    common = before if alone is None else _before_branch(alone, before)
    last = stack_of(common[-1]) if common else ()
    if common and not last and (common[-1].op, common[-1].sizes) == (met.call.op, met.call.sizes):
        last = stack_of(met.call)  # the record was written in a hurry, without lines
    last = () if begins_anew(before, met.call) else last
    partings = []
    for inside, outside in ((met.other, met.receiver), (met.receiver, met.other)):
        parting = parting_of(stacks[inside], stacks[outside], last)
        if parting is not None and (after_errors or not survived_error(evidence.ranks[outside])):
            partings.append((parting.weight, inside, outside, parting))
    if not partings:
        return None
    _, inside, outside, parting = min(partings, key=lambda each: each[0])
    lines = {number: place(stack[0]) for number, stack in stacks.items()}
    met_words = (
        f"rank {met.receiver} received a message of another size than its collective at {lines[met.receiver]} "
        f"expects; rank {met.other} called {describe_call(evidence, met.call)}"
    )
    base = _found(evidence, met)
    habit = _habit(parting, met, inside, before)
    left_out = left_out_of_round(parting, outside, stacks[inside], stacks[outside], habit)
    if left_out:
        fault, rank, advice, words = "skipped", outside, SKIP_TOGETHER, left_out
    elif (handler := tries_again(parting.block, stacks[inside])) is not None:
        fault, rank, advice = "skipped", inside, SKIP_TOGETHER
        words = again_words(parting.block, handler, outside, inside)
    elif not parting.was_common and (skipped := skipped_round(stacks[inside], stacks[outside], parting.block)):
        fault, rank, advice = "skipped" if skipped.holds_both else "batches", outside, SKIP_TOGETHER
        words = skipped_words(parting.block, skipped, outside, inside) + source_words(skipped.loop)
    elif parting.block.kind == "loop":
        words = leaves_loop(parting, outside, inside, stacks[inside], stacks[outside])
        fault, rank, advice = "batches", outside, EVEN_ROUNDS
    else:
        never = parting.block == alone or not has_passed(parting.block, common)
        words = f"{passes_alone(parting.block, inside, outside, never)}{other_tests(parting)}"
        fault, advice = "branch" if never else "skipped", AGREE_FIRST
        rank = inside if never and parting.block.kind not in ("return", "try") else outside
    sources = source_words(parting.block) if fault != "batches" else sources_of_loop(parting, stacks[inside])
    odd = _of_fewer(evidence, stacks)
    odd = odd if odd is not None else _made_more(parting, met, inside, before)
    rank = odd if odd is not None else rank
    return base.with_more(
        fault=fault,
        rank=rank,
        node_rank=evidence.ranks[rank].node_rank,
        line=lines[rank],
        peer_line=lines[inside + outside - rank],
        finding=f"{met_words}: {words}{after_error(evidence.ranks[outside])}{sources}",
        advice=advice,
    )


def _used_by_one(evidence: Evidence, met: _Meeting) -> Diagnosis | None:
    """Find a call in a function that the program uses only under a test of the rank, and the other rank not there."""
    if met.other is None or met.call is None or met.line is None:
        return None
    frames = tuple(frame for frame in evidence.ranks[met.receiver].stack if is_user_file(frame.file)) or (met.line,)
    before = [*_before(evidence, met.other, met.call), met.call]
    others = [frame for call in before for frame in stack_of(call)]
    if not all(call.callers for call in before):
        return None
    guards = {met.other: used_under(stack_of(met.call), frames), met.receiver: used_under(frames, others)}
    number, guard = next(((number, guard) for number, guard in guards.items() if guard is not None), (0, None))
    if guard is None:
        return None
    lines = {met.other: place(met.call.line), met.receiver: place(met.line)}
    return _found(evidence, met).with_more(
        fault="branch",
        rank=number,
        node_rank=evidence.ranks[number].node_rank,
        line=lines[number] or None,
        peer_line=lines[met.other + met.receiver - number] or None,
        finding=f"rank {met.receiver} received a message of another size than its collective{at_place(met.line)} "
        f"expects; rank {met.other} called {describe_call(evidence, met.call)}: only some ranks pass {guard}",
        advice=OUT_OF_BRANCH,
    )


def _before_branch(branch: Block, before: list[Call]) -> list[Call]:
    """Leave out the last calls if they came from a branch: the receiver may not have met them; its record is lost."""
    rest = list(before)
    while rest and has_passed(branch, rest[-1:]):
        rest.pop()
    return rest


def _habit(parting: Parting, met: _Meeting, inside: int, before: list[Call]) -> str:
    """Say that the rank in a loop has not made more calls there than each time before; empty if that is not known."""
    if parting.block.kind != "loop" or met.call is None or inside != met.other:
        return ""
    more = more_than_usual(parting.block, [*before, met.call])
    return f": rank {inside} made as many calls there each time before" if more is not None and more <= 0 else ""


def _made_more(parting: Parting, met: _Meeting, inside: int, before: list[Call]) -> int | None:
    """Return the rank in a loop if it makes a call there more than each time before; None if nothing shows that."""
    if parting.block.kind != "loop" or met.call is None:
        return None
    calls = [*before, met.call] if inside == met.other else before
    more = more_than_usual(parting.block, calls)
    is_extra = more is not None and (more > 0 if inside == met.other else more == 0)
    return inside if is_extra else None


def _of_fewer(evidence: Evidence, stacks: dict[int, tuple[CodeLine, ...]]) -> int | None:
    """Return the rank at whose line fewer ranks are; None if as many are at the other's."""
    at = [(rank.pending[0].line if rank.pending else None) or rank.line for rank in evidence.ranks.values()]
    counts = {number: sum(same_line(line, stack[0]) for line in at) for number, stack in stacks.items()}
    fewest = min(counts, key=lambda number: counts[number])
    return fewest if counts[fewest] < max(counts.values()) else None


def _left_its_order(evidence: Evidence, met: _Meeting) -> Diagnosis | None:
    """Find a rank that did not call, as always before, what the other rank is in."""
    if met.other is None or met.call is None or met.line is None or same_line(met.call.line, met.line):
        return None
    if rank_branch(met.call.line) is not None:
        return None
    before = _before(evidence, met.other, met.call)
    times = sum(same_line(call.line, met.line) for call in before)
    if not is_unusual(before, met.call) or not any(same_line(each.line, met.line) for each in usual_after(before)):
        return None
    error = after_error(evidence.ranks[met.other])
    return _found(evidence, met).with_more(
        fault="skipped",
        rank=met.other,
        node_rank=evidence.ranks[met.other].node_rank,
        line=place(met.call.line) or None,
        peer_line=place(met.line),
        finding=f"rank {met.other} called {describe_call(evidence, met.call)} while rank {met.receiver} was in the "
        f"collective at {place(met.line)}: rank {met.other} skipped that one, which it had called {times} times "
        f"before{error}",
        advice=SKIP_TOGETHER,
    )


def _left_out(evidence: Evidence, met: _Meeting) -> Diagnosis | None:
    """Find a receiver that is ahead of a rank which keeps its order: it left out the call in which that rank is."""
    if met.other is None or met.call is None or met.line is None or same_line(met.call.line, met.line):
        return None
    before = _before(evidence, met.other, met.call)
    if before and before[-1].op.startswith("all_to_all") and same_line(before[-1].line, met.line):
        return _other_splits(evidence, met, before[-1])
    is_ahead = any(same_line(call.line, met.line) for call in before)
    if is_unusual(before, met.call) is not False or not is_ahead or rank_branch(met.line) or rank_branch(met.call.line):
        return None
    return _found(evidence, met).with_more(
        fault="skipped",
        rank=met.receiver,
        node_rank=evidence.ranks[met.receiver].node_rank,
        line=place(met.line),
        peer_line=place(met.call.line) or None,
        finding=f"rank {met.receiver} received a message of another size than its collective{at_place(met.line)} "
        f"expects; rank {met.other} called {describe_call(evidence, met.call)}, in its usual order: rank "
        f"{met.receiver} probably left out that one{by_backward(met.call)}",
        advice=SKIP_TOGETHER,
    )


def _other_splits(evidence: Evidence, met: _Meeting, call: Call) -> Diagnosis:
    """Report an all-to-all that the other rank has completed: what it sent is not what the receiver expects."""
    return _found(evidence, met).with_more(
        fault="shape",
        rank=met.receiver,
        node_rank=evidence.ranks[met.receiver].node_rank,
        line=place(met.line) or None,
        peer_line=place(call.line) or None,
        collective=describe_call(evidence, call),
        finding=f"rank {met.receiver} received a message of another size than its all-to-all{at_place(met.line)} "
        f"expects; rank {met.other} has completed {describe_call(evidence, call)}: their split sizes differ: the "
        "rows that one sends to the other are not those that the other expects",
        advice="exchange the split sizes first: output_split_sizes of each rank are the column of all ranks' "
        "input_split_sizes (an all_to_all_single of the counts)",
    )


def _other_rounds(evidence: Evidence, met: _Meeting) -> Diagnosis | None:
    """Find a rank at the receiver's line whose last visit of a loop had another number of calls than each one before.

    It received shorter messages than it expected, which gloo accepts, and came to the loop once more.
    """
    if met.other is None or met.call is None or not same_line(met.call.line, met.line):
        return None
    calls = [*_before(evidence, met.other, met.call), met.call]
    stack = stack_of(met.call)
    loops = [block for frame in stack if is_readable(frame) for block in reversed(blocks_around(frame))]
    for loop in (block for block in loops if block.kind == "loop"):
        visits = visits_of(loop, calls)[:-1]  # without the one in which it is
        if not change_from_usual(visits):
            continue
        ways = ways_out(loop, stack)
        return _found(evidence, met).with_more(
            fault="batches",
            rank=met.other,
            node_rank=evidence.ranks[met.other].node_rank,
            line=place(met.call.line) or None,
            peer_line=place(met.line) or None,
            finding=f"rank {met.receiver} received a message of another size than its collective at {place(met.line)} "
            f"expects; rank {met.other} made {visits[-1]} calls in its last visit of the loop {loop}, and {visits[0]} "
            "each time before: the number of rounds differs between the ranks"
            + (f"; a rank can leave it by {ways}" if ways else ""),
            advice=EVEN_ROUNDS,
        )
    return None


def _in_a_loop_of_one_size(evidence: Evidence, met: _Meeting) -> Diagnosis | None:
    """Find a receiver in a loop in which the other rank called one size alone, at a line that calls several sizes.

    Functions call this line from several places, so that its order says nothing, but the rounds of the loop may differ.
    """
    if met.other is None or met.call is None or not same_line(met.call.line, met.line):
        return None
    before = _before(evidence, met.other, met.call)
    stack = tuple(frame for frame in evidence.ranks[met.receiver].stack if is_user_file(frame.file))
    loops = [block for frame in stack if is_readable(frame) for block in reversed(blocks_around(frame))]
    loop = next((block for block in loops if block.kind == "loop" and holds_stack(block, stack)), None)
    sizes = {call.elements for call in before if loop is not None and holds_stack(loop, stack_of(call))}
    others = {call.elements for call in before if same_line(call.line, met.line)}
    if loop is None or len(sizes) != 1 or len(others) < 2:
        return None
    ways = ways_out(loop, stack)
    return _found(evidence, met).with_more(
        fault="batches",
        rank=met.receiver,
        node_rank=evidence.ranks[met.receiver].node_rank,
        line=place(met.line) or None,
        peer_line=place(met.call.line) or None,
        finding=f"rank {met.receiver} received a message of another size than its collective at {place(met.line)} "
        f"expects, in the loop {loop}; rank {met.other} called {describe_call(evidence, met.call)}, and only one size "
        "in that loop: the number of its rounds probably differs between the ranks"
        + (f"; a rank can leave it by {ways}" if ways else ""),
        advice=EVEN_ROUNDS,
    )


def _before(evidence: Evidence, number: int, call: Call) -> list[Call]:
    return [each for each in evidence.ranks[number].by_group().get(call.group, []) if each.seq < call.seq]


def _is_others(evidence: Evidence, met: _Meeting) -> bool:
    """True if the other rank, at the same line, called something else than each time before."""
    if met.other is None or met.call is None:
        return False
    return bool(is_unusual(_before(evidence, met.other, met.call), met.call)) and same_line(met.call.line, met.line)


def _has_completed(evidence: Evidence, met: _Meeting) -> bool:
    """True if the other rank called something at the receiver's line just before, and only then.

    It received a shorter message than it expects, which gloo accepts.
    """
    before = _before(evidence, met.other, met.call) if met.other is not None and met.call is not None else []
    there = [call for call in before if same_line(call.line, met.line)]
    return len(there) == 1 and there[0] is before[-1] and there[0].done


def _in_other_order(evidence: Evidence, met: _Meeting) -> bool:
    """True if this line calls collectives of several sizes one after the other, as for the files of a checkpoint."""
    if met.other is None or met.call is None:
        return False
    calls = [*_before(evidence, met.other, met.call), met.call]
    before = {each.elements for each in calls[:-1] if same_line(each.line, met.call.line)}
    loop = innermost_loop(met.call.line) if met.call.line is not None else None
    visit = list(itertools.takewhile(lambda each: loop is not None and loop.holds(each.line or _NOWHERE), calls[::-1]))
    sizes = [each.elements for each in visit if same_line(each.line, met.call.line)]
    return len(before) > 1 or 1 < len(sizes) == len(set(sizes))


def _unexpected(evidence: Evidence, met: _Meeting) -> Diagnosis:
    """Report both sides. Which of them is wrong, only the history of the other rank can tell."""
    call = met.call
    there = f"; {span([met.other])} called {describe_call(evidence, call)}" if met.other is not None and call else ""
    sender = _only_other(evidence, met)
    if sender is not None:
        there = f"; rank {sender.rank} was{at_place(sender.line)}"
    same = call is not None and (same_line(call.line, met.line) or _has_completed(evidence, met))
    own, others = rank_branch(met.line), rank_branch(call.line) if call is not None else None
    branch = own or others
    over_set = loop_over_a_set(met.line) if same and met.line is not None else None
    in_order = same and (over_set is not None or _in_other_order(evidence, met))
    is_others = _is_others(evidence, met) or (others is not None and own is None)
    odd = met.other if is_others and met.other is not None else met.receiver
    why = f": only some ranks pass {branch}" if branch else ""
    if in_order and not branch:
        why = f": {several_sizes(_stack_of_both(evidence, met), odd)}"
    if over_set is not None and not branch:
        why = f": the loop {over_set} goes through a set, whose order differs between processes for text"
    lines = (met.line, call.line if call is not None else sender.line if sender is not None else None)
    line, peer_line = lines if own or not others else (lines[1], lines[0])
    return _found(evidence, met).with_more(
        fault="branch" if branch else _kind(evidence, met) if (same and not in_order) or call is None else "order",
        rank=odd,
        node_rank=evidence.ranks[odd].node_rank,
        line=place(line) or None,
        peer_line=place(peer_line) or None,
        finding=f"rank {met.receiver} received a message of another size than its collective"
        + at_place(met.line)
        + f" expects{there}{why}{_changed(evidence, met)}",
        advice="either the ranks called different collectives, or the same ones in another order (of "
        "parameters, of keys), "
        "or with tensors of different sizes (uneven data): print op and shape on each rank just before that line\n"
        "the record of the rank that received the message was lost when gloo ended its process",
    )


def _stack_of_both(evidence: Evidence, met: _Meeting) -> tuple[CodeLine, ...]:
    """Return the lines that led to the line at which both ranks are, innermost first."""
    frames = tuple(frame for frame in evidence.ranks[met.receiver].stack if is_user_file(frame.file))
    own = frames or ((met.line,) if met.line is not None else ())
    return max(own, stack_of(met.call) if met.call is not None else (), key=len)


def _only_other(evidence: Evidence, met: _Meeting) -> RankEvidence | None:
    """Return the other rank of a world of two, if only its line is known."""
    others = [rank for number, rank in evidence.ranks.items() if number != met.receiver]
    return others[0] if met.call is None and len(others) == 1 and others[0].line is not None else None


def _kind(evidence: Evidence, met: _Meeting) -> str:
    """Return "dtype" if only the type of the elements differs from the other rank's earlier calls."""
    if met.other is None or met.call is None or not _is_others(evidence, met):
        return "shape"
    usual = usual_after(_before(evidence, met.other, met.call))[-1]
    return "dtype" if usual.elements == met.call.elements and usual.dtypes != met.call.dtypes else "shape"


def _changed(evidence: Evidence, met: _Meeting) -> str:
    """Say what the other rank called at this place before, if that was something else."""
    if met.other is None or met.call is None or not _is_others(evidence, met):
        return ""
    return f", where it called {usual_after(_before(evidence, met.other, met.call))[-1]} before"


def _found(evidence: Evidence, met: _Meeting) -> Diagnosis:
    rank = evidence.ranks[met.receiver]
    return Diagnosis(
        "stuck",
        "",
        collective=describe_call(evidence, met.call) if met.call is not None else None,
        certain=False,
        evidence=(
            note(rank.exited_ns, f"rank {met.receiver}", *met.message),
            *report_ranks(evidence, [met.receiver, *([met.other] if met.other is not None else [])]),
        ),
    )


# ---- lines of NCCL's watchdog alone, which show the collective of each rank, but none before it ----------------------


def differing_numbers(evidence: Evidence) -> Diagnosis | None:
    """Find ranks of one group that timed out in different collectives with different numbers."""
    by_group: dict[Group, dict[int, Call]] = {}
    for number, rank in evidence.ranks.items():
        if not rank.has_calls and len(rank.calls) == 1 and not rank.calls[0].done:
            by_group.setdefault(rank.calls[0].group, {})[number] = rank.calls[0]
    diagnoses = (_differing_numbers_of_group(evidence, calls) for calls in by_group.values())
    return next((diagnosis for diagnosis in diagnoses if diagnosis is not None), None)


def _differing_numbers_of_group(evidence: Evidence, calls: dict[int, Call]) -> Diagnosis | None:
    """Compare the lowest number with the next one: the ranks that are ahead completed something at the lowest."""
    numbers = sorted({call.seq for call in calls.values()})
    group = next(iter(calls.values())).group
    if len(numbers) < 2 or set(group.members) - calls.keys():
        return None
    behind = sorted(number for number, call in calls.items() if call.seq == numbers[0])
    ahead = sorted(number for number, call in calls.items() if call.seq == numbers[1])
    low, high = calls[behind[0]], calls[ahead[0]]
    if (low.op, low.elements) == (high.op, high.elements):
        return None
    odd = ahead if len(ahead) < len(behind) else behind
    return Diagnosis(
        "order",
        f"{they_wait(behind)} in {describe_call(evidence, low)}, "
        f"{they_wait(ahead)} in {describe_call(evidence, high)}: "
        f"{span(odd)} probably called a collective more or less than the others before, or data for number {low.seq} "
        "never arrived",
        rank=odd[0],
        node_rank=evidence.ranks[odd[0]].node_rank,
        line=place(evidence.ranks[odd[0]].line) or None,
        collective=describe_call(evidence, low),
        certain=False,
        evidence=report_ranks(evidence, [*odd, *(number for number in sorted(calls) if number not in odd)]),
        advice=f"look for a collective under a condition that only {span(odd)} "
        f"{'meets' if len(odd) == 1 else 'meet'}, such as a step without gradients or an error that was caught\n"
        f"flight-recorder dumps of all ranks show where they parted ({RECORD_COLLECTIVES})",
    )
