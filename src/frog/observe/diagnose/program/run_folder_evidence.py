"""Evidence of a run folder of `frog run` or `frog observe`: observed/, events/launcher.jsonl and logs/."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path, PurePath

from frog.core.errors import RunError
from frog.core.runs.folder import RunFolder
from frog.core.runs.launcher_schema import (
    ExitEvent,
    HangEvent,
    LauncherEndEvent,
    LaunchEvent,
    NodeEvent,
    StallEvent,
    WorldEvent,
)
from frog.core.runs.observed import (
    CollectiveEntry,
    Collectives,
    EarlierError,
    Observed,
    ProgramError,
    Status,
    read_observed,
)
from frog.core.runs.read import read_launcher
from frog.core.runs.run import is_active
from frog.observe.diagnose.program.code_lines import fault_frames, user_line
from frog.observe.diagnose.program.evidence import Call, Evidence, Group, GroupNames, RankEvidence, SeenError
from frog.observe.diagnose.program.peer_errors import lost_peers
from frog.observe.diagnose.program.program_logs import with_origin

_LEAST_BEATS = 3
"""Fewest beats at one line that show whether the rank computed there."""


def attempts_of(run: Path) -> list[int]:
    """Return the numbers of the starts that left evidence, in order; at least [0]."""
    observed = {attempt for attempt, ranks in read_observed(run).items() if ranks}
    events = read_launcher(RunFolder(run)).events
    launched = {event.attempt for event in events if isinstance(event, (WorldEvent, ExitEvent))}
    return sorted(observed | launched) or [0]


def add_run(evidence: Evidence, run: Path, attempt: int) -> None:
    """Add what the observers and the launcher recorded of one start."""
    ranks = read_observed(run).get(attempt, {})
    known: dict[str, Group] = {}
    for rank, observed in sorted(ranks.items(), key=lambda item: item[1].collectives is None):
        known.update(_add_observed(evidence.of(rank), observed, run, known))
        if observed.status is not None:
            evidence.world_size = max(evidence.world_size or 0, observed.status.world_size)
        evidence.problems += observed.problems
    _add_launcher(evidence, RunFolder(run), attempt)
    _add_numbers(evidence, run, attempt)


def _add_numbers(evidence: Evidence, run: Path, attempt: int) -> None:
    """Add what the rules of `frog check` say, if the ranks recorded their numbers."""
    if next((run / "observed" / f"attempt_{attempt}").glob("rank_*/checks.jsonl"), None) is None:
        return
    from frog.observe.check.answers import answers_of_start

    try:
        evidence.answers = answers_of_start(run, attempt)[1]
    except RunError as error:
        evidence.problems.append(str(error))


def _add_observed(rank: RankEvidence, observed: Observed, run: Path, known: dict[str, Group]) -> dict[str, Group]:
    """Add a rank's files; return its groups. known: groups of the ranks before, for one that names no members."""
    folder = str(observed.folder.relative_to(run))
    names = GroupNames(others=known)
    if observed.collectives is not None:
        rank.groups = {name: tuple(info.ranks) for name, info in observed.collectives.groups.items()}
        names = GroupNames(rank.groups)
        source = f"{folder}/collectives.json"
        rank.calls = [_call(entry, names.find(entry.group), source) for entry in observed.collectives.entries]
        rank.has_calls, rank.dumped_ns = True, observed.collectives.unix_ns
        rank.messages = observed.collectives.messages
        rank.add_source(source)
    if observed.status is not None:
        _add_status(rank, observed.status, names)
        rank.add_source(f"{folder}/status.json")
    if observed.collectives is not None:
        _add_counts(rank, observed.collectives, names)
    if observed.error is not None:
        error = _error(observed.error, f"{folder}/error.json")
        if observed.error.thread in ("", "MainThread") or rank.state == "failed":
            rank.error, rank.root = error, observed.error.root
            rank.transfer, rank.joining = observed.error.transfer, observed.error.joining
            if lost_peers(error):
                rank.handled = _handled(observed.error.handled)
        else:
            rank.thread_error = replace(error, fatal=False)
        rank.add_source(f"{folder}/error.json")
    if observed.stacks is not None:
        main = next((thread for thread in observed.stacks.threads if thread.is_main), None)
        rank.stack = list(reversed(main.frames)) if main is not None else []
        rank.transfer = rank.transfer or observed.stacks.transfer
        rank.joining = rank.joining or observed.stacks.joining
        rank.root = observed.stacks.root if rank.root is None else rank.root
        rank.handled = rank.handled or _handled(observed.stacks.handled)
        rank.add_source(f"{folder}/stacks.json")
    rank.workers = observed.workers
    rank.crash = "" if _ran_since(observed) else observed.crash
    if frames := fault_frames(rank.crash):
        rank.stack, rank.line = frames, user_line(frames)
    return names.found


def _ran_since(observed: Observed) -> bool:
    """True if Python ran again after a pause that the fault handler wrote down: the rank itself wrote other files."""
    is_pause = observed.crash.startswith("Timeout (") and "Fatal Python error" not in observed.crash
    return is_pause and (observed.stacks is not None or observed.error is not None)


def _add_status(rank: RankEvidence, status: Status, names: GroupNames) -> None:
    rank.host, rank.node_rank, rank.pid, rank.state = status.host, status.node_rank, status.pid, status.state
    rank.seen_ns, rank.line = status.unix_ns, status.line
    rank.cpu_busy, rank.no_sync = _is_busy(status), status.no_sync
    rank.in_message = status.in_message
    rank.causes, rank.thread, rank.memory = status.samples.causes, status.thread, list(status.memory)
    rank.num_beats = sum(number for _, number in status.samples.lines)
    rank.often = next((text for text, _ in status.samples.lines if not text.startswith("<")), "")
    for counts in status.groups:
        group = names.find(counts.group)
        rank.enqueued[group], rank.completed[group] = counts.enqueued, counts.completed


def _add_counts(rank: RankEvidence, collectives: Collectives, names: GroupNames) -> None:
    """Add the counts of each group. gloo's include messages, so where they are larger its record counts instead."""
    called = {entry.group: entry.seq for entry in collectives.entries if entry.backend == "gloo"}
    done = {entry.group: entry.seq for entry in collectives.entries if entry.backend == "gloo" and entry.done}
    for counts in collectives.status:
        group, last = names.find(counts.group), called.get(counts.group, counts.enqueued)
        messages = max(0, counts.enqueued - last)
        rank.num_messages += messages
        rank.enqueued[group] = counts.enqueued - messages
        rank.completed[group] = done.get(counts.group, 0) if messages else counts.completed


def _is_busy(status: Status) -> bool | None:
    """Return whether a rank computed at its last line, from the counts of its beats; None if they do not tell."""
    samples, line = status.samples, status.line
    here = dict(samples.lines)
    beats = here.get(f"{PurePath(line.file).name}:{line.line}", 0) if line is not None else 0
    if beats < _LEAST_BEATS:
        return None
    if samples.waiting < beats / 2:
        return True
    return (
        False if samples.taken - samples.waiting < beats / 2 or samples.waiting >= beats >= samples.taken / 3 else None
    )


def _call(entry: CollectiveEntry, group: Group, source: str) -> Call:
    return Call(
        group,
        entry.seq,
        entry.op,
        entry.done,
        tuple(map(tuple, entry.sizes)),
        tuple(entry.dtypes),
        p2p=entry.p2p,
        started=True if entry.started_unix_ns else None,
        created_ns=entry.created_unix_ns or None,
        line=entry.line or next(iter(entry.stack), None),
        callers=tuple(entry.stack),
        source=source,
    )


def _error(error: ProgramError, source: str) -> SeenError:
    seen = SeenError(error.type, error.message, error.line, tuple(error.frames), error.unix_ns, source)
    return with_origin(seen)


def _handled(error: EarlierError | None) -> SeenError | None:
    return SeenError(error.type, error.message, error.line, fatal=False) if error is not None else None


def _add_launcher(evidence: Evidence, folder: RunFolder, attempt: int) -> None:
    """Add the exits and hangs of the last launch."""
    lines = read_launcher(folder)
    evidence.problems += lines.problems
    events = lines.events
    starts = [number for number, event in enumerate(events) if isinstance(event, LaunchEvent)]
    on_node: dict[int, list[int]] = {}
    for event in events[starts[-1] :] if starts else events:
        match event:
            case WorldEvent() if event.attempt == attempt:
                evidence.world_size, on_node[event.node] = event.world_size, event.ranks
                for rank, pid in zip(event.ranks, event.pids, strict=False):
                    evidence.of(rank).pid = evidence.of(rank).pid or pid
            case ExitEvent() if event.attempt == attempt and not (evidence.hung and event.code == -signal.SIGKILL):
                _add_exit(evidence.of(event.rank), event)
                _add_left(evidence, event)
            case HangEvent() if event.attempt == attempt:
                evidence.hung, evidence.deadline_s = True, event.waited_s
            case NodeEvent() if event.code == -signal.SIGKILL and not _has_ended(evidence):
                for number in on_node.get(event.node, []):
                    evidence.of(number).node_lost_ns = event.unix_ns
            case StallEvent() if event.attempt == attempt:
                _add_stall(evidence, event)
            case LauncherEndEvent():
                evidence.ended_code = event.code
                evidence.stopped_by_user = event.code in (130, 143)
    evidence.active = bool(starts) and evidence.ended_code is None and is_active(folder)
    if events:
        evidence.files.append("events/launcher.jsonl")


def _has_ended(evidence: Evidence) -> bool:
    """True if something has already ended the program: its launcher then kills what does not stop by itself."""
    return evidence.hung or any(rank.exit_code for rank in evidence.ranks.values())


def _add_stall(evidence: Evidence, event: StallEvent) -> None:
    """Add what each rank did while the program made no progress, as its launcher measured it."""
    if event.ends or event.stopped:  # the launcher ends all ranks
        evidence.hung, evidence.deadline_s = True, event.still_s
    for number, role in event.roles.items():
        rank = evidence.of(number)
        rank.stopped = role == "stopped"
        rank.cpu_busy = {"computes": True, "waits": False, "idle": False}.get(role, rank.cpu_busy)
        if role == "ended" and rank.state == "running":  # its process is gone; a failed one would have been reported
            rank.exit_code, rank.exit_source = 0, "events/launcher.jsonl"


def _add_left(evidence: Evidence, event: ExitEvent) -> None:
    """Add the ranks that had ended without an error before one failed."""
    for number in event.left:
        rank = evidence.of(number)
        if rank.exit_code is None:
            rank.exit_code, rank.exit_source = 0, "events/launcher.jsonl"


def _add_exit(rank: RankEvidence, event: ExitEvent) -> None:
    rank.exit_code, rank.exited_ns, rank.exit_source = event.code, event.unix_ns, "events/launcher.jsonl"
    rank.node_rank = event.node_rank
    rank.add_source("events/launcher.jsonl")
    if event.error is not None and rank.error is None:
        rank.error = SeenError(
            event.error.type, event.error.message, unix_ns=event.error.unix_ns, source="events/launcher.jsonl"
        )
