"""Words about how ranks parted: a loop that one has left, a branch that one alone passed, a call that one left out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.program.code_blocks import (
    Block,
    is_each_round,
    is_fixed,
    is_left_early,
)
from frog.observe.diagnose.program.code_partings import (
    Parting,
    SkippedRound,
    backward_line,
    branch_past,
    ends_early,
    handler_past,
    holds_stack,
    loop_around,
    may_leave_out,
    parting_lines,
    stack_of,
    tests_before,
    tests_in_loop,
    ways_out,
    ways_past,
)
from frog.observe.diagnose.program.evidence import Call, at_place
from frog.observe.diagnose.program.graph_cuts import graph_cuts

EVEN_BATCHES = (
    "give each rank the same number of batches: DistributedSampler with drop_last=True, or a fixed number of steps; "
    "under DDP, `with model.join():` accepts uneven inputs"
)
EVEN_ROUNDS = (
    "all ranks must run the same number of rounds of a loop that communicates: all-reduce the number (MAX) first, and "
    "let ranks without data take part with empty rounds; decide on one rank and broadcast when to leave a loop\n"
    + EVEN_BATCHES
)
AGREE_FIRST = (
    "let all ranks take the same branch: decide on one rank and broadcast the decision, or all-reduce a flag; a file, "
    "a clock, a batch or a random number may differ between ranks"
)
OUT_OF_BRANCH = "move the collective out of the branch: every rank of its group must call it"
SKIP_TOGETHER = (
    "a `continue`, a caught exception or a condition that only one rank meets must not skip a collective: "
    "let all ranks agree first, for example by an all-reduce of a flag"
)


def new_handler(inside: Sequence[CodeLine], outside: Sequence[CodeLine], block: Block) -> Block | None:
    """Return the handler by which an error may have led a rank out of a block; None if the block is one, or without.

    A handler in the block, such as one in a loop, leads out of a round of it, and is a way out of its own.
    """
    caught = handler_past(inside, outside) if block.kind not in ("try", "except") else None
    is_way_out = caught is not None and str(caught) in ways_out(block, inside)
    return None if is_way_out else caught


def left_out_of_round(
    parting: Parting, left: int, inside: Sequence[CodeLine], outside: Sequence[CodeLine], habit: str
) -> str:
    """Return words about a call that a rank left out of a round of a loop; empty if it may as well have left the loop.

    inside, outside: the lines that led to the call of the rank that is in the loop, and of the other one, innermost
    first. habit: words on the rounds before, which were as many each time; empty if only a loop over constants tells.
    """
    loop = parting.block
    if loop.kind != "loop" or not parting.was_common or is_left_early(loop) or not (habit or is_fixed(loop)):
        return ""
    tests = " or ".join(filter(None, (tests_before(loop, inside), ways_out(loop, inside))))
    caught = handler_past(inside, outside)
    ways = [f"left out a call in a round of the loop {loop}, by {tests}"] if tests else []
    if caught is not None and str(caught) not in tests:
        ways.append(f"left the loop {loop} by an error that {caught} caught")
    doubt = "" if is_fixed(loop) else "; or the number of its rounds differs between the ranks"
    return f"rank {left} {', or '.join(ways)}{habit}{doubt}" if ways else ""


_LEAST_VISITS = 2
"""Fewest earlier visits of a loop, all with as many calls, that tell what is usual."""


def more_than_usual(loop: Block, calls: list[Call]) -> int | None:
    """Return by how many calls the last visit of a loop differs from each one before; None if these do not tell."""
    return change_from_usual(visits_of(loop, calls))


def change_from_usual(visits: list[int]) -> int | None:
    """Return the same for the numbers of calls in the visits of a loop."""
    *before, last = visits or [0]
    return last - before[0] if len(before) >= _LEAST_VISITS and len(set(before)) == 1 else None


def visits_of(loop: Block, calls: list[Call]) -> list[int]:
    """Return how many of a rank's calls it made in a loop, for each time that it came there."""
    return [sum(1 for _ in made) for is_in, made in _in_and_out(loop, calls) if is_in]


_LEAST_CALLS, _MOST_CALLS = 2, 1000
"""Fewest calls of a visit, of more than one size, that tell where a visit begins; most of a rank that are compared."""


def begins_anew(calls: list[Call], call: Call) -> bool:
    """True if a call comes to its line once more, with nothing between: as after its last visit of a loop there.

    The calls since one of the same size are all calls of an earlier visit, in their order, or the same calls have come
    several times.
    """
    runs = [list(run) for _, run in itertools.groupby(calls[-_MOST_CALLS:], key=lambda each: each.line)]
    visits = [[_form(each) for each in run] for run in runs if call.line and run[0].line == call.line]
    if not visits or calls[-1].line != call.line:
        return False
    *earlier, last = visits
    since = [last[at:] for at, form in enumerate(last) if form == _form(call)]
    since += [last[:length] for length in range(1, len(last)) if last == last[:length] * (len(last) // length)]
    whole = [each for each in since if each and each[0] == _form(call) and len(set(each)) >= _LEAST_CALLS]
    return any(each in earlier or last[-2 * len(each) :] == each * 2 for each in whole)


def _form(call: Call) -> tuple[object, ...]:
    return call.op, call.sizes, call.elements


def _in_and_out(loop: Block, calls: list[Call]) -> Iterator[tuple[bool, Iterator[Call]]]:
    """Return a rank's calls in groups: those in a loop, one visit after the other, and those elsewhere."""
    return itertools.groupby(calls, key=lambda call: holds_stack(loop, stack_of(call)))


def is_proved(parting: Parting, inside: Call, outside: Call) -> bool:
    """True if the rank that left a loop made fewer rounds of it, whatever else the program does.

    No rank may be in another round of an outer loop: as after a call that it left out, or if the other is at an earlier
    line, or at the same one.
    """
    stack = stack_of(outside)
    lines = parting_lines(stack_of(inside), stack)
    is_common = parting.was_common and inside.line is not None and is_each_round(parting.block, inside.line)
    if lines is None or not (is_common and parting.is_past):
        return False
    since = lines[0].line if parting.is_deeper else parting.block.line
    return not may_leave_out(stack[stack.index(lines[1]) :], since)


def leaves_loop(
    parting: Parting, left: int, stayed: int, inside: Sequence[CodeLine], outside: Sequence[CodeLine]
) -> str:
    """Return words about a rank that left a loop in which another is.

    inside, outside: the lines that led to the call of the rank that is in the loop, and of the one that left it,
    innermost first.
    """
    loop, caught = parting.block, new_handler(inside, outside, parting.block)
    if not parting.was_common:
        return f"rank {stayed} is in the loop {loop}, which rank {left} did not enter this time, or left earlier"
    loops = [loop, *parting.around]
    ways = [words for words in (ways_out(each, inside) for each in loops) if words]
    leave = f"; a rank can leave {'it' if len(loops) == 1 else 'them'} by {' or '.join(ways)}" if ways else ""
    if tests := tests_before(loop, inside):
        leave += f"; or rank {left} left out this call in its last round, by {tests}"
    if (name := ends_early(loop)) is not None:
        leave += f"; `{name}` ends at the first item that is {'false' if name == 'all' else 'true'}"
    if caught:
        leave += f"; or an error led rank {left} out of it, which {caught} caught"
    if len(loops) > 1:
        return (
            f"rank {left} has left the loops {' and '.join(map(str, loops))}, in which rank {stayed} continues: the "
            f"number of rounds of one of them differs between the ranks{leave}"
        )
    return (
        f"rank {left} has left the loop {loop}, in which rank {stayed} begins one more round: the number of rounds "
        f"differs between the ranks{leave}"
    )


def again_words(loop: Block, handler: Block, left: int, stayed: int) -> str:
    """Return words about a rank that tries a call again in a loop, which another has left after the first time."""
    return (
        f"rank {stayed} tries again in the loop {loop}, which rank {left} has left: probably after an error that "
        f"{handler} caught"
    )


def skipped_words(inner: Block, skipped: SkippedRound, left: int, stayed: int) -> str:
    """Return words about a rank that left out a loop, in which another is, or has left the loop around it."""
    loop, ways, holds_both = skipped
    if holds_both:
        return (
            f"rank {left} left out this call in a round of the loop {loop}, by {ways}; or it did not enter the loop "
            f"{inner}"
        )
    if ways:
        return (
            f"rank {left} has left the loop {loop}, in which rank {stayed} begins one more round: the number of rounds "
            f"differs between the ranks; or it left out this call in a round of it, by {ways}"
        )
    return (
        f"rank {left} has left the loops {loop} and {inner}, in which rank {stayed} continues: the number of rounds of "
        "one of them differs between the ranks"
    )


def has_passed(block: Block, calls: list[Call]) -> bool:
    """True if one of a rank's calls came from a block."""
    return any(holds_stack(block, stack_of(call)) for call in calls)


def passes_alone(block: Block, inside: int, outside: int, never: bool) -> str:
    """Return words about a branch that only one of two ranks passed."""
    if block.kind == "except":
        return f"an error led only rank {inside} into {block}"
    if block.kind == "try" and block.text.startswith("with "):
        return f"an error before this call, which {block} hides, led only rank {outside} past it"
    if block.kind == "try":
        return f"an error before this call led only rank {outside} into {block}, and it continued from there"
    if block.kind == "cache":
        return f"rank {inside} ran {block.function}, whose results are kept ({block}): rank {outside} had this one"
    if block.kind == "return":
        when = "" if never else " this time"
        return f"rank {outside} left {block.function}{when} by {block}, rank {inside} did not"
    when = "" if never else " this time, although it did before"
    if block.is_partial:
        return f"rank {inside} made the call in {block}, rank {outside} left it out{when and ' this time'}"
    return f"rank {inside} passed {block}, rank {outside} did not{when}"


def way_past(call: Call, instead: Call) -> str:
    """Name the statements that leave out a call in its loop, or the branch around it. instead: what a rank called."""
    ways = ways_past(call.line) if call.line is not None else ""
    branch = branch_past(stack_of(call), stack_of(instead))
    if not ways and branch is None:
        handler = handler_past(stack_of(call), stack_of(instead))
        return f", perhaps by an error that {handler} caught" if handler is not None else by_backward(call)
    return f", perhaps by {ways}" if ways else f", which is under {branch}"


def by_backward(call: Call) -> str:
    """Say of a call in a hook of a gradient why a rank may leave it out; empty for another call."""
    line = backward_line(stack_of(call))
    if line is None:
        return ""
    cuts = graph_cuts(stack_of(call))
    return (
        f", which the backward{at_place(line)} calls: a parameter or a layer without a gradient does not come to it"
        + (f", for example after {cuts}" if cuts else "")
    )


def several_sizes(stack: Sequence[CodeLine], odd: int) -> str:
    """Return words about a line that calls collectives of several sizes, where a rank called another one.

    stack: the line and those that led to it, innermost first.
    """
    loop, line = loop_around(stack) or (None, None)
    tests = tests_in_loop(line, loop) if loop is not None and line is not None else ""
    where = f"the loop {loop} calls" if loop is not None else "this line calls"
    if not tests:
        return f"{where} collectives of several sizes, so probably in another order on rank {odd}"
    return (
        f"{where} collectives of several sizes: probably one rank leaves out a call, by {tests}, or its order differs"
    )
