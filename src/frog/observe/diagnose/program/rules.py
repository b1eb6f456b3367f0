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
    teardown,
    vanished,
)
from frog.observe.diagnose.program.evidence import Evidence
from frog.observe.diagnose.program.join_rules import joined_without
from frog.observe.diagnose.program.mismatch_rules import mismatched
from frog.observe.diagnose.program.rank_reports import RECORD_COLLECTIVES, report_ranks
from frog.observe.diagnose.program.reported_rules import reported
from frog.observe.diagnose.program.slow_rules import healthy, slow_rank
from frog.observe.diagnose.program.stack_rules import stacks_apart
from frog.observe.diagnose.program.transfer_rules import transfer, without_transfers
from frog.observe.diagnose.program.victims import in_collective, is_victim
from frog.observe.diagnose.program.wait_rules import absent, all_inside
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
    if not evidence.has_failed and not _waited_long(evidence):
        return None
    absences = [without_transfers(evidence, one) for one in differences(evidence) if one.kind == "absent"]
    return next((explained for one in absences if (explained := absent(evidence, one)) is not None), None)


def _waited_long(evidence: Evidence) -> bool:
    """True if a collective was pending for long when the record was written, or if that time is unknown."""
    for rank in evidence.ranks.values():
        for call in rank.pending:
            if rank.dumped_ns is None or (call.created_ns and rank.dumped_ns - call.created_ns > _WAITS_S * 1e9):
                return True
    return False


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
    failed = evidence.has_failed
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
