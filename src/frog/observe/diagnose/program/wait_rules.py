"""Rules about a collective that some members of a group called and others did not, or that all called and none left."""

from __future__ import annotations

from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.code_ahead import calls_nothing_more
from frog.observe.diagnose.program.code_blocks import Block
from frog.observe.diagnose.program.code_partings import parting_of, stack_of
from frog.observe.diagnose.program.compared_calls import Difference
from frog.observe.diagnose.program.condition_sources import source_words
from frog.observe.diagnose.program.evidence import Call, Evidence, RankEvidence, place, same_line
from frog.observe.diagnose.program.group_order_rules import other_group
from frog.observe.diagnose.program.loop_end_rules import finished_rank
from frog.observe.diagnose.program.outside_rules import blocked_rank, busy_rank, lock_holder, stopped_rank
from frog.observe.diagnose.program.parting_words import OUT_OF_BRANCH
from frog.observe.diagnose.program.peer_errors import saw_a_peer_end, timed_out
from frog.observe.diagnose.program.rank_reports import describe_call, report_ranks, they_wait
from frog.observe.diagnose.program.root_rules import ADVICE, differing_roots
from frog.observe.diagnose.program.wait_reports import base_of_wait, branch_around, is_finished, user_stack, who_waits


def under_branch(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Explain a collective that one of several groups waits in, if a branch that not all ranks pass encloses it.

    The members of other groups then wait for those ranks, which shows only that they are elsewhere.
    """
    is_known = found.absent and not found.unknown and stopped_rank(evidence, found) is None
    return _guarded(evidence, found) if is_known else None


def absent(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Explain why some ranks never called a collective in which others wait."""
    if (stopped := stopped_rank(evidence, found)) is not None:
        return stopped
    if (holds := lock_holder(evidence, found)) is not None:
        return holds
    if not found.absent:
        return _elsewhere(evidence, found) or _no_record(evidence, found)
    for rule in (_guarded, finished_rank, other_group, _undelivered, _died, busy_rank, blocked_rank):
        explained = rule(evidence, found)
        if explained is not None:
            return explained
    return base_of_wait(evidence, found, found.absent[0]).with_more(
        fault="stuck",
        certain=False,
        finding=f"{who_waits(evidence, found)}, which {span([*found.absent])} never called",
        advice=f"find out what {span([*found.absent])} did instead: `py-spy dump --pid PID` on its host",
    )


def _guarded(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a collective under a test that only some ranks pass."""
    missing = [evidence.ranks[each] for each in found.absent]
    ends = {rank.rank: calls_nothing_more(rank.stack) for rank in missing}
    if any(_has_called(rank, found) or (_works(rank) and not ends[rank.rank]) for rank in missing):
        return None
    branch = branch_around(evidence, found)
    if branch is not None and branch.is_shared and not all(ends.values()):
        branch = None  # the other ranks' own call may still come
    has_returned = branch is not None and branch.block.kind == "return" and all(is_finished(rank) for rank in missing)
    if has_returned and len(missing) <= len(found.calls):
        return None  # `finished_rank` names the ranks that returned
    # a return may have another one behind it, whatever its rank still does
    is_over = branch is not None and not branch.is_use and branch.block.kind != "return" and all(ends.values())
    certain, passed = branch is not None and (branch.is_proof or is_over), str(branch) if branch is not None else None
    if branch is None and (block := _branch_of_callers(evidence, found)) is not None:
        certain, passed = False, f"{block}{source_words(block)}"
    if passed is None:
        return None
    callers, absent_ranks = sorted(found.calls), sorted(found.absent)
    odd = callers[0] if len(callers) <= len(absent_ranks) else absent_ranks[0]
    return base_of_wait(evidence, found, odd).with_more(
        fault="branch",
        certain=certain,
        finding=f"{who_waits(evidence, found)}, which {span(absent_ranks)} never "
        f"{'calls' if len(absent_ranks) == 1 else 'call'}: only some ranks pass {passed}",
        advice=f"{OUT_OF_BRANCH}\nwork for one rank alone belongs inside the branch, the barrier after it",
    )


def _works(rank: RankEvidence) -> bool:
    """True if a rank was seen outside of all collectives, at work or waiting: it may still call the one in question."""
    is_alive = rank.state == "running" and rank.error is None and rank.exit_code is None
    return is_alive and not rank.pending and rank.line is not None and rank.cpu_busy is not None


def _branch_of_callers(evidence: Evidence, found: Difference) -> Block | None:
    """Return a branch around the call, with any test, that the other ranks came by and did not pass."""
    before = [call for number in found.calls for call in evidence.ranks[number].calls if call.seq < found.seq]
    last = stack_of(before[-1]) if before else ()
    for number in found.absent:
        stacks = [user_stack(evidence.ranks[number])]
        stacks += [stack_of(call) for call in evidence.ranks[number].pending[:1]]
        for stack in stacks:
            parting = parting_of(stack_of(found.call), stack, last)
            if parting is not None and parting.block.kind not in ("loop", "return", "try"):
                return parting.block
    return None


def _has_called(rank: RankEvidence, found: Difference) -> bool:
    """True if a rank called a collective from the same line before."""
    return any(same_line(call.line, found.call.line) for call in rank.calls)


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
        return base_of_wait(evidence, found, number).with_more(
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
    return base_of_wait(evidence, found, gone[0]).with_more(
        fault="kill",
        certain=False,
        finding=f"{span(gone)} ended without a word before {describe_call(evidence, found.call)}, and "
        f"{span(lost)} lost the connection: killed (SIGKILL), or its host failed{at}",
        advice="`dmesg | grep -i oom` on its host or the scheduler's log (`sacct -j JOB`) can tell how it ended",
    )


def _left_no_end(rank: RankEvidence) -> bool:
    return rank.error is None and rank.exit_code is None and rank.state in (None, "running")


def _elsewhere(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find ranks that wait in another group, as their watchdogs say, whose earlier calls are unknown."""
    pending = {each: evidence.ranks[each].pending[:1] for each in found.unknown if each in evidence.ranks}
    if not pending or not all(pending.get(each) for each in found.unknown):
        return None
    odd, call = next((number, calls[0]) for number, calls in pending.items())
    there = [number for number, (other,) in pending.items() if (other.group, other.seq) == (call.group, call.seq)]
    return base_of_wait(evidence, found, odd).with_more(
        fault="order",
        certain=False,
        finding=f"{who_waits(evidence, found)}; {they_wait(there)} in {describe_call(evidence, call)} instead",
        advice="ranks must call the collectives of overlapping groups in the same order\n"
        "find the ranks of the second group: all of them must call its collective, and one probably did not",
    )


def _no_record(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Report ranks of which nothing is known, while the others wait for them."""
    if not found.unknown:
        return None
    lost = list(found.unknown)
    return base_of_wait(evidence, found, lost[0]).with_more(
        fault="gone",
        certain=False,
        finding=f"{who_waits(evidence, found)}; {span(lost)} left no record of "
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
    is_known = all(evidence.ranks[number].root is not None for number in same)
    roots = differing_roots(same) if _is_local(evidence, same) and not is_known else ""
    if roots:
        return base.with_more(
            fault="root",
            rank=min(same),
            finding=f"all ranks called {describe_call(evidence, first)}, with equal sizes, and it never completed: "
            f"{roots}",
            advice=f"{ADVICE}\nif it is the same everywhere, look at the network between the hosts",
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
