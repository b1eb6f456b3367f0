"""Rules about a collective that some members of a group called and others did not, or that all called and none left."""

from __future__ import annotations

from collections import Counter

from frog.core.runs.observed import CodeLine, WorkerStack
from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.code_ahead import calls_nothing_more, waits_for_itself
from frog.observe.diagnose.program.code_blocks import Block, in_one_loop, innermost_loop, is_fixed
from frog.observe.diagnose.program.code_lines import is_user_file, user_line
from frog.observe.diagnose.program.code_partings import (
    Guard,
    branch_past,
    call_branch,
    comes_later,
    holds_stack,
    parting_lines,
    parting_of,
    rank_branch,
    returns_past,
    stack_of,
    tests_before,
    ways_past,
)
from frog.observe.diagnose.program.compared_calls import Difference, is_unusual, usual_after
from frog.observe.diagnose.program.condition_sources import source_words
from frog.observe.diagnose.program.evidence import Call, Evidence, RankEvidence, at_place, place, same_line
from frog.observe.diagnose.program.outside_waits import advice_on_wait, waits_outside
from frog.observe.diagnose.program.parting_words import EVEN_BATCHES, EVEN_ROUNDS, passes_alone, way_past
from frog.observe.diagnose.program.peer_errors import saw_a_peer_end, timed_out
from frog.observe.diagnose.program.rank_reports import (
    after_error,
    describe_call,
    describe_inside,
    report_ranks,
    survived_error,
    they_wait,
)
from frog.observe.diagnose.program.root_arguments import differing_roots


def under_branch(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Explain a collective that one of several groups waits in, if a branch that not all ranks pass encloses it.

    The members of other groups then wait for those ranks, which shows only that they are elsewhere.
    """
    is_known = found.absent and not found.unknown and _stopped(evidence, found) is None
    return _guarded(evidence, found) if is_known else None


def absent(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Explain why some ranks never called a collective in which others wait."""
    if (stopped := _stopped(evidence, found)) is not None:
        return stopped
    if (holds := _holds_lock(evidence, found)) is not None:
        return holds
    if not found.absent:
        return _elsewhere(evidence, found) or _no_record(evidence, found)
    for rule in (_guarded, _finished, _other_group, _undelivered, _died, _busy, _blocked):
        explained = rule(evidence, found)
        if explained is not None:
            return explained
    return _base(evidence, found, found.absent[0]).with_more(
        fault="stuck",
        certain=False,
        finding=f"{_waits(evidence, found)}, which {span([*found.absent])} never called",
        advice=f"find out what {span([*found.absent])} did instead: `py-spy dump --pid PID` on its host",
    )


def _waits(evidence: Evidence, found: Difference) -> str:
    ranks = sorted(found.calls)
    return f"{they_wait(ranks)} in {describe_call(evidence, found.call)}"


def _base(evidence: Evidence, found: Difference, rank: int) -> Diagnosis:
    """Return the fields of every diagnosis of a wait; `rank` is the one to look at."""
    order = list(dict.fromkeys([rank, *found.absent, *found.unknown, *found.calls]))
    seen = evidence.ranks.get(rank)
    if rank in found.calls:
        own, other = found.calls[rank].line, next((_line(evidence, each) for each in found.absent), None)
    else:
        own, other = _line(evidence, rank), found.call.line
    return Diagnosis(
        "stuck",
        "",
        rank=rank,
        node_rank=seen.node_rank if seen else None,
        line=place(own) or None,
        peer_line=place(other) or None,
        collective=describe_call(evidence, found.call),
        evidence=report_ranks(evidence, order),
    )


def _line(evidence: Evidence, number: int) -> CodeLine | None:
    rank = evidence.ranks.get(number)
    return rank.line if rank is not None else None


def _guarded(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a collective under a test that only some ranks pass."""
    missing = [evidence.ranks[each] for each in found.absent]
    if any(_has_called(rank, found) or (_works(rank) and not calls_nothing_more(rank.stack)) for rank in missing):
        return None
    branch = _branch_around(evidence, found)
    has_returned = branch is not None and not branch.is_proof and all(_is_finished(rank) for rank in missing)
    if has_returned and len(missing) <= len(found.calls):
        return None  # `_finished` names the ranks that returned
    certain, passed = branch is not None and branch.is_proof, str(branch) if branch is not None else None
    if branch is None and (block := _branch_of_callers(evidence, found)) is not None:
        certain, passed = False, f"{block}{source_words(block)}"
    if passed is None:
        return None
    callers, absent_ranks = sorted(found.calls), sorted(found.absent)
    odd = callers[0] if len(callers) <= len(absent_ranks) else absent_ranks[0]
    return _base(evidence, found, odd).with_more(
        fault="branch",
        certain=certain,
        finding=f"{_waits(evidence, found)}, which {span(absent_ranks)} never "
        f"{'calls' if len(absent_ranks) == 1 else 'call'}: only some ranks pass {passed}",
        advice="move the collective out of the branch: every rank of its group must call it\n"
        "work for one rank alone belongs inside the branch, the barrier after it",
    )


def _branch_around(evidence: Evidence, found: Difference) -> Guard | None:
    """Return the test of the rank around a call that the absent ranks did not make."""
    others = [call for each in found.absent for call in evidence.ranks[each].calls]
    first = evidence.ranks[min(found.calls)]
    before = [call for call in first.by_group().get(found.group, []) if call.seq < found.seq]
    return call_branch(found.call, found.calls, others, before)


def _works(rank: RankEvidence) -> bool:
    """True if a rank was seen outside of all collectives, at work or waiting: it may still call the one in question."""
    is_alive = rank.state == "running" and rank.error is None and rank.exit_code is None
    return is_alive and not rank.pending and rank.line is not None and rank.cpu_busy is not None


def _branch_of_callers(evidence: Evidence, found: Difference) -> Block | None:
    """Return a branch around the call, with any test, that the other ranks came by and did not pass."""
    before = [call for number in found.calls for call in evidence.ranks[number].calls if call.seq < found.seq]
    last = stack_of(before[-1]) if before else ()
    for number in found.absent:
        stacks = [_user_stack(evidence.ranks[number])]
        stacks += [stack_of(call) for call in evidence.ranks[number].pending[:1]]
        for stack in stacks:
            parting = parting_of(stack_of(found.call), stack, last)
            if parting is not None and parting.block.kind not in ("loop", "return", "try"):
                return parting.block
    return None


def _user_stack(rank: RankEvidence) -> tuple[CodeLine, ...]:
    """Return the lines of the user's code at which a rank is, innermost first."""
    frames = tuple(frame for frame in rank.stack if is_user_file(frame.file))
    return frames or ((rank.line,) if rank.line is not None else ())


def _has_called(rank: RankEvidence, found: Difference) -> bool:
    """True if a rank called a collective from the same line before."""
    return any(same_line(call.line, found.call.line) for call in rank.calls)


def _count(rank: RankEvidence, found: Difference) -> int:
    return sum(same_line(call.line, found.call.line) for call in rank.calls if call.group == found.group)


def left_its_loop(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a rank that made its calls of a group in a loop of its own, from another line, and has left that loop."""
    waiting = {call.seq: call for call in evidence.ranks[min(found.calls)].by_group().get(found.group, [])}
    for number in found.absent:
        rank = evidence.ranks[number]
        made = rank.by_group().get(found.group, [])
        met = waiting.get(made[-1].seq) if made else None
        if met is None or not same_line(met.line, found.call.line) or same_line(met.line, made[-1].line):
            continue
        now = stack_of(rank.pending[0]) if rank.pending else () if _is_finished(rank) else _user_stack(rank)
        loops = [loop for frame in stack_of(made[-1]) if (loop := innermost_loop(frame)) and not holds_stack(loop, now)]
        if loops and (now or _is_finished(rank)):
            times = sum(holds_stack(loops[0], stack_of(call)) for call in made)
            return _base(evidence, found, number).with_more(
                fault="batches",
                certain=False,
                finding=f"{_waits(evidence, found)}; rank {number}, which calls it at {place(made[-1].line)}, has left "
                f"the loop {loops[0]} after {times} calls there: the number of rounds differs between the ranks"
                f"{source_words(loops[0])}",
                advice=EVEN_ROUNDS,
            )
    return None


def _finished(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a rank that reached its end, or left a loop, while others wait for it."""
    over = [each for each in found.absent if _is_finished(evidence.ranks[each])]
    if not over:
        return None
    rank = evidence.ranks[over[0]]
    base = _base(evidence, found, over[0])
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
    return _base(evidence, found, callers[0]).with_more(
        fault="branch",
        certain=False,
        finding=f"{_waits(evidence, found)}, which {span(over)} did not call before the end of the program: only "
        f"{span(callers)} passed {branch}, or the others ended before it",
        advice="move the collective out of the branch: every rank of its group must call it\n"
        "look for a return, break or sys.exit(0) that only some ranks reach",
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
    return _base(evidence, found, odd).with_more(
        fault="branch",
        certain=False,
        line=place(lines[0] if odd == waiting.rank else lines[1]),
        peer_line=place(lines[1] if odd == waiting.rank else lines[0]),
        finding=f"{span(sorted(found.calls))} called {found.call.op} at {place(found.call.line)} {len(extra)} times "
        f"through {place(lines[0])}, where {span(over)} never came{words}. These calls met later ones of the others, "
        f"which ended; {_waits(evidence, found)}",
        advice="move the collective out of the branch: every rank of its group must call it",
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


def _is_finished(rank: RankEvidence) -> bool:
    return rank.state == "ended" or rank.exit_code == 0


def _other_group(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find two groups whose collectives ranks call in different orders, so that each waits for the other."""
    for number in found.absent:
        rank = evidence.ranks[number]
        pending = [call for call in rank.pending if call.group != found.group and not call.p2p]
        if pending and (circle := _circle(evidence, found)) is not None:
            return circle
        if pending and (skipped := _skipped_in_other_group(evidence, found, number, pending[0])) is not None:
            return skipped
        if pending:
            return _opposite(evidence, found, number, pending[0])
    return None


def _circle(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a circle of three or more ranks, each of which waits for the next in a collective of another group.

    If two of them left their habit, they called the groups in another order: one alone would have skipped a call.
    """
    waits: dict[int, Call] = {}
    number: int | None = min(found.calls)
    while number is not None and number not in waits:
        pending = [call for call in evidence.ranks[number].pending if not call.p2p]
        if not pending:
            return None
        waits[number] = pending[0]
        number = _missing(evidence, pending[0])
    if number is None:
        return None
    circle = list(waits)[list(waits).index(number) :]
    odd = [each for each in circle if is_unusual(_calls_before(evidence.ranks[each], waits[each]), waits[each])]
    if len(circle) < 3 or not 2 <= len(odd) < len(circle):
        return None
    steps = [
        f"rank {each} in {describe_call(evidence, waits[each])} for rank {awaited}"
        for each, awaited in zip(circle, [*circle[1:], circle[0]], strict=True)
    ]
    there, first = next(waits[each] for each in circle if each not in odd), min(odd)
    return _base(evidence, found, first).with_more(
        fault="order",
        certain=False,
        finding=f"{span(sorted(circle))} wait for each other in a circle: {'; '.join(steps)}. {span(sorted(odd))} "
        "called another group first than before: the order of the groups differs between the ranks",
        line=place(waits[first].line) or None,
        peer_line=place(there.line) or None,
        advice="ranks must call the collectives of overlapping groups in the same order",
    )


def _missing(evidence: Evidence, call: Call) -> int | None:
    """Return a rank that has not called a collective in which others wait."""
    for number in call.group.members:
        rank = evidence.ranks.get(number)
        if rank is not None and not any((each.group, each.seq) == (call.group, call.seq) for each in rank.calls):
            return number
    return None


def _calls_before(rank: RankEvidence, call: Call) -> list[Call]:
    """Return the calls of a rank before one, in the order of their times."""
    earlier = [each for each in rank.calls if (each.created_ns or 0) < (call.created_ns or 0)]
    return sorted(earlier, key=lambda each: each.created_ns or 0)


def _opposite(evidence: Evidence, found: Difference, number: int, other: Call) -> Diagnosis:
    """Report two groups called in opposite orders. Of the ranks that belong to both, the smaller side is odd."""
    first = [each for each in found.calls if each in other.group.members or not other.group.members]
    second = [each for each in found.absent if _waits_in(evidence.ranks[each], other)]
    odd, at, there = number, other, found.call
    if 0 < len(first) < len(second):
        odd, at, there = first[0], found.call, other
    return _base(evidence, found, odd).with_more(
        fault="order",
        certain=bool(first) and len(first) != len(second) and evidence.ranks[number].state != "ended",
        finding=f"{_waits(evidence, found)}; {they_wait(second)} in {describe_call(evidence, other)} instead",
        line=place(at.line) or None,
        peer_line=place(there.line) or None,
        advice="ranks must call the collectives of overlapping groups in the same order",
    )


def _waits_in(rank: RankEvidence, call: Call) -> bool:
    return any((each.group, each.seq) == (call.group, call.seq) for each in rank.pending)


def _skipped_in_other_group(evidence: Evidence, found: Difference, absent: int, pending: Call) -> Diagnosis | None:
    """Find a rank that called another group's collective without the one that it called there before."""
    waits = next(iter(found.calls))
    for number, call, missing in ((waits, found.call, pending), (absent, pending, found.call)):
        before = _calls_before(evidence.ranks[number], call)
        if not (is_unusual(before, call) and any(same_line(each.line, missing.line) for each in usual_after(before))):
            continue
        error = after_error(evidence.ranks[number])
        if not error and comes_later(stack_of(call), stack_of(missing)):
            return _base(evidence, found, number).with_more(
                fault="order",
                certain=False,
                line=place(call.line) or None,
                peer_line=place(missing.line) or None,
                finding=f"rank {number} waits in {describe_call(evidence, call)}; others wait in "
                f"{describe_call(evidence, missing)}, which it called first before, and now calls afterwards: the "
                f"order of the groups differs{way_past(missing, call)}",
                advice="ranks must call the collectives of overlapping groups in the same order",
            )
        return _base(evidence, found, number).with_more(
            fault="skipped",
            certain=bool(error),
            line=place(call.line) or None,
            peer_line=place(missing.line) or None,
            finding=f"rank {number} waits in {describe_call(evidence, call)}: it skipped {missing.op} at "
            f"{place(missing.line)}, in which others wait and which it called before{error or way_past(missing, call)}",
            advice="a rank that catches an error must still call the collectives of that step, or all ranks must agree "
            "to skip it: all-reduce a flag first",
        )
    return None


def _stopped(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a rank whose process existed but could not run."""
    missing = (*found.absent, *found.unknown)
    stopped = [each for each in missing if each in evidence.ranks and evidence.ranks[each].stopped]
    if not stopped:
        return None
    rank = evidence.ranks[stopped[0]]
    at = at_place(rank.line)
    return _base(evidence, found, stopped[0]).with_more(
        fault="stop",
        finding=f"{_waits(evidence, found)}; {span(stopped)} was stopped{at}: its process existed but did nothing",
        advice="a stopped process (SIGSTOP, a debugger, a frozen container or laptop), or one blocked in the kernel (a "
        "network file system that does not answer: state D in `ps`)",
    )


_NO_PYTHON = "Timeout (0:00:30)!"
"""Python's fault handler writes this when the observer could not run for 30 s."""


def _holds_lock(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a rank in which no Python code could run: a call keeps the interpreter's lock."""
    for number in (*found.absent, *found.unknown):
        rank = evidence.ranks.get(number)
        if rank is None or _NO_PYTHON not in rank.crash or rank.state != "running" or rank.line is None:
            continue
        return _base(evidence, found, number).with_more(
            fault="blocked",
            certain=False,
            finding=f"{_waits(evidence, found)}; rank {number} was at {place(rank.line)}, and no Python code of it "
            "could run for 30 s: the call in that line keeps Python's lock (GIL)",
            advice="a C extension must release the GIL before it computes for long or waits for another thread or "
            "process (Py_BEGIN_ALLOW_THREADS, pybind11's gil_scoped_release, ctypes.CDLL instead of PyDLL)",
        )
    return None


def _undelivered(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a rank that still waits in an earlier collective, which the others have completed."""
    for number in found.absent:
        rank = evidence.ranks[number]
        if not rank.pending or rank.error is not None:
            continue
        call = rank.pending[0]
        if call.group != found.group or call.seq >= found.seq or call.p2p or rank.state == "ended":
            continue
        if found.unknown:
            return _no_record(evidence, found)  # a rank without a record may be the one that sent nothing
        return _base(evidence, found, number).with_more(
            fault="network",
            certain=False,
            finding=f"rank {number} waits in {describe_call(evidence, call)}, which {span(sorted(found.calls))} "
            f"completed: data for it never arrived",
            line=place(call.line or rank.line) or None,
            advice="look at the network between their hosts: a firewall, a link that is down, a full switch\n"
            "NCCL_DEBUG=INFO shows NCCL's connections",
        )
    return None


def _died(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a rank whose process ended without a record of how, so that others lost the connection to it."""
    gone = [each for each in found.absent if _left_no_end(evidence.ranks[each])]
    lost = sorted(number for number, rank in evidence.ranks.items() if saw_a_peer_end(rank))
    waited = any(rank.error is not None and timed_out(rank.error) for rank in evidence.ranks.values())
    if not gone or not lost or waited or evidence.hung:
        return None
    rank = evidence.ranks[gone[0]]
    first = "it" if len(gone) == 1 else "the first"
    at = f"; {first} was last seen at {place(rank.line)}" if rank.line else ""
    return _base(evidence, found, gone[0]).with_more(
        fault="kill",
        certain=False,
        finding=f"{span(gone)} ended without a word before {describe_call(evidence, found.call)}, and "
        f"{span(lost)} lost the connection: killed (SIGKILL), or its host failed{at}",
        advice="`dmesg | grep -i oom` on its host or the scheduler's log (`sacct -j JOB`) can tell how it ended",
    )


def _left_no_end(rank: RankEvidence) -> bool:
    return rank.error is None and rank.exit_code is None and rank.state in (None, "running")


def _busy(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a rank that still computes."""
    busy = [each for each in found.absent if evidence.ranks[each].cpu_busy and evidence.ranks[each].state == "running"]
    if not busy:
        return None
    rank = evidence.ranks[busy[0]]
    at = at_place(rank.line)
    branch = rank_branch(rank.line)
    why = f", which only some ranks reach: {branch}" if branch else ""
    around = _branch_around(evidence, found)
    why += _calls_elsewhere(around, busy)
    return _base(evidence, found, busy[0]).with_more(
        fault="busy",
        certain=rank.line is not None and around is None,
        finding=f"{_waits(evidence, found)}; {span(busy)} {_was(busy)} still computing{at}{why}"
        f"{describe_workers(rank)}",
        advice="an endless loop, or work that takes longer than the time-out, such as an evaluation on one rank: raise "
        "the timeout of init_process_group, or give all ranks a share of it",
    )


def _was(ranks: list[int]) -> str:
    return "was" if len(ranks) == 1 else "were"


def _calls_elsewhere(branch: Guard | None, ranks: list[int]) -> str:
    """Say that living ranks cannot make a call from the line where the others wait."""
    return f"; the others wait under {branch}: {span(ranks)} must call it from another line" if branch else ""


def _blocked(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a living rank that waits for something other than a collective."""
    still = [each for each in found.absent if evidence.ranks[each].state == "running" and evidence.ranks[each].line]
    if not still:
        return None
    rank = evidence.ranks[still[0]]
    branch = rank_branch(rank.line)
    why = f", under {branch}" if branch else ""
    elsewhere = _calls_elsewhere(_branch_around(evidence, found), still)
    return _base(evidence, found, still[0]).with_more(
        fault="blocked",
        finding=f"{_waits(evidence, found)}; {span(still)} {_was(still)} at {place(rank.line)}{describe_inside(rank)}"
        f"{why}, and did not compute{_thread(rank)}{describe_workers(rank)}{waits_outside(rank)}{elsewhere}",
        certain=evidence.hung and rank.line is not None and waits_for_itself(rank.line, evidence.deadline_s),
        advice=advice_on_wait(rank)
        or "look for a lock, a queue, a file system or a data loader that does not answer, or a sleep, at that line",
    )


_LOADER, _WORKER = "torch/utils/data/dataloader.py", "torch/utils/data/_utils/worker.py"


def describe_workers(rank: RankEvidence) -> str:
    """Say where the workers of a DataLoader are for which a rank waits."""
    if not any(frame.file.replace("\\", "/").endswith(_LOADER) for frame in rank.stack):
        return ""
    places = [(worker.worker, user_line(reversed(_inside_worker(worker)))) for worker in rank.workers]
    inside = [f"worker {number} was at {place(line)}" for number, line in places if line is not None]
    return "; it waits for its DataLoader" + (f", whose {', '.join(inside[:4])}" if inside else "")


def _inside_worker(worker: WorkerStack) -> list[CodeLine]:
    """Return the frames of a worker's own work: below them are those of the rank that forked it."""
    files = [frame.file.replace("\\", "/") for frame in worker.frames]
    begin = max((number for number, file in enumerate(files) if file.endswith(_WORKER)), default=len(files))
    return worker.frames[begin:]


def _thread(rank: RankEvidence) -> str:
    """Describe the exception that ended a thread, for which the main thread may wait."""
    error = rank.thread_error
    if error is None:
        return ""
    at = at_place(error.line)
    return f"; a thread of it had ended with {error.short_type}{at}: {error.first_line}"


def _elsewhere(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find ranks that wait in another group, as their watchdogs say, whose earlier calls are unknown."""
    pending = {each: evidence.ranks[each].pending[:1] for each in found.unknown if each in evidence.ranks}
    if not pending or not all(pending.get(each) for each in found.unknown):
        return None
    odd, call = next((number, calls[0]) for number, calls in pending.items())
    there = [number for number, (other,) in pending.items() if (other.group, other.seq) == (call.group, call.seq)]
    return _base(evidence, found, odd).with_more(
        fault="order",
        certain=False,
        finding=f"{_waits(evidence, found)}; {they_wait(there)} in {describe_call(evidence, call)} instead",
        advice="ranks must call the collectives of overlapping groups in the same order\n"
        "find the ranks of the second group: all of them must call its collective, and one probably did not",
    )


def _no_record(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Report ranks of which nothing is known, while the others wait for them."""
    if not found.unknown:
        return None
    lost = list(found.unknown)
    return _base(evidence, found, lost[0]).with_more(
        fault="gone",
        certain=False,
        finding=f"{_waits(evidence, found)}; {span(lost)} left no record of "
        f"{'its' if len(lost) == 1 else 'their'} collectives: killed, on a lost host, stuck so hard that nothing was "
        "written, or the file was not copied here",
        advice=f"look for the files of {span(lost)}, or at {'its host' if len(lost) == 1 else 'their hosts'}: "
        "`dmesg | grep -i oom`, `nvidia-smi`, `sacct -j JOB`",
    )


def all_inside(evidence: Evidence) -> Diagnosis | None:
    """Find a collective that all members called and that never completed."""
    pending = {number: rank.pending[0] for number, rank in evidence.ranks.items() if rank.pending}
    is_stuck = evidence.has_failed or any(call.started for call in pending.values())
    if not pending or not is_stuck or len(pending) < max(2, len(evidence.world)):
        return None
    first = min(pending.values(), key=lambda call: call.created_ns or 0)
    same = {number: call for number, call in pending.items() if (call.group, call.seq) == (first.group, first.seq)}
    if len(same) < len(pending):
        return None
    late = sorted(number for number, call in same.items() if call.started is False)
    base = Diagnosis(
        "network",
        "",
        certain=False,
        line=place(first.line) or None,
        collective=describe_call(evidence, first),
        evidence=report_ranks(evidence, sorted(same)),
    )
    if late and len(late) < len(same):
        return base.with_more(
            fault="busy",
            rank=late[0],
            finding=f"all ranks called {describe_call(evidence, first)}, but on {span(late)} the device never "
            "started it",
            advice=f"an earlier kernel blocks the stream of {span(late)}: look at what it enqueued before, on "
            "all streams",
        )
    roots = differing_roots(same) if _is_local(evidence, same) else ""
    if roots:
        return base.with_more(
            fault="root",
            rank=min(same),
            finding=f"all ranks called {describe_call(evidence, first)}, with equal sizes, and it never completed: "
            f"{roots}",
            advice="all ranks of a group must name the same rank as src or dst: decide on one rank and broadcast the "
            "decision from a fixed one, or compute it from values that are equal on all ranks\n"
            "if it is the same everywhere, look at the network between the hosts",
        )
    return base.with_more(
        finding=f"all ranks called {describe_call(evidence, first)}, with equal sizes, and it never completed: the "
        "program is not the cause, as far as the evidence shows",
        advice="look at the network and the devices: NCCL_DEBUG=INFO, `dmesg | grep -i xid`, `nvidia-smi nvlink "
        "--status`",
    )


def _is_local(evidence: Evidence, calls: dict[int, Call]) -> bool:
    """True if a collective is one of processes on one machine, without devices: no network can have lost it."""
    hosts = {rank.host for number, rank in evidence.ranks.items() if number in calls}
    return len(hosts) == 1 and all(call.started is None for call in calls.values())
