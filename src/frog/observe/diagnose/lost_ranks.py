"""Ranks that a run lost and continued without (`comm.on_loss = "shrink"`): the cause of each loss, and new ranks."""

from __future__ import annotations

from frog.core.runs import RecordedRun
from frog.core.runs.changes import Change, find_changes, places_of
from frog.core.runs.launcher_schema import NodeEvent
from frog.core.units import span
from frog.observe.diagnose.case import Case
from frog.observe.diagnose.diagnosis import Diagnosis, note

_SILENT_S = 2.5
"""A process writes two heartbeats per second; a process that still exists but is silent for so long was stopped."""

_SOON_S = 5.0
"""Largest delay between the others continuing without a node's ranks and the launcher's report of its agent's end."""

_ADVICE = {
    "kill": "SIGKILL comes from a person, a scheduler, or a kernel that is out of memory: `dmesg | grep -i oom`",
    "stop": "A stopped process (SIGSTOP, a debugger, a frozen container or laptop) or one blocked in the kernel",
    "crash": "SIGSEGV, SIGBUS and SIGABRT come from compiled code: a full /dev/shm (SIGBUS) or an extension",
    "cut": "Check the network between it and the others; or it was slower than train.timeout_s allows",
    "node": "Is the machine up? Check for a power failure, a kernel panic, preemption by the scheduler (`sinfo -R`, "
    "`last -x`)",
    "raise": "Its traceback is in the logs: `frog logs RUN`",
}


def survived(changes: list[Change]) -> set[int]:
    """Return the indices of attempts that did not fail, because their ranks continued in another world."""
    return {number for change in changes for number in range(change.before, change.after)}


def with_lost_ranks(found: Diagnosis, run: RecordedRun, changes: list[Change]) -> Diagnosis:
    """Add the losses that the run survived to a diagnosis. Without other problems, the last one becomes the finding."""
    losses = [
        _loss(run, change, identity, rank) for change in changes for identity, rank in sorted(change.lost.items())
    ]
    lines = _joins(run, changes)
    if not losses or found.fault != "none":
        return found.with_more(*lines, also=(*found.also, *losses))
    last = losses.pop()
    return last.with_more(
        *lines,
        *found.evidence,
        finding=f"{last.finding}; the run completed",
        outcome="recovered",
        advice=f"nothing for now; if it happens again: {last.advice}",
        also=(*losses, *found.also),
    )


def name_members(found: Diagnosis, run: RecordedRun) -> Diagnosis:
    """Add the permanent numbers of the last world's ranks, if they differ from the current ones."""
    changes = find_changes(run.attempts)
    if not changes or changes[-1].after != len(run.attempts) - 1:
        return found
    members = changes[-1].members
    named = ", ".join(f"{rank} is member {identity}" for rank, identity in enumerate(members) if rank != identity)
    return found.with_more(f"{'':12}  by permanent number, rank {named}  [events/]") if named else found


def _loss(run: RecordedRun, change: Change, identity: int, rank: int) -> Diagnosis:
    case = Case(run, run.attempts[change.before])
    began_ns = _began_ns(run, change)
    gone = _gone_node(case, rank, began_ns)
    fault, how, certain = _how(case, rank, began_ns, gone)
    left = [who for who in change.members if who not in change.joined] or change.members
    then = note(
        began_ns, f"rank {left[0]}", f"{span(left)} continued after step {change.step}, "
        f"{change.took_ns / 1e9:.2f} s after detecting the loss", "events/rank_0.jsonl",
    )  # fmt: skip
    was = f"{'':12}  rank {identity} (its permanent number) was rank {rank} then  [events/]" if rank != identity else ""
    went = (
        note(gone.unix_ns, "launcher", f"the agent of {gone.host} was killed", "events/launcher.jsonl") if gone else ""
    )
    lines = [was, case.report_error(rank), case.report_position(rank), case.report_exit(rank), went, then]
    others = f"the other {len(left)} ranks" if len(left) > 1 else "the other rank"
    return Diagnosis(
        fault,
        f"rank {identity} {how} {case.where(rank)}; {others} continued after step {change.step}, "
        f"{change.took_ns / 1e9:.2f} s after detecting the loss",
        **{**case.about(rank), "rank": identity},
        certain=certain,
        outcome="recovered",
        evidence=tuple(line for line in lines if line),
        advice=_ADVICE[fault],
    )


def _how(case: Case, rank: int, began_ns: int | None, gone: NodeEvent | None) -> tuple[str, str, bool]:
    """Return the fault, its description, and False if the evidence allows another reading."""
    error, exit_event, beat = case.error(rank), case.exit(rank), case.beat(rank)
    if error is not None:
        return ("cut", "was cut off", True) if error.lost_peers else ("raise", f"raised {error.kind}", True)
    if beat is not None and began_ns is not None and beat.unix_ns > began_ns + _SILENT_S * 1e9:
        return "cut", "was cut off", True
    if gone is not None:
        return "node", f"was lost with its node, {gone.host},", True
    killed = case.left_out(rank) or case.hang(rank)
    last_ns = began_ns if exit_event is None else None
    if killed is not None:
        last_ns = killed.unix_ns
    if beat is not None and last_ns is not None and (last_ns - beat.unix_ns) / 1e9 > _SILENT_S:
        return "stop", "was stopped", killed is not None
    if killed is not None:
        return "cut", "was cut off", True
    signal = case.signal_of(rank)
    if signal == "SIGKILL":
        return "kill", "was killed by SIGKILL", True
    if signal is not None:
        return "crash", f"crashed with {signal}", True
    return "kill", "ended without an error message", False


def _gone_node(case: Case, rank: int, began_ns: int | None) -> NodeEvent | None:
    """Return the end of a rank's node, if the node was killed with its agent before the others continued."""
    worker = case.attempt.workers.get(rank)
    if worker is None or worker.start is None or began_ns is None or case.exit(rank) is not None:
        return None
    start, until_ns = worker.start, began_ns + _SOON_S * 1e9
    ends = (event for attempt in case.run.attempts for event in attempt.nodes if event.code < 0)
    return next((e for e in ends if e.host == start.host and start.unix_ns <= e.unix_ns < until_ns), None)


def _began_ns(run: RecordedRun, change: Change) -> int | None:
    """Return when the world after a change began, as time of day."""
    starts = [worker.start for worker in run.attempts[change.after].workers.values() if worker.start]
    return min((start.unix_ns for start in starts), default=None)


def _joins(run: RecordedRun, changes: list[Change]) -> list[str]:
    places, lines = places_of(run.attempts), []
    came = {worker.start.pid for a in run.attempts for worker in a.workers.values() if worker.start}
    for change in changes:
        for identity in change.joined:
            place = f" to replace rank {change.replaced[identity]}" if identity in change.replaced else ""
            what = f"joined{place} after step {change.step}: {len(change.members)} ranks from then on"
            lines.append(note(_began_ns(run, change), f"rank {identity}", what, "events/"))
    for event in (event for attempt in run.attempts for event in attempt.replacements if event.pid not in came):
        lost = places.get(event.pid, event.rank)
        what = f"process {event.pid} was started to replace rank {lost}, but has not joined"
        lines.append(note(event.unix_ns, "launcher", what, "events/launcher.jsonl"))
    return lines
