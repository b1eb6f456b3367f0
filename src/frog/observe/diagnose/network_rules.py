"""Rules about nodes, links, connections, the start of a world, and collectives that differ between ranks."""

from __future__ import annotations

from frog.core.errors import signal_name
from frog.core.runs.launcher_schema import NodeEvent
from frog.core.units import span
from frog.observe.diagnose.case import Case
from frog.observe.diagnose.collectives import CollectiveCalls, failed_call
from frog.observe.diagnose.diagnosis import Diagnosis, note

_TOGETHER_NS = 2_000_000_000
_FIRST_NS = 1_000_000_000
_AT_ONCE_NS = 100_000_000


def never_met(case: Case, calls: CollectiveCalls) -> Diagnosis | None:
    """Find a world whose rendezvous failed."""
    began = [rank for rank in case.ranks if (worker := case.attempt.workers.get(rank)) and worker.start]
    refused = [rank for rank, error in case.comm_errors.items() if error.facts.op == "rendezvous"]
    end, launch = case.attempt.end, case.attempt.launch
    ended_badly = end is not None and end.code != 0
    if began or case.own_errors or not (refused or (ended_badly and not case.attempt.worlds)):
        return None
    lines = [line for rank in refused if (line := case.report_error(rank))]
    if launch is not None:
        wanted = len(launch.nodes)
        met = len({event.node_rank for event in case.attempt.worlds})
        lines.append(
            note(launch.unix_ns, "launcher", f"{met} of {wanted} nodes joined the rendezvous", "events/launcher.jsonl")
        )
    return Diagnosis(
        "start",
        "the rendezvous failed: not all ranks reached MASTER_ADDR:MASTER_PORT in time",
        evidence=tuple(lines),
        advice="was every node started with the same MASTER_ADDR, MASTER_PORT and number of nodes? Can every node "
        "reach "
        "that port (`nc -vz ADDR PORT`)? Does the head node's name resolve to an address that the other nodes can "
        "reach?",
    )


def node_gone(case: Case, calls: CollectiveCalls) -> Diagnosis | None:
    """Find a node whose ranks all vanished together."""
    for event in sorted(case.attempt.nodes, key=lambda event: event.unix_ns):
        ranks = _ranks_of(case, event)
        if event.code >= 0 or event.code == -15 or _failed_before(case, event.unix_ns, ranks):
            continue
        return _lost_node(
            case, calls, ranks, f"{event.host} (its agent was killed by {signal_name(-event.code)})", [
                note(event.unix_ns, "launcher", f"the agent of {event.host} ended with code {event.code}",
                     "events/launcher.jsonl")
            ],
        )  # fmt: skip
    by_node: dict[int, list[int]] = {}
    for rank in case.ranks:
        by_node.setdefault(case.attempt.node_of(rank) or 0, []).append(rank)
    if len(by_node) < 2 or case.attempt.nodes or case.attempt.hangs:
        return None
    for node, ranks in by_node.items():
        signs = [case.attempt.last_sign_ns(rank) or 0 for rank in ranks]
        quiet = all(case.silent(rank) and case.exit(rank) is None for rank in ranks)
        others_spoke = any(case.error(rank) for rank in case.ranks if rank not in ranks)
        if quiet and others_spoke and max(signs) - min(signs) < _TOGETHER_NS:
            diagnosis = _lost_node(case, calls, ranks, f"node {node}", [])
            return diagnosis.with_more(certain=len(ranks) > 1)
    return None


def _lost_node(case: Case, calls: CollectiveCalls, ranks: list[int], what: str, lines: list[str]) -> Diagnosis:
    heard = [rank for rank in ranks if case.position(rank).step is not None]  # the rest ended before their first event
    first = next(iter(heard or ranks), None)
    others = [line for rank in case.ranks if rank not in ranks and (line := case.report_error(rank))]
    about = case.about(first) if first is not None else {}
    where = f" {case.where(first)}" if first is not None else ""
    with_it = f", and {span(ranks)} with it" if ranks else ""
    return Diagnosis(
        "node",
        f"{what} was lost{where}{with_it}",
        **{**about, "rank": first},
        collective=str(calls.absence.call) if calls.absence is not None else None,
        evidence=(*lines, *(case.report_position(rank) for rank in ranks[:4]), *others[:3]),
        advice="is the machine up? Check for a power failure, a kernel panic, preemption by the scheduler (`sinfo "
        "-R`, `last -x`)\n"
        f"continue on the remaining nodes: `frog run --nodes 1:N ...`, or later: "
        f"`{case.run.folder.resume_command}`",
    )


def _ranks_of(case: Case, event: NodeEvent) -> list[int]:
    """Return the ranks that the agent of a node started."""
    for world in case.attempt.worlds:
        if world.node == event.node:
            return world.ranks
    return []


def _failed_before(case: Case, unix_ns: int, ranks: list[int]) -> bool:
    """True if the node was only ended with the world: a rank elsewhere, or one of its own, had failed well before."""
    if any(rank in ranks for rank in case.own_errors):
        return True
    return any(
        exit_.rank not in ranks and exit_.unix_ns < unix_ns - _TOGETHER_NS // 4 for exit_ in case.attempt.exits
    ) or any(hang.unix_ns < unix_ns for hang in case.attempt.hangs)


def different_call(case: Case, calls: CollectiveCalls) -> Diagnosis | None:
    """Find a rank that called a different collective than the other ranks of its axis."""
    mismatch = calls.mismatch
    if mismatch is None:
        return None
    rank, mine, theirs = mismatch.odd, mismatch.odd_call, mismatch.expected
    others = span(list(mismatch.others))
    call = theirs if mismatch.kind == "missing" or mine is None else mine
    lines = [
        note(case.attempt.unix_ns(rank, mine.mono_ns), f"rank {rank}", f"began {mine} in step {mine.step}"
             + (f", {mine.phase}" if mine.phase else ""), mine.file)
    ] if mine is not None else []  # fmt: skip
    for other, own in list(mismatch.others.items())[:3]:
        where = f" in step {own.step}" + (f", {own.phase}" if own.phase else "")
        lines.append(note(case.attempt.unix_ns(other, own.mono_ns), f"rank {other}", f"began {own}{where}", own.file))
    lines.append(f"{'':12}  each is its rank's call no. {mismatch.index} over these connections: {mismatch.why}")
    findings = {
        "shape": f"rank {rank} called {mine} where {others} called {theirs}: a tensor of the wrong size",
        "extra": f"rank {rank} called {mine}, which {others} did not call: an extra collective",
        "missing": f"rank {rank} skipped {theirs}, which {others} called: a missing collective",
    }
    doubt = "" if mismatch.certain else f" (or the reverse: {others} are {len(mismatch.others)} against one)"
    if mismatch.is_guess:
        doubt = f" ({mismatch.why})"
    return Diagnosis(
        mismatch.kind,
        f"{findings[mismatch.kind]}, in step {call.step}" + (f", {call.phase}" if call.phase else "") + doubt,
        rank=rank,
        node_rank=case.attempt.node_of(rank),
        step=call.step,
        phase=call.phase,
        collective=str(call),
        certain=mismatch.certain,
        evidence=(*lines, *(line for r in case.ranks for line in (case.report_error(r), case.report_exit(r)) if line)),
        advice="every rank of an axis must call the same collectives, with the same sizes, in the same order: look "
        "for a "
        f"collective inside an `if rank == ...`, a data-dependent branch or uneven batches, in the code of the "
        f"{call.phase or 'same'} phase\nresults since then may be wrong: resume from a checkpoint before that step",
    )


def connections(case: Case, calls: CollectiveCalls) -> Diagnosis | None:
    """Find a network failure between nodes: collectives failed on all ranks although every process was alive."""
    if not case.comm_errors or case.own_errors:
        return None
    died = [rank for rank in case.ranks if case.signal_of(rank) not in (None, "SIGTERM") or case.silent(rank)]
    if [rank for rank in died if case.hang(rank) is None]:
        return None
    nodes = {rank: case.attempt.node_of(rank) for rank in case.ranks}
    closed = [rank for rank in case.comm_errors if rank not in case.timed_out]
    lines = tuple(line for rank in case.ranks if (line := case.report_error(rank)))[:8]
    if case.timed_out and len(set(nodes.values())) > 1:
        return _cut(case, calls, lines)
    if closed:
        return _closed(case, calls, closed, lines)
    return None


def _cut(case: Case, calls: CollectiveCalls, lines: tuple[str, ...]) -> Diagnosis:
    first = case.first_lost
    assert first is not None
    call = str(calls.absence.call) if calls.absence is not None else _failed(case, first)
    position = case.position(first)
    node, reports = _cut_off(case)
    where = f"node {node} was cut off" if node is not None else "the network between the nodes was cut"
    ranks = [rank for rank in case.ranks if case.attempt.node_of(rank) == node]
    doubt = ""
    if node is not None and len({case.attempt.node_of(rank) for rank in case.ranks}) == 2:
        doubt = " (or the other node: with two nodes, each sees the other disappear)"
    return Diagnosis(
        "cut",
        f"{where}{doubt} {case.where(first)} or just before: {call or 'a collective'} timed out while the heartbeat of "
        "every process continued",
        rank=ranks[0] if ranks else None,
        node_rank=node,
        step=position.step,
        phase=position.phase,
        collective=call,
        certain=node is not None and not doubt,
        evidence=(*lines, *reports),
        advice="`ping` the other nodes from each node; check the switch, the firewall and the interface's counters "
        f"(`ip -s link`)\nonce the network works again: `{case.run.folder.resume_command}`",
    )


def _cut_off(case: Case) -> tuple[int | None, list[str]]:
    """Return the node whose agent could not report that its ranks had failed; None if unclear.

    The agents meet at a store on node 0. If node 0 is cut off, only its own agent reports.
    """
    nodes = {event.node_rank for event in case.attempt.worlds}
    reported = {event.node_rank for event in case.attempt.exits}
    failed = {case.attempt.node_of(rank) for rank in case.comm_errors}
    mute = sorted(node for node in nodes - reported if node in failed)
    lines = [
        f"{'':12}  node {node}    its ranks had failed, but its agent reported nothing  [events/launcher.jsonl]"
        for node in mute
    ]
    if len(nodes) > 2 and reported == {0}:
        return 0, lines
    return (mute[0] if len(mute) == 1 else None), lines


def _closed(case: Case, calls: CollectiveCalls, closed: list[int], lines: tuple[str, ...]) -> Diagnosis:
    """Find a rank whose connections closed.

    An all-reduce runs around a ring, so the neighbors of that rank fail first, then the remaining ranks.
    """
    candidates = _center(case, closed)
    rank = candidates[0]
    first = f"{'':12}  failed first: {span(_first_of(case, closed))}, the neighbors of {span(candidates)} on the ring"
    either = "" if len(candidates) == 1 else f" ({span(candidates)} fit the evidence equally well)"
    return Diagnosis(
        "port",
        f"the connections of rank {rank} closed {case.where(rank)} while its process was alive{either}",
        **case.about(rank),
        collective=_failed(case, rank),
        certain=False,
        evidence=(*lines, first),
        advice="possible causes: a firewall that drops connections, a reset interface, too few file descriptors "
        f"(`ulimit -n`)\n`{case.run.folder.resume_command}`",
    )


def _first_of(case: Case, closed: list[int], within_ns: int = _FIRST_NS) -> list[int]:
    """Return the ranks that failed very soon after the first one."""
    first_ns = min(case.failed_ns(rank) or 0 for rank in closed)
    return [rank for rank in closed if (case.failed_ns(rank) or 0) - first_ns < within_ns]


def _center(case: Case, closed: list[int]) -> list[int]:
    """Return the ranks whose two neighbors cover all first failures, and which failed at their first transfer."""
    first, num_ranks = set(_first_of(case, closed)), len(case.ranks)
    at_once = _first_of(case, closed, _AT_ONCE_NS + 1)
    # A rank that waited until after the first failure had open connections itself: its neighbors left it.
    late = {rank for rank in closed if _waited_s(case, rank) >= _AT_ONCE_NS / 1e9 and rank not in at_once}

    def fits(rank: int) -> tuple[int, int, float]:
        around = {rank, (rank - 1) % num_ranks, (rank + 1) % num_ranks}
        return len(around & late), len(first ^ around), round(_waited_s(case, rank), 1)

    best = min(fits(rank) for rank in first)
    return sorted(rank for rank in first if fits(rank) == best)


def _waited_s(case: Case, rank: int) -> float:
    error = case.error(rank)
    return round(error.facts.waited_s or 0.0, 1) if error is not None else 0.0


def _failed(case: Case, rank: int) -> str | None:
    call = failed_call(case, rank)
    return str(call) if call is not None else None
