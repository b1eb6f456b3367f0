"""Find what went wrong in a program, from its evidence. The first rule that explains it wins.

An exception of a rank's own comes first: everything else follows from it. Then signals and exit codes, then what the
collectives show, then what the scheduler says about the whole job.
"""

from __future__ import annotations

from collections.abc import Callable

from frog.observe.diagnose.diagnosis import Diagnosis, note, span
from frog.observe.diagnose.program.compare import differences
from frog.observe.diagnose.program.end_rules import (
    exited,
    first_own_error,
    interrupted,
    killed,
    lost_node,
    of_job,
    own_exception,
)
from frog.observe.diagnose.program.evidence import Evidence, place
from frog.observe.diagnose.program.join_rules import joined_without
from frog.observe.diagnose.program.lines import RECORD_COLLECTIVES, describe_call, report_ranks
from frog.observe.diagnose.program.mismatch_rules import mismatch
from frog.observe.diagnose.program.nan_rules import not_finite_in_log
from frog.observe.diagnose.program.no_sync_rules import no_sync_without_effect
from frog.observe.diagnose.program.reported_rules import reported
from frog.observe.diagnose.program.slow_rules import perhaps_slow, slow_rank
from frog.observe.diagnose.program.stack_rules import stacks_apart
from frog.observe.diagnose.program.transfer_rules import transfer, without_transfers
from frog.observe.diagnose.program.victims import in_collective, is_victim, timed_out
from frog.observe.diagnose.program.wait_rules import absent
from frog.observe.diagnose.program.watchdog_rules import numbers_apart

_WAITS_S = 5.0
"""A collective that has been pending for less time may still complete."""

Rule = Callable[[Evidence], Diagnosis | None]


def diagnose_program(evidence: Evidence) -> Diagnosis:
    """Return what went wrong in a program, or that nothing did."""
    found = next((found for rule in RULES if (found := rule(evidence)) is not None), _unknown(evidence))
    if evidence.hung and evidence.stopped_by_user:
        found = _as_stopped(evidence, found)
    return _with_gaps(evidence, found)


def _as_stopped(evidence: Evidence, found: Diagnosis) -> Diagnosis:
    """Say of a program that waited when a user stopped it that it might have continued."""
    waited = f"a user stopped the program after {evidence.deadline_s or 0:.0f} s without a finished collective"
    finding = waited if found.fault == "unknown" else f"{found.finding}; {waited}"
    return found.with_more(finding=finding, outcome="interrupted", certain=False)


def mismatched(evidence: Evidence) -> Diagnosis | None:
    """Explain the first collective at which ranks met with different calls."""
    found = next((one for one in differences(evidence) if one.kind != "absent"), None)
    if found is None or (all(call.done for call in found.calls.values()) and not has_failed(evidence)):
        return None
    return mismatch(evidence, found)


def garbled(evidence: Evidence) -> Diagnosis | None:
    """Explain an exception that a collective raised because ranks met with different calls.

    A rank that receives numbers as the sizes of objects asks for absurd memory, or cannot unpickle.
    """
    error = first_own_error(evidence)
    if error is None or not in_collective(error):
        return None
    return mismatched(evidence) or reported(evidence)


def waited(evidence: Evidence) -> Diagnosis | None:
    """Explain the first collective in which some ranks wait and which others never called."""
    if not has_failed(evidence) and not _waited_long(evidence):
        return None
    absences = [without_transfers(evidence, one) for one in differences(evidence) if one.kind == "absent"]
    return next((explained for one in absences if (explained := absent(evidence, one)) is not None), None)


def has_failed(evidence: Evidence) -> bool:
    """True if something shows that the program did not end normally."""
    if evidence.hung or any(job.state not in (None, "COMPLETED", "RUNNING") for job in evidence.jobs):
        return True
    if evidence.ended_code not in (None, 0):
        return True
    ranks = evidence.ranks.values()
    return any(rank.exit_code not in (None, 0) or (rank.error is not None and rank.error.fatal) for rank in ranks)


def _waited_long(evidence: Evidence) -> bool:
    """True if a collective was pending for long when the record was written, or if that time is unknown."""
    for rank in evidence.ranks.values():
        for call in rank.pending:
            if rank.dumped_ns is None or (call.created_ns and rank.dumped_ns - call.created_ns > _WAITS_S * 1e9):
                return True
    return False


def all_inside(evidence: Evidence) -> Diagnosis | None:
    """Find a collective that all members called and that never completed."""
    pending = {number: rank.pending[0] for number, rank in evidence.ranks.items() if rank.pending}
    is_stuck = has_failed(evidence) or any(call.started for call in pending.values())
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
    return base.with_more(
        finding=f"all ranks called {describe_call(evidence, first)}, with equal sizes, and it never completed: the "
        "program is not the cause, as far as the evidence shows",
        advice="look at the network and the devices: NCCL_DEBUG=INFO, `dmesg | grep -i xid`, `nvidia-smi nvlink "
        "--status`",
    )


def vanished(evidence: Evidence) -> Diagnosis | None:
    """Find a rank that stopped without an end while others lost it."""
    victims = [number for number, rank in evidence.ranks.items() if is_victim(rank)]
    gone = [
        number
        for number in evidence.world
        if (rank := evidence.ranks.get(number)) is None
        or (rank.error is None and rank.exit_code is None and rank.state in (None, "running"))
    ]
    if not victims or not gone or evidence.active:
        return None
    times = {number: rank.seen_ns for number in gone if (rank := evidence.ranks.get(number)) and rank.seen_ns}
    first = min(times, key=lambda number: times[number] or 0, default=gone[0])
    rank = evidence.ranks.get(first)
    at = f" at {place(rank.line)}" if rank is not None and rank.line else ""
    waited = any((error := evidence.ranks[number].error) is not None and timed_out(error) for number in victims)
    how = "stopped or blocked" if waited else "killed (SIGKILL), or its host failed"
    return Diagnosis(
        "gone" if waited else "kill",
        f"{span(gone)} left no end{at}, and {span(victims)} lost the connection: {how}",
        rank=first,
        line=place(rank.line) or None if rank is not None else None,
        certain=False,
        evidence=report_ranks(evidence, [first, *victims]),
        advice="`dmesg | grep -i oom` on its host or the scheduler's log (`sacct -j JOB`) can tell how it ended",
    )


def teardown(evidence: Evidence) -> Diagnosis | None:
    """Find ranks that crashed or waited only after the program's end."""
    ranks = evidence.ranks
    ended = [
        number
        for number, rank in ranks.items()
        if rank.state == "ended" and rank.exit_code not in (None, 0) and rank.error is None
    ]
    if not ended or any(rank.state != "ended" for rank in ranks.values()):
        return None
    codes = sorted({ranks[number].exit_code or 0 for number in ended})
    return Diagnosis(
        "teardown",
        f"all ranks reached the end of the program; {span(ended)} then failed while the process shut down "
        f"(exit code {', '.join(map(str, codes))}): the results are complete",
        rank=ended[0],
        outcome="completed",
        evidence=report_ranks(evidence, ended),
        advice="call dist.destroy_process_group() at the end, on all ranks, after the last collective completed",
    )


_OF_HEALTHY: tuple[Rule, ...] = (not_finite_in_log, no_sync_without_effect, slow_rank)
"""What may be wrong with a program that does not fail."""


def healthy(evidence: Evidence) -> Diagnosis | None:
    """Find a program of which all ranks ended without an error."""
    if has_failed(evidence) or not evidence.ranks:
        return None
    found = [one for rule in _OF_HEALTHY if (one := rule(evidence)) is not None]
    if found:
        return found[0].with_more(also=tuple(found[1:]))
    ranks = evidence.ranks
    ended = all(rank.state == "ended" or rank.exit_code == 0 for rank in ranks.values())
    done = ended or evidence.ended_code == 0 or any(job.state == "COMPLETED" for job in evidence.jobs)
    if not done and not evidence.active:
        return None
    status = "completed" if done else "running"
    doubt = perhaps_slow(evidence)
    return Diagnosis(
        "none" if done else "running",
        f"{len(evidence.world)} ranks {'ended without an error' if done else 'run; nothing is wrong so far'}"
        + (f"; {doubt}" if doubt else ""),
        certain=not doubt,
        outcome=status,
        evidence=report_ranks(evidence, sorted(ranks)),
        advice="run it again on a quiet machine" if doubt else "nothing",
    )


def slow(evidence: Evidence) -> Diagnosis | None:
    """Report a slow rank of a program that failed for no other known reason."""
    return slow_rank(evidence)


RULES: tuple[Rule, ...] = (
    interrupted,
    teardown,
    garbled,
    own_exception,
    mismatched,
    reported,
    lost_node,
    killed,
    exited,
    numbers_apart,
    transfer,
    waited,
    joined_without,
    all_inside,
    lambda evidence: exited(evidence, at_all=True),
    lambda evidence: of_job(evidence, ("OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED")),
    vanished,
    lambda evidence: of_job(evidence, ("TIMEOUT", "CANCELLED")),
    healthy,
    slow,
    stacks_apart,
)


def _unknown(evidence: Evidence) -> Diagnosis:
    victims = [number for number, rank in evidence.ranks.items() if is_victim(rank)]
    lost = f"; {span(victims)} only lost the others" if victims else ""
    failed = has_failed(evidence)
    errors = [
        note(error.unix_ns, "log", f"{error.short_type}: {error.first_line}", error.source)
        for error in evidence.loose_errors[:8]
    ]
    states = [job for job in evidence.jobs if job.state not in ("COMPLETED", "RUNNING")]
    jobs = [note(job.unix_ns, "scheduler", job.text or job.state or "", job.source) for job in states[:8]]
    return Diagnosis(
        "unknown",
        ("the program failed, but no known failure pattern matches" if failed else "the evidence shows no failure")
        + lost,
        certain=False,
        outcome="failed" if failed else "unknown",
        evidence=(*errors, *jobs, *report_ranks(evidence, sorted(evidence.ranks))),
        advice=f"more evidence helps: a flight-recorder dump of every rank ({RECORD_COLLECTIVES}), "
        "`py-spy dump` of every rank, the logs of all ranks",
    )


def _with_gaps(evidence: Evidence, found: Diagnosis) -> Diagnosis:
    """Add the problems of reading, and what is missing."""
    lines = [f"{'':12}  {problem}" for problem in evidence.problems[:20]]
    ranks = [rank for rank in evidence.ranks.values() if rank.sources]
    if ranks and not any(rank.has_calls for rank in ranks) and found.fault in ("unknown", "gone", "kill"):
        lines.append(f"{'':12}  no record of collectives was found, so the ranks cannot be compared")
    return found.with_more(*lines)
