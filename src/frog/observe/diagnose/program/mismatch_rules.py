"""Rules about collectives that meet but do not match: another operation, order, size or type of elements."""

from __future__ import annotations

import itertools
from collections import Counter

from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.call_origins import origin_of
from frog.observe.diagnose.program.call_use_rules import (
    dispatched,
    met_another_way,
    of_swapped_groups,
    repeated_in_a_line,
)
from frog.observe.diagnose.program.code_blocks import (
    Block,
    in_one_loop,
    is_readable,
)
from frog.observe.diagnose.program.code_partings import (
    Parting,
    call_branch,
    fetches_next,
    handler_past,
    loop_around,
    other_tests,
    parting_of,
    skipped_round,
    stack_of,
    tests_before,
    tests_in_loop,
    tries_again,
)
from frog.observe.diagnose.program.code_uses import one_of_classes, used_under
from frog.observe.diagnose.program.compared_calls import Difference, differences, is_unusual, usual_after
from frog.observe.diagnose.program.condition_sources import source_words, sources_of_loop
from frog.observe.diagnose.program.evidence import Call, Evidence, at_place, place, same_line
from frog.observe.diagnose.program.library_partings import decided_by, library_words
from frog.observe.diagnose.program.mismatch_sides import (
    Sides,
    base_of_mismatch,
    form_of,
    is_same,
    last_common,
    line_of,
    sides_of,
    they_differ,
)
from frog.observe.diagnose.program.parting_words import (
    AGREE_FIRST,
    EVEN_BATCHES,
    EVEN_ROUNDS,
    OUT_OF_BRANCH,
    SKIP_TOGETHER,
    again_words,
    has_passed,
    is_proved,
    leaves_loop,
    left_out_of_round,
    more_than_usual,
    new_handler,
    passes_alone,
    several_sizes,
    skipped_words,
    visits_of,
    way_past,
)
from frog.observe.diagnose.program.rank_reports import (
    after_error,
    led_by_error,
    survived_error,
)

_LEAST_TIMES = 2
"""Fewest earlier rounds that tell which call of a line follows which."""
_AHEAD = 400
"""Calls after the difference to compare for their order."""


def mismatched(evidence: Evidence) -> Diagnosis | None:
    """Explain the first collective at which ranks met with different calls."""
    first = next((difference for difference in differences(evidence) if difference.kind != "absent"), None)
    if first is None or (all(call.done for call in first.calls.values()) and not evidence.has_failed):
        return None
    return mismatch(evidence, first)


_COMPARED = ("all_reduce", "allreduce", "broadcast", "reduce_scatter", "_reduce_scatter_base")
"""Operations whose sizes agree on all ranks in any program that is right."""


def passed(evidence: Evidence) -> Diagnosis | None:
    """Report calls that differ between ranks although the program continued: the numbers are wrong.

    gloo and NCCL do not compare types and operations. Equal numbers of bytes meet, whatever they mean.
    """
    for found in differences(evidence):
        ops = {call.op for call in found.calls.values()}
        is_fault = found.kind in ("op", "dtype") or (found.kind == "size" and ops <= {*_COMPARED})
        if is_fault and all(call.done for call in found.calls.values()):
            explained = mismatch(evidence, found)
            return explained.with_more(
                finding=f"{explained.finding}. It passed, since the backend does not compare the calls, but "
                "the numbers are wrong from there on",
                outcome="running" if evidence.active else "failed" if evidence.has_failed else "completed",
            )
    return None


def mismatch(evidence: Evidence, found: Difference) -> Diagnosis:
    """Explain the first collective at which the members of a group do not match."""
    sides = sides_of(evidence, found)
    both = (sides, sides.swapped()) if sides.tie else (sides,)
    for rule in (
        _led_by_error,
        _of_other_origin,
        of_swapped_groups,
        _order,
        _guarded,
        _guarded_others,
        _in_an_iterator,
        _parted,
        met_another_way,
        _skipped,
        _past_a_handler,
        repeated_in_a_line,
        dispatched,
        _extra,
        _batches,
    ):
        for each in both:
            explained = rule(evidence, found, each)
            if explained is not None:
                return explained
    return _differing_call(evidence, found, sides)


def _led_by_error(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis | None:
    """Find a rank that made its call while it was handling an error, which the others did not have."""
    odd, other = evidence.ranks[sides.odd], evidence.ranks[sides.other]
    if odd.handled is None or other.handled is not None or sides.odd_call.done:
        return None
    return base_of_mismatch(evidence, found, sides).with_more(
        fault="skipped",
        certain=False,
        finding=f"{they_differ(evidence, found, sides)}: {led_by_error(odd)}",
        advice=SKIP_TOGETHER,
    )


def _of_other_origin(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis | None:
    """Find a call that no line of the program made, but a thread, a freed object, a signal or the exit."""
    odd, other = (
        origin_of(call, evidence.ranks[number].calls)
        for number, call in ((sides.odd, sides.odd_call), (sides.other, sides.other_call))
    )
    origin, rank, call = (odd, sides.odd, sides.odd_call) if odd else (other, sides.other, sides.other_call)
    if origin is None or (odd is not None and other is not None):
        return None
    own = sides if rank == sides.odd else sides.swapped()
    if origin.kind != "thread" and (guarded := _guarded(evidence, found, own)) is not None:
        return guarded.with_more(finding=f"{guarded.finding}; rank {rank} called it {origin}", advice=origin.advice)
    return base_of_mismatch(evidence, found, own if sides.tie else sides).with_more(
        fault="order",
        certain=False,
        finding=f"{they_differ(evidence, found, sides)}: rank {rank} called {call.op} {origin}",
        advice=origin.advice,
    )


def _order(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis | None:
    """Find the same calls in another order."""
    length = min(len(sides.odd_calls), len(sides.other_calls), _AHEAD) if found.kind != "line" else 0
    for number in range(2, length + 1):
        odd = Counter((form_of(call), line_of(call)) for call in sides.odd_calls[:number])
        if odd == Counter((form_of(call), line_of(call)) for call in sides.other_calls[:number]):
            break
    else:
        return None
    inside = same_line(sides.odd_call.line, sides.other_call.line)
    return base_of_mismatch(evidence, found, sides).with_more(
        fault="order",
        rank=sides.odd,
        certain=not sides.tie,
        finding=f"{they_differ(evidence, found, sides)}: the same {number} collectives in another order",
        advice="iterate over parameters, buckets or keys in an order that is the same on every rank: not over a set, "
        "a dict filled in another order, os.listdir, or glob without sorted"
        if inside
        else "ranks of a group must call its collectives in the same order",
    )


def _guarded(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis | None:
    """Find a call under a test of the rank that the others never made."""
    others = [*sides.other_before, *sides.other_calls]
    branch = call_branch(sides.odd_call, [sides.odd], others, sides.odd_before)
    if branch is None and all(call.callers for call in others):
        branch = used_under(stack_of(sides.odd_call), (frame for call in others for frame in call.callers))
    if branch is None or branch.is_shared:
        return None
    is_around = sides.odd_call.line is not None and branch.block.holds(sides.odd_call.line)
    if is_around and any(same_line(call.line, sides.odd_call.line) for call in sides.other_before):
        return None
    return base_of_mismatch(evidence, found, sides).with_more(
        fault="branch",
        certain=branch.is_proof,
        finding=f"{they_differ(evidence, found, sides)}: only some ranks pass {branch}",
        advice=OUT_OF_BRANCH,
    )


def _guarded_others(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis | None:
    """Find a call under a test of the rank that only the odd rank never made."""
    explained = None if sides.tie else _guarded(evidence, found, sides.swapped())
    rank = evidence.ranks[sides.odd]
    return explained.with_more(rank=sides.odd, node_rank=rank.node_rank) if explained is not None else None


def _in_an_iterator(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis | None:
    """Find a rank that asked for the next item of a loop, while the others got one more and are in a round of it."""
    loop = fetches_next(stack_of(sides.other_call), stack_of(sides.odd_call))
    if loop is None or tests_before(loop, stack_of(sides.other_call)):  # the test tells more: see _parted
        return None
    return base_of_mismatch(evidence, found, sides).with_more(
        fault="batches",
        certain=False,
        finding=f"{they_differ(evidence, found, sides)}: the call of rank {sides.odd} is in the iterator of the loop "
        f"{loop}, which gave rank {sides.other} one more item: the number of rounds differs between the ranks"
        f"{source_words(loop)}",
        advice=EVEN_ROUNDS,
    )


def _parted(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis | None:
    """Find the loop or the branch that holds the line of one side and not that of the other."""
    both = [(parting, each) for each in (sides, sides.swapped()) if (parting := _parting(evidence, each)) is not None]
    if not both:
        return None
    parted = _left(evidence, found, *min(both, key=lambda pair: pair[0].weight))
    if any(parting.block.kind != "loop" for parting, _ in both):  # or one of them skipped a call after the loop
        parted = parted.with_more(certain=False)
    if not sides.tie:
        return parted.with_more(
            rank=sides.odd,
            node_rank=evidence.ranks[sides.odd].node_rank,
            line=place(sides.odd_call.line) or None,
            peer_line=place(sides.other_call.line) or None,
        )
    return parted


def _parting(evidence: Evidence, sides: Sides) -> Parting | None:
    """Return the block in which the other side is, and which the odd side left or did not enter."""
    if survived_error(evidence.ranks[sides.odd]):
        return None
    return parting_of(stack_of(sides.other_call), stack_of(sides.odd_call), last_common(sides))


def _left(evidence: Evidence, found: Difference, parting: Parting, sides: Sides) -> Diagnosis:
    """Say that the odd side left a block, or did not enter it, in which the other side is."""
    inside, outside, block = sides.other_call, sides.odd_call, parting.block
    differ, base = they_differ(evidence, found, sides), base_of_mismatch(evidence, found, sides)
    if left_out := _left_out_of_round(parting, sides):
        return base.with_more(
            fault="skipped", certain=False, finding=f"{differ}: {left_out}", advice=f"{AGREE_FIRST}\n{SKIP_TOGETHER}"
        )
    caught = new_handler(stack_of(inside), stack_of(outside), block)
    if caught is not None and (written := _handler_wrote(evidence, sides, caught)):
        return base.with_more(
            fault="skipped",
            certain=False,
            finding=f"{differ}: an error before this call led only rank {sides.odd} into {caught}, since only its log "
            f"has the words of that handler: “{written[:160]}”",
            advice=SKIP_TOGETHER,
        )
    if block.kind == "loop" and not parting.was_common:
        skipped = skipped_round(stack_of(inside), stack_of(outside), block)
        if skipped is not None:
            return base.with_more(
                fault="skipped" if skipped.holds_both else "batches",
                certain=False,
                finding=f"{differ}: {skipped_words(block, skipped, sides.odd, sides.other)}"
                + source_words(skipped.loop),
                advice=f"{EVEN_ROUNDS}\n{SKIP_TOGETHER}",
            )
    if block.kind == "loop" and (handler := tries_again(block, stack_of(inside))) is not None:
        return base.with_more(
            fault="skipped",
            certain=False,
            rank=sides.other,
            line=base.peer_line,
            peer_line=base.line,
            finding=f"{differ}: {again_words(block, handler, sides.odd, sides.other)}",
            advice=SKIP_TOGETHER,
        )
    if block.kind == "loop":
        if sides.tie and (more_than_usual(block, [*sides.other_before, inside]) or 0) > 0:
            base = base.with_more(rank=sides.other, line=base.peer_line, peer_line=base.line)
        in_step = all(same_line(a.line, b.line) for a, b in zip(sides.odd_before, sides.other_before, strict=False))
        return base.with_more(
            fault="batches",
            certain=is_proved(parting, inside, outside) and in_step and bool(sides.other_before) and not caught,
            finding=f"{differ}: {leaves_loop(parting, sides.odd, sides.other, stack_of(inside), stack_of(outside))}"
            + sources_of_loop(parting, stack_of(inside)),
            advice=EVEN_ROUNDS,
        )
    never = not has_passed(block, sides.odd_before)
    enters = never and block.kind not in ("return", "try")
    return base.with_more(
        fault="branch" if never else "skipped",
        certain=False,
        rank=sides.other if enters else sides.odd,
        line=place(inside.line if enters else outside.line) or None,
        peer_line=place(outside.line if enters else inside.line) or None,
        finding=f"{differ}: {passes_alone(block, sides.other, sides.odd, never)}{other_tests(parting)}"
        + (f"; or an error before this call led rank {sides.odd} into {caught}" if caught else "")
        + source_words(block),
        advice=AGREE_FIRST,
    )


def _handler_wrote(evidence: Evidence, sides: Sides, handler: Block) -> str:
    """Return the last line of the odd rank's log with the words of a handler; empty if another rank wrote them too."""
    odd, *others = (evidence.ranks[number].last_lines for number in (sides.odd, sides.other))
    written = [line for line in odd if any(words in line for words in handler.says)]
    also = any(words in line for lines in others for line in lines for words in handler.says)
    return "" if also or not written else written[-1].strip()


def _left_out_of_round(parting: Parting, sides: Sides) -> str:
    """Return words about a call that the odd rank left out of a round of a loop; empty if it may as well have left it.

    Each time before, it made the same number of calls in this loop, which nothing but its end leaves: so the number of
    its rounds is probably the same, and a test in it has left out a call.
    """
    if parting.block.kind != "loop":
        return ""
    *visits, last = visits_of(parting.block, sides.odd_before) or [0]
    is_less = bool(visits) and len(set(visits)) == 1 and last < visits[0]
    habit = f": it made {last} call{'s' * (last != 1)} there, and {visits[0]} each time before" if is_less else ""
    return left_out_of_round(parting, sides.odd, stack_of(sides.other_call), stack_of(sides.odd_call), habit)


def _skipped(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis | None:
    """Find a rank whose call matches the next one of the others, which it called before."""
    called = any(is_same(call, sides.other_call) for call in sides.odd_before)
    if len(sides.other_calls) > 1:
        matches = is_same(sides.odd_call, sides.other_calls[1])
    else:
        matches = _follows(sides.other_before, sides.other_call, sides.odd_call)
    may_skip = called or survived_error(evidence.ranks[sides.odd]) is not None
    jumped = _jumped(sides)
    if not ((may_skip and matches) or jumped) or same_line(sides.odd_call.line, sides.other_call.line):
        return None
    error = after_error(evidence.ranks[sides.odd])
    reverse = _follows(sides.odd_before, sides.odd_call, sides.other_call)
    if reverse and not error and sides.tie and survived_error(evidence.ranks[sides.other]):
        return None  # the other side shows an error
    return base_of_mismatch(evidence, found, sides).with_more(
        fault="skipped",
        certain=(bool(error) and (called or jumped)) or (_left_its_habit(sides) and not (sides.tie and reverse)),
        finding=f"{they_differ(evidence, found, sides)}: rank {sides.odd} skipped "
        f"{sides.other_call.op}{at_place(sides.other_call.line)}"
        f"{error or way_past(sides.other_call, sides.odd_call) or one_of_classes(stack_of(sides.other_call))}",
        advice=SKIP_TOGETHER,
    )


def _left_its_habit(sides: Sides) -> bool:
    """True if the rank, each time before, made the call of the others here, and made its own call elsewhere.

    A rank that leaves a loop makes a new call, or one that has followed the loop before.
    """
    was_there = any(is_same(call, sides.odd_call) for call in sides.odd_before)
    return was_there and is_unusual(sides.odd_before, sides.odd_call) is True


def _jumped(sides: Sides) -> bool:
    """True if a rank made a call that it made before, where its own history has the call of the others."""
    if not is_unusual(sides.odd_before, sides.odd_call):
        return False
    was_there = any(is_same(call, sides.odd_call) for call in sides.odd_before)
    return was_there and any(is_same(call, sides.other_call) for call in usual_after(sides.odd_before))


def _follows(calls: list[Call], first: Call, second: Call) -> bool:
    """True if, the last time that a rank called `first`, its next call was `second`."""
    for number in range(len(calls) - 2, -1, -1):
        if is_same(calls[number], first):
            return is_same(calls[number + 1], second)
    return False


def _past_a_handler(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis | None:
    """Find a rank that caught an error, as its log shows, in a `try` in which the others made their call."""
    odd, other = evidence.ranks[sides.odd], evidence.ranks[sides.other]
    if survived_error(odd) is None or survived_error(other) is not None:
        return None
    handler = handler_past(stack_of(sides.other_call), stack_of(sides.odd_call))
    if handler is None or any(same_line(call.line, sides.other_call.line) for call in sides.odd_calls):
        return None
    written = _handler_wrote(evidence, sides, handler)
    return base_of_mismatch(evidence, found, sides).with_more(
        fault="skipped",
        certain=False,
        finding=f"{they_differ(evidence, found, sides)}: an error probably led rank {sides.odd} past that, and "
        f"{handler} caught it"
        + (f", since only its log has the words of that handler: “{written[:160]}”" if written else "")
        + ("" if written else after_error(odd)),
        advice=SKIP_TOGETHER,
    )


def _extra(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis | None:
    """Find a rank that called something which no other rank ever called from that line."""
    odd = sides.odd_call
    if odd.line is None or sides.other_call.line is None or same_line(odd.line, sides.other_call.line):
        return None
    if any(same_line(call.line, odd.line) for call in [*sides.other_before, *sides.other_calls, *sides.odd_before]):
        return None
    if not any(same_line(call.line, sides.other_call.line) for call in sides.odd_before) and sides.tie:
        return None
    if _left_loop(sides):
        return None
    return base_of_mismatch(evidence, found, sides).with_more(
        fault="branch",
        certain=False,
        finding=f"{they_differ(evidence, found, sides)}: only rank {sides.odd} ever came to {place(odd.line)}",
        advice="look for a condition that only this rank meets: every rank of the group must call the same collectives",
    )


def _left_loop(sides: Sides) -> bool:
    """True if the others repeat a call of a loop, and the odd rank's call is at a later line of the same function."""
    one, other = sides.odd_call.line, sides.other_call.line
    repeats = any(is_same(call, sides.other_call) for call in sides.odd_before)
    if one and other and (in_one_loop(one, other) or is_readable(one)):  # the source tells better: see _parted
        return False
    return bool(
        repeats
        and one
        and other
        and one.file == other.file
        and one.function == other.function
        and one.line > other.line
    )


def _batches(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis | None:
    """Find a rank that left a loop in which the others continue."""
    if not _left_loop(sides):
        return None
    times = sum(same_line(call.line, sides.other_call.line) for call in sides.odd_before)
    return base_of_mismatch(evidence, found, sides).with_more(
        fault="batches",
        certain=False,
        finding=f"{they_differ(evidence, found, sides)}: rank {sides.odd} left the loop after {times} "
        f"calls there, the others continue: one rank has fewer batches",
        advice=EVEN_BATCHES,
    )


def _differing_call(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis:
    """Report other sizes, other types or another operation as such."""
    base = base_of_mismatch(evidence, found, sides)
    differ = they_differ(evidence, found, sides)
    if found.kind in ("op", "line") and (inside := _in_a_library(evidence, sides)) is not None:
        fault, words = inside
        return base.with_more(fault=fault, certain=False, finding=f"{differ}: {words}", advice=AGREE_FIRST)
    if found.kind in ("op", "line"):
        return base.with_more(
            fault="order",
            certain=False,
            finding=f"{differ}: the ranks took different paths",
            advice="compare the two lines: ranks of a group must call the same collectives in the same order",
        )
    if found.kind == "dtype":
        return base.with_more(
            fault="dtype",
            certain=not sides.tie,
            finding=f"{differ}: another type of elements",
            advice="use the same precision on all ranks: autocast, .half() or a checkpoint loaded on one rank only",
        )
    if _is_of_several_sizes(sides):
        for each in (sides, sides.swapped()) if sides.tie else (sides,):
            if _jumped(each) and not _jumped(each.swapped()) and _times_followed(each) >= _LEAST_TIMES:
                return _item_left_out(evidence, found, each)
        return base.with_more(
            fault="order",
            certain=False,
            finding=f"{differ}: {several_sizes(stack_of(sides.odd_call), sides.odd)}",
            advice="iterate over parameters, buckets or keys in an order that is the same on every rank",
        )
    return base.with_more(
        fault="shape",
        certain=not sides.tie and not sides.is_short,
        finding=f"{differ}: another size{_first_dim(sides)}",
        advice="pad to a common size, drop the last uneven batch (drop_last=True), or exchange the sizes first and use "
        "all_to_all or a padded all_gather",
    )


def _times_followed(sides: Sides) -> int:
    """Return how often, before, the call of the others followed a call like the odd rank's last one."""
    pairs = itertools.pairwise(sides.odd_before)
    return sum(is_same(call, sides.odd_before[-1]) and is_same(after, sides.other_call) for call, after in pairs)


def _item_left_out(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis:
    """Say that a rank left out a call of a line that it made there each time before, and made the next one."""
    loop, line = loop_around(stack_of(sides.other_call)) or (None, None)
    tests = tests_in_loop(line, loop) if loop is not None and line is not None else ""
    where = f" in the loop {loop}" if loop is not None else ""
    by = f", perhaps by {tests}" if tests else ""
    return base_of_mismatch(evidence, found, sides).with_more(
        fault="skipped",
        certain=False,
        finding=f"{they_differ(evidence, found, sides)}: rank {sides.odd} left out {sides.other_call}, which followed "
        f"each time before{where}{by}; or its order differs{source_words(loop) if loop is not None else ''}",
        advice=f"{AGREE_FIRST}\n{SKIP_TOGETHER}",
    )


def _in_a_library(evidence: Evidence, sides: Sides) -> tuple[str, str] | None:
    """Return the fault and words about ranks that wait in a library, which one line of the program calls."""
    if sides.odd_call.done or sides.other_call.done or not same_line(sides.odd_call.line, sides.other_call.line):
        return None
    odd, other = evidence.ranks[sides.odd], evidence.ranks[sides.other]
    kind, words = library_words(odd, other)
    fault = {"loop": "batches", "line": "order", "": "order"}.get(kind, "branch")
    decided = decided_by(evidence, odd, other)
    return (fault, f"{words or 'the ranks took different paths'}{decided}") if words or decided else None


def _is_of_several_sizes(sides: Sides) -> bool:
    """True if both calls come from one line that has called both sizes before."""
    one, other = sides.odd_call, sides.other_call
    before = [call for call in sides.other_before if same_line(call.line, other.line)]
    return same_line(one.line, other.line) and {one.elements, other.elements} <= {call.elements for call in before}


def _first_dim(sides: Sides) -> str:
    """Say that only the first of several dimensions differs, as it does for batches of different sizes."""
    one, other = sides.odd_call.sizes, sides.other_call.sizes
    if one and other and len(one[0]) > 1 and len(other[0]) > 1 and one[0] != other[0] and one[0][1:] == other[0][1:]:
        return f" in the first dimension ({one[0][0]} and {other[0][0]}), as uneven data has"
    return ", or the same ones in another order: no later calls are known that would tell" if sides.is_short else ""
