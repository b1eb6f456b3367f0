"""Diagnose a folder of any program: gather the evidence of each start; the first rule that explains it wins.

An exception of a rank's own comes first: everything else follows from it. Then signals and exit codes, then what the
collectives show, then what the scheduler says about the whole job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from frog.core.errors import FrogError
from frog.core.runs.folder import RunFolder
from frog.core.runs.history import read_history
from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis, note
from frog.observe.diagnose.known_errors.explain import Explanation
from frog.observe.diagnose.known_errors.log_answer import MORE_HELPS
from frog.observe.diagnose.program.barrier_rules import gave_up, missed_barrier
from frog.observe.diagnose.program.call_origins import origin_of
from frog.observe.diagnose.program.compared_calls import differences
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
from frog.observe.diagnose.program.gather import gather_all
from frog.observe.diagnose.program.join_rules import awaits_too_many, creates_alone, groups_differ, never_meets
from frog.observe.diagnose.program.log_rules import with_log
from frog.observe.diagnose.program.loop_end_rules import left_its_loop
from frog.observe.diagnose.program.mismatch_rules import mismatched, passed
from frog.observe.diagnose.program.peer_errors import in_collective, is_victim
from frog.observe.diagnose.program.rank_reports import RECORD_COLLECTIVES, led_by_error, report_ranks
from frog.observe.diagnose.program.reported_rules import differing_numbers, reported
from frog.observe.diagnose.program.root_rules import other_root
from frog.observe.diagnose.program.run_folder_evidence import attempts_of
from frog.observe.diagnose.program.silent_rules import healthy, slow_rank
from frog.observe.diagnose.program.stack_rules import differing_stacks, joined_without, none_inside, some_inside
from frog.observe.diagnose.program.torch_mismatch import compared_by_torch
from frog.observe.diagnose.program.transfer_rules import transfer, without_transfers
from frog.observe.diagnose.program.wait_rules import absent, all_inside, under_branch
from frog.observe.diagnose.recorded import recorded_findings

_WAITS_S = 5.0
"""A collective that has been pending for less time may still complete."""

NO_PROOF = "the evidence shows neither a failure nor its absence: no exit code, and no rank that reached its end"
_NO_FINDING = ("unknown", "none", "running")
_GOOD = ("none", "running", "interrupted", "slow", "no_sync", "teardown")
"""Faults for which an earlier start that failed is not shown first."""

Rule = Callable[[Evidence], Diagnosis | None]


def diagnose_folder(path: Path) -> Diagnosis:
    """Return what went wrong in the program whose evidence lies in a folder or file.

    Raises:  RunError if no file there is evidence.
    """
    return diagnose_all([path])[0]


def diagnose_all(paths: Sequence[Path]) -> tuple[Diagnosis, Explanation | None]:
    """Return what went wrong in the program whose evidence lies in folders and files, and what its logs say.

    Raises:  RunError if no file there is evidence.
    """
    diagnosis, explanation = _of_attempts(paths)
    for path in paths:
        diagnosis = _with_recorded(diagnosis, path)
    return diagnosis, explanation


def describe_hang(path: Path) -> str:
    """Return the finding on a hanging program as a line; empty without one."""
    try:
        diagnosis = diagnose_folder(path)
    except FrogError:
        return ""
    if diagnosis.fault in _NO_FINDING:
        return ""
    return f"{'diagnosis' if diagnosis.certain else 'probably'}: {diagnosis.finding}"


def _of_attempts(paths: Sequence[Path]) -> tuple[Diagnosis, Explanation | None]:
    """Return what went wrong in the last start that failed, and in the earlier ones."""
    of_paths = [attempts_of(path) for path in paths]
    attempts = next((attempts for attempts in of_paths if len(attempts) > 1), of_paths[0])
    evidence = gather_all(paths, attempts[-1])
    diagnosis = with_log(evidence, diagnose_program(evidence))
    if len(attempts) == 1:
        return diagnosis, evidence.explanation
    earlier = [diagnose_program(gather_all(paths, attempt)) for attempt in attempts[-20:-1]]
    failed = [other for other in earlier if other.fault not in _GOOD]
    if diagnosis.fault not in _GOOD or not failed:
        return diagnosis.with_more(also=(*diagnosis.also, *earlier)), evidence.explanation
    again = (
        "the program was started again and completed" if diagnosis.outcome == "completed" else "it was started again"
    )
    first = failed[-1].with_more(
        finding=f"{failed[-1].finding}; {again}", outcome="recovered", also=(*failed[:-1], diagnosis)
    )
    return first, evidence.explanation


def _with_recorded(diagnosis: Diagnosis, path: Path) -> Diagnosis:
    """Add what the numbers show that the program recorded; in a run that did not fail, they come first."""
    folder = RunFolder(path)
    recorded = recorded_findings(read_history(folder)) if folder.event_ranks() else []
    completed = diagnosis.fault in ("none", "running", "interrupted") or (
        diagnosis.fault == "nan" and not diagnosis.certain
    )
    if not recorded or not completed:
        return diagnosis.with_more(also=(*diagnosis.also, *recorded))
    first, *rest = recorded
    return replace(first, outcome=diagnosis.outcome, also=(*rest, *diagnosis.also))


def diagnose_program(evidence: Evidence) -> Diagnosis:
    """Return what went wrong in a program, or that nothing did."""
    explained = (rule(evidence) for rule in RULES)
    diagnosis = next((each for each in explained if each is not None), None) or _unknown(evidence)
    diagnosis = _with_origin(evidence, _with_handled(evidence, diagnosis))
    if evidence.hung and evidence.stopped_by_user:
        diagnosis = _as_stopped(evidence, diagnosis)
    return _with_gaps(evidence, _with_passed(evidence, diagnosis))


_OF_CALLS = ("order", "dtype", "shape", "branch", "skipped", "batches")
"""Faults that differing calls have."""


def _with_passed(evidence: Evidence, diagnosis: Diagnosis) -> Diagnosis:
    """Add calls that differed and passed, before the program failed for another reason."""
    earlier = passed(evidence) if evidence.has_failed and diagnosis.fault not in _OF_CALLS else None
    return diagnosis if earlier is None else diagnosis.with_more(also=(*diagnosis.also, earlier))


def _with_handled(evidence: Evidence, diagnosis: Diagnosis) -> Diagnosis:
    """Add the error that one rank alone was handling when the others waited, if the finding does not name it."""
    handling = [rank for rank in evidence.ranks.values() if rank.handled is not None]
    if len(handling) != 1 or diagnosis.outcome != "failed" or len(evidence.ranks) < 2:
        return diagnosis
    words = led_by_error(handling[0])
    return diagnosis if words in diagnosis.finding else diagnosis.with_more(finding=f"{diagnosis.finding}; {words}")


_OF_WAITS = (*_OF_CALLS, "ended", "stuck", "blocked", "busy", "network")
"""Faults of ranks that wait for each other in collectives."""


def _with_origin(evidence: Evidence, diagnosis: Diagnosis) -> Diagnosis:
    """Add what led one rank alone to the collective in which it waits, if that is not a line of the program."""
    pending = [(rank, rank.pending[0]) for rank in evidence.ranks.values() if rank.pending]
    led = [(rank, call, origin) for rank, call in pending if (origin := origin_of(call, rank.calls)) is not None]
    if len(led) != 1 or diagnosis.fault not in _OF_WAITS or str(led[0][2]) in diagnosis.finding:
        return diagnosis
    rank, call, origin = led[0]
    return diagnosis.with_more(finding=f"{diagnosis.finding}; rank {rank.rank} called {call.op} {origin}")


def _as_stopped(evidence: Evidence, diagnosis: Diagnosis) -> Diagnosis:
    """Say of a program that waited when a user stopped it that it might have continued."""
    waited = f"a user stopped the program after {evidence.deadline_s or 0:.0f} s without a finished collective"
    finding = waited if diagnosis.fault == "unknown" else f"{diagnosis.finding}; {waited}"
    return diagnosis.with_more(finding=finding, outcome="interrupted", certain=False)


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
    missed = [without_transfers(evidence, each) for each in differences(evidence) if each.kind == "absent"]
    explained = (rule(evidence, difference) for rule in (under_branch, left_its_loop, absent) for difference in missed)
    return next((diagnosis for diagnosis in explained if diagnosis is not None), None)


def _waited_long(evidence: Evidence) -> bool:
    """True if a collective was pending for long when the record was written, or if that time is unknown."""
    for rank in evidence.ranks.values():
        for call in rank.pending:
            if rank.dumped_ns is None or (call.created_ns and rank.dumped_ns - call.created_ns > _WAITS_S * 1e9):
                return True
    return False


RULES: tuple[Rule, ...] = (
    interrupted,
    teardown,
    compared_by_torch,
    garbled,
    gave_up,
    own_exception,
    mismatched,
    reported,
    lost_node,
    killed,
    exited,
    differing_numbers,
    awaits_too_many,
    groups_differ,
    creates_alone,
    never_meets,
    missed_barrier,
    transfer,
    other_root,
    waited,
    joined_without,
    none_inside,
    all_inside,
    lambda evidence: exited(evidence, at_all=True),
    lambda evidence: of_job(evidence, ("OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED")),
    vanished,
    lambda evidence: of_job(evidence, ("TIMEOUT", "CANCELLED")),
    healthy,
    slow_rank,  # of a program that failed for no other known reason
    some_inside,
    differing_stacks,
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
        ("the program failed, but no known failure pattern matches" if failed else NO_PROOF) + lost,
        certain=False,
        outcome="failed" if failed else "unknown",
        evidence=(*errors, *jobs, *report_ranks(evidence, sorted(evidence.ranks))),
        advice=f"{MORE_HELPS}\ntorch's flight recorder writes a dump of every rank with {RECORD_COLLECTIVES}",
    )


def _with_gaps(evidence: Evidence, diagnosis: Diagnosis) -> Diagnosis:
    """Add the problems of reading, and what is missing."""
    lines = [f"{'':12}  {problem}" for problem in evidence.problems[:20]]
    ranks = [rank for rank in evidence.ranks.values() if rank.sources]
    if ranks and not any(rank.has_calls for rank in ranks) and diagnosis.fault in ("unknown", "gone", "kill"):
        lines.append(f"{'':12}  no record of collectives was found, so the ranks cannot be compared")
    return diagnosis.with_more(*lines)
