"""Rules about ranks that have left a loop, or have ended, while others wait for them in a collective."""

from __future__ import annotations

from collections import Counter

from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.code_blocks import Block, blocks_around, in_one_loop, innermost_loop, is_fixed
from frog.observe.diagnose.program.code_partings import (
    branch_past,
    holds_stack,
    parting_lines,
    parting_of,
    returns_past,
    stack_of,
    tests_before,
    ways_past,
)
from frog.observe.diagnose.program.compared_calls import Difference
from frog.observe.diagnose.program.condition_sources import source_words
from frog.observe.diagnose.program.end_rules import exit_lines
from frog.observe.diagnose.program.evidence import Call, Evidence, RankEvidence, place, same_line
from frog.observe.diagnose.program.parting_words import EVEN_BATCHES, EVEN_ROUNDS, OUT_OF_BRANCH, passes_alone
from frog.observe.diagnose.program.rank_reports import after_error, describe_call, survived_error
from frog.observe.diagnose.program.wait_reports import base_of_wait, is_finished, user_stack, who_waits


def left_its_loop(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a rank that made its calls of a group in a loop of its own, from another line, and has left that loop."""
    waiting = {call.seq: call for call in evidence.ranks[min(found.calls)].by_group().get(found.group, [])}
    for number in found.absent:
        rank = evidence.ranks[number]
        made = rank.by_group().get(found.group, [])
        met = waiting.get(made[-1].seq) if made else None
        if met is None or not same_line(met.line, found.call.line) or same_line(met.line, made[-1].line):
            continue
        now = stack_of(rank.pending[0]) if rank.pending else () if is_finished(rank) else user_stack(rank)
        loops = [loop for frame in stack_of(made[-1]) if (loop := innermost_loop(frame)) and not holds_stack(loop, now)]
        if loops and (now or is_finished(rank)):
            times = sum(holds_stack(loops[0], stack_of(call)) for call in made)
            return base_of_wait(evidence, found, number).with_more(
                fault="batches",
                certain=False,
                finding=f"{who_waits(evidence, found)}; rank {number}, which calls it at {place(made[-1].line)}, has "
                f"left the loop {loops[0]} after {times} calls there: the number of rounds differs between the ranks"
                f"{source_words(loops[0])}",
                advice=EVEN_ROUNDS,
            )
    return None


def finished_rank(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a rank that reached its end, or left a loop, while others wait for it."""
    over = [each for each in found.absent if is_finished(evidence.ranks[each])]
    if not over:
        return None
    rank = evidence.ranks[over[0]]
    base = base_of_wait(evidence, found, over[0])
    times = _count(rank, found)
    if not times and (rounds := _rounds(rank, found)):
        return base.with_more(
            fault="batches",
            certain=False,
            finding=f"{span(over)} left the loop around {place(found.call.line)} after {rounds} "
            f"{'round' if rounds == 1 else 'rounds'} and ended; {span(sorted(found.calls))} continued and waited in "
            f"{describe_call(evidence, found.call)}: one rank has fewer batches, or left early",
            advice=EVEN_BATCHES,
        )
    if not times and (guarded := _past_a_branch(evidence, found, over)) is not None:
        return guarded
    if not times:
        error, last = after_error(rank), rank.caught[-1] if rank.caught else None
        returns = returns_past(stack_of(found.call), stack_of(rank.calls[-1])) if rank.calls and not error else None
        why = f": it probably left {returns.function} by {returns}" if returns is not None else ""
        why = why or _ends_the_program(evidence)
        return base.with_more(
            fault="ended",
            certain=_knows_lines(rank, found),
            line=place(last.line) or base.line if last is not None else base.line,
            finding=f"{span(over)} ended {'with exit code 0' if error else 'without an error'} before "
            f"{'it' if len(over) == 1 else 'they'} called {describe_call(evidence, found.call)}, in which "
            f"{span(sorted(found.calls))} waited{error}{why}",
            advice="look for a return, break or sys.exit(0) that only this rank reaches",
        )
    if (other_way := _came_another_way(evidence, found, over)) is not None:
        return other_way
    if (survived := survived_error(rank)) is not None:
        return base.with_more(
            fault="skipped",
            certain=False,
            finding=f"rank {over[0]} called {found.call.op} at {place(found.call.line)} {times} times, others "
            "once more, "
            f"and wait there; its log shows an error that it survived, so it probably skipped one: {survived}",
            advice="a rank that catches an error must still call the collectives of that step, or all ranks must agree "
            "to skip it: all-reduce a flag first",
        )
    if tests := _left_out(evidence, found, over[0]):
        return base.with_more(
            fault="skipped",
            certain=False,
            finding=f"{span(over)} left out {found.call.op} at {place(found.call.line)} in a round of its loop: "
            f"rank {over[0]} called it {times} times and ended, {span(sorted(found.calls))} once more, and waited in "
            f"{describe_call(evidence, found.call)}: by {tests}",
            advice="a condition that only one rank meets must not skip a collective: let all ranks agree first, for "
            "example by an all-reduce of a flag",
        )
    loop = next((loop for frame in stack_of(found.call) if (loop := innermost_loop(frame)) is not None), None)
    return base.with_more(
        fault="batches",
        certain=False,
        finding=f"{span(over)} left {'its' if len(over) == 1 else 'their'} loop{_named(loop)} after {times} calls of "
        f"{found.call.op} at {place(found.call.line)} and "
        f"ended; {span(sorted(found.calls))} began one more and waited: one rank has fewer batches, or skipped one"
        f"{_perhaps_by(found.call)}{source_words(loop) if loop is not None else ''}",
        advice=f"{EVEN_BATCHES}\na `continue` or a caught exception that skips a step on one rank has the same effect",
    )


def _past_a_branch(evidence: Evidence, found: Difference, over: list[int]) -> Diagnosis | None:
    """Find a branch around the call that nothing shows the ranks to have passed which ended without it."""
    callers = sorted(found.calls)
    calls = [call for each in over for call in evidence.ranks[each].calls]
    if not all(call.callers for call in calls):
        return None
    came = [frame for call in calls for frame in stack_of(call)]
    before = [call for call in evidence.ranks[callers[0]].calls if call.seq < found.seq]
    passed = stack_of(before[-1]) if before else ()
    branch = branch_past(stack_of(found.call), [*came, *passed])
    if branch is None or len(callers) > len(over) or survived_error(evidence.ranks[over[0]]):
        return None
    return base_of_wait(evidence, found, callers[0]).with_more(
        fault="branch",
        certain=False,
        finding=f"{who_waits(evidence, found)}, which {span(over)} did not call before the end of the program: only "
        f"{span(callers)} passed {branch}, or the others ended before it",
        advice=f"{OUT_OF_BRANCH}\nlook for a return, break or sys.exit(0) that only some ranks reach",
    )


def _left_out(evidence: Evidence, found: Difference, over: int) -> str:
    """Return the tests by which a rank left out a call in a round of a loop that it ran as often; empty if it did not.

    It ran the loop as often if that has a fixed number of rounds, or if it made another call in it as often.
    """
    stack, waiting = stack_of(found.call), evidence.ranks[min(found.calls)]
    loop = next((loop for frame in stack if (loop := innermost_loop(frame)) is not None), None)
    tests = tests_before(loop, stack) if loop is not None else ""
    if loop is None or not tests:
        return ""
    made, others = (_lines_in(loop, rank) for rank in (evidence.ranks[over], waiting))
    full = any(count <= made[line] for line, count in others.items() if line != _at(found.call))
    return tests if full or is_fixed(loop) else ""


def _lines_in(loop: Block, rank: RankEvidence) -> Counter[tuple[str, int] | None]:
    """Count a rank's calls in a loop by their lines."""
    return Counter(_at(call) for call in rank.calls if holds_stack(loop, stack_of(call)))


def _at(call: Call) -> tuple[str, int] | None:
    return (call.line.file, call.line.line) if call.line is not None else None


def _ends_the_program(evidence: Evidence) -> str:
    """Name the lines of the program that end it with exit code 0, each with the test around it; empty without any."""
    words = []
    for line in exit_lines(evidence, 0):
        tests = [block for block in blocks_around(line) if block.kind in ("if", "else", "except")]
        words.append(place(line) + (f", under {tests[-1]}" if tests else ""))
    return f"; the program can end this way at {' and '.join(words)}" if words else ""


def _came_another_way(evidence: Evidence, found: Difference, over: list[int]) -> Diagnosis | None:
    """Find ranks that called a collective also through other functions than the ranks that ended ever did.

    All calls come from one line, so that they met each other; the ranks with more of them wait in the end.
    """
    waiting = evidence.ranks[min(found.calls)]
    at_line = [call for call in waiting.calls if same_line(call.line, found.call.line)]
    ended = [call for call in evidence.ranks[over[0]].calls if same_line(call.line, found.call.line)]
    ways = {_way(call) for call in ended}
    extra = [call for call in at_line if call.callers and _way(call) not in ways]
    if not extra or not all(call.callers for call in ended) or not ways <= {_way(call) for call in at_line}:
        return None
    lines = parting_lines(stack_of(extra[0]), stack_of(ended[0]))
    if lines is None:
        return None
    parting = parting_of(stack_of(extra[0]), stack_of(ended[0]), ())
    block = parting.block if parting is not None and parting.block.kind != "loop" else None
    block = block or returns_past(stack_of(extra[0]), stack_of(evidence.ranks[over[0]].calls[-1]))
    words = f": {passes_alone(block, waiting.rank, over[0], True)}{source_words(block)}" if block is not None else ""
    odd = over[0] if block is not None and block.kind == "return" else waiting.rank
    return base_of_wait(evidence, found, odd).with_more(
        fault="branch",
        certain=False,
        line=place(lines[0] if odd == waiting.rank else lines[1]),
        peer_line=place(lines[1] if odd == waiting.rank else lines[0]),
        finding=f"{span(sorted(found.calls))} called {found.call.op} at {place(found.call.line)} {len(extra)} times "
        f"through {place(lines[0])}, where {span(over)} never came{words}. These calls met later ones of the others, "
        f"which ended; {who_waits(evidence, found)}",
        advice=OUT_OF_BRANCH,
    )


def _way(call: Call) -> tuple[tuple[str, int], ...]:
    """Return the lines that led to a call."""
    return tuple((frame.file, frame.line) for frame in call.callers)


def _named(loop: Block | None) -> str:
    return f" ({loop})" if loop is not None else ""


def _perhaps_by(call: Call) -> str:
    """Name the statements with which a rank leaves the innermost loop around a call, or a round of it."""
    ways = next((ways for frame in stack_of(call) if innermost_loop(frame) and (ways := ways_past(frame))), "")
    return f", perhaps by {ways}" if ways else ""


def _rounds(rank: RankEvidence, found: Difference) -> int:
    """Return how often a rank passed the loop around a collective, by the calls that it made there."""
    line = found.call.line
    lines = [call.line for call in rank.calls if call.line and line and in_one_loop(call.line, line)]
    return max(Counter((each.file, each.line) for each in lines).values(), default=0)


def _knows_lines(rank: RankEvidence, found: Difference) -> bool:
    return found.call.line is not None and all(call.line is not None for call in rank.calls)


def _count(rank: RankEvidence, found: Difference) -> int:
    return sum(same_line(call.line, found.call.line) for call in rank.calls if call.group == found.group)
