"""Find what went wrong in a run, from its folder alone.

The run is divided into attempts, one for each start. The rules examine the last failed attempt one after another: first
the rules that name a cause (a user's request, a lost node, a rank's own error), then those that infer it from outside
(a missing rank, closed connections).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from frog.core.runs import RecordedRun, read_run
from frog.core.runs.attempts import Attempt
from frog.core.runs.changes import find_changes
from frog.core.runs.folder import RunFolder
from frog.core.runs.run import is_active
from frog.core.units import span
from frog.observe.diagnose import network_rules as network
from frog.observe.diagnose import rank_rules as ranks
from frog.observe.diagnose.case import Case
from frog.observe.diagnose.checkpoint_rules import find_damage, of_checkpoint, with_damage
from frog.observe.diagnose.collectives import CollectiveCalls
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.exchange_rules import slow_exchanges
from frog.observe.diagnose.lost_ranks import name_members, survived, with_lost_ranks
from frog.observe.diagnose.message_rules import changed_message, unanswered
from frog.observe.diagnose.running import under_way
from frog.observe.diagnose.simulated_rules import jitter, of_simulation
from frog.observe.diagnose.slow_rules import late_each_time, straggler

_LARGE_SHARE = 0.2
"""Share of a simulated step that communication between nodes takes if jitter does not cause it."""

Rule = Callable[[Case, CollectiveCalls], Diagnosis | None]

RULES: tuple[Rule, ...] = (
    ranks.interrupted,
    network.never_met,
    network.node_gone,
    changed_message,
    ranks.own_error,
    network.different_call,
    late_each_time,
    ranks.stopped,
    ranks.killed,
    ranks.stuck,
    unanswered,
    network.connections,
    ranks.vanished,
)


def diagnose(folder: RunFolder) -> Diagnosis:
    """Return what went wrong in a run, or that nothing did."""
    run = read_run(folder)
    if run.last is not None and is_active(folder):
        case = Case(run, run.last)
        diagnosis = under_way(case, CollectiveCalls(case))
    else:
        diagnosis = _of_ended(run)
    diagnosis = with_lost_ranks(diagnosis, run, find_changes(run.attempts))
    if run.is_simulated:
        diagnosis = of_simulation(diagnosis)
    return diagnosis.with_more(*(f"{'':12}  {problem}" for problem in run.problems))


def _of_ended(run: RecordedRun) -> Diagnosis:
    damage = find_damage(run)
    went_on = survived(find_changes(run.attempts))
    failed = [a for number, a in enumerate(run.attempts) if number not in went_on and has_failed(run, a)]
    if not failed:
        diagnosis = _of_good(run)
        if damage and diagnosis.fault == "none":
            return replace(of_checkpoint(damage[-1]), outcome=diagnosis.outcome)
        return with_damage(diagnosis, damage)
    diagnosis = with_damage(name_members(_of_attempt(run, failed[-1]), run), damage)
    earlier = tuple(_of_attempt(run, attempt) for attempt in failed[:-1])
    last = run.last
    also = [*diagnosis.also, *earlier]
    if last and last not in failed:
        case = Case(run, last)
        changed = changed_message(case, CollectiveCalls(case))
        also += [changed] if changed is not None else []
    diagnosis = diagnosis.with_more(also=tuple(also))
    return _with_outcome(diagnosis, run, failed[-1])


def has_failed(run: RecordedRun, attempt: Attempt) -> bool:
    """True if an attempt did not end normally: a rank failed, hung, vanished or never reported how it ended."""
    statuses = {worker.status for worker in attempt.workers.values()}
    is_last = attempt is run.last
    if is_last and run.record is not None and run.record.status in ("completed", "interrupted"):
        return False
    errors = [worker.error for worker in attempt.workers.values() if worker.error]
    if attempt.exits or attempt.hangs or errors or "failed" in statuses:
        return True
    if statuses & {"completed", "interrupted"} and None not in statuses:
        return False
    return bool(attempt.workers or attempt.beats or (attempt.end is not None and attempt.end.code != 0))


def _of_attempt(run: RecordedRun, attempt: Attempt) -> Diagnosis:
    case = Case(run, attempt)
    calls = CollectiveCalls(case)
    for rule in RULES:
        diagnosis = rule(case, calls)
        if diagnosis is not None:
            return diagnosis
    lines = [line for rank in case.ranks for line in (case.report_error(rank), case.report_exit(rank)) if line]
    return Diagnosis(
        "unknown",
        "the run failed, but no known failure pattern matches",
        certain=False,
        evidence=(*lines, *(case.report_position(rank) for rank in case.ranks[:8])),
        advice="`frog logs RUN --tail 50` shows the last log lines of the ranks",
    )


def _with_outcome(diagnosis: Diagnosis, run: RecordedRun, attempt: Attempt) -> Diagnosis:
    """Add what happened to the run after its failure."""
    status = run.record.status if run.record else None
    later = run.attempts[run.attempts.index(attempt) + 1 :]
    if not later:
        return diagnosis
    starts = [worker.start for worker in later[-1].workers.values() if worker.start]
    since = f"from step {starts[0].step} with {starts[0].world_size} ranks" if starts else "again"
    if status == "completed":
        again = f"; the run restarted {since} and completed"
        return diagnosis.with_more(
            finding=diagnosis.finding + again,
            outcome="recovered",
            advice=f"nothing for now; if it happens again: {diagnosis.advice}",
        )
    if status == "interrupted":
        return diagnosis.with_more(
            finding=f"{diagnosis.finding}; the run restarted {since} and was interrupted", outcome=status
        )
    return diagnosis


def _of_good(run: RecordedRun) -> Diagnosis:
    """Diagnose a run in which nothing failed: completed, interrupted or never trained, perhaps with a straggler."""
    record, attempt = run.record, run.last
    if attempt is None:
        return Diagnosis(
            "none" if run.file else "unknown",
            "the run never trained: it has no events" if run.file else "this folder has no records of a run",
            certain=run.file is not None,
            outcome="completed",
            advice="start it with `frog train`",
        )
    case = Case(run, attempt)
    calls = CollectiveCalls(case)
    if (wrong := changed_message(case, calls)) is not None:  # a wrong message size may not fail anywhere
        return wrong.with_more(outcome="completed", finding=f"{wrong.finding}; the run continued with the data it had")
    slow, others = _slow_causes(case, calls)
    step, status = (record.step, record.status) if record else (None, "completed")
    ends = f"{span(case.ranks)} ended as {status}" if case.ranks else "no rank left a record"
    lines = [f"{'':12}  {ends}  [events/, record.json]"]
    if status == "interrupted":
        steps = run.folder.checkpoint_steps()
        saved = f", saved at step {steps[-1]}" if steps else ""
        diagnosis = Diagnosis(
            "interrupted",
            f"the run was asked to stop (Ctrl-C, SIGTERM, a time limit) and ended after step {step}{saved}: no fault",
            step=step,
            outcome=status,
            evidence=tuple(lines),
            advice=f"continue: `{run.folder.resume_command}`",
        )
        return diagnosis if slow is None else diagnosis.with_more(also=(slow,))
    if slow is not None and (run.is_simulated or slow.step != step):
        finding = f"{slow.finding}; the run completed"
        return slow.with_more(*lines, outcome="completed", finding=finding, also=tuple(others))
    return Diagnosis(
        "none",
        f"healthy: {step} steps by {len(case.ranks)} rank{'s' if len(case.ranks) > 1 else ''}, completed",
        step=step,
        outcome="completed",
        evidence=tuple(lines),
        advice="nothing",
        also=tuple(other for other in (slow, *others) if other is not None),
    )


def _slow_causes(case: Case, calls: CollectiveCalls) -> tuple[Diagnosis | None, tuple[Diagnosis, ...]]:
    """Return what makes a run slow, and what else does. In a real run, only a straggler is a fault."""
    slow = straggler(case)
    exchanges, share = slow_exchanges(case, calls) or (None, 0.0)
    if not case.run.is_simulated:
        return slow, (exchanges,) if exchanges is not None else ()
    causes = (slow, exchanges, jitter(case)) if share >= _LARGE_SHARE else (slow, jitter(case), exchanges)
    present = [cause for cause in causes if cause is not None]
    return (present[0], tuple(present[1:])) if present else (None, ())
