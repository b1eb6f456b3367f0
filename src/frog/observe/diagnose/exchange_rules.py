"""Rules about slow links: collectives and messages between nodes that take much of each step though no rank is late.

The time of a collective begins when its last rank has come. A message between the stages of a pipeline has no record of
its other rank: it is the message with the same number of the next stage, or of the one before in a backward pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from frog.core.runs.event_schema import CollectiveEvent, SpanEvent
from frog.core.runs.vocabulary import BETWEEN_TWO, STEP_PHASES
from frog.observe.diagnose.case import Case
from frog.observe.diagnose.collectives import CollectiveCalls
from frog.observe.diagnose.diagnosis import Diagnosis

_LEAST_SHARE = 0.15
"""Share of the steps that communication between nodes must take."""
_LEAST_SHARE_SIMULATED, _LEAST_SHARE_OF_SLOW = 0.05, 0.03
"""The same in a simulation, without other noise, and of links that are slower than others of the run."""
_SLOWER = 1.5
"""Ratio of the times of slow links and of others, for the same collective."""

Kind = tuple[str, str, int, int]
"""Operation, axis, payload in bytes, number of ranks."""


@dataclass(frozen=True)
class Exchange:
    """A collective or message between nodes."""

    kind: Kind
    nodes: frozenset[int]
    step: int
    transfer_s: float
    """From when its last rank had come and the one before had ended, to its end."""
    waited_s: float
    """What its ranks waited in that time, together."""


def slow_exchanges(case: Case, calls: CollectiveCalls) -> tuple[Diagnosis, float] | None:
    """Find collectives and messages between nodes that take a large part of each step; also return that share."""
    steps_s = _steps_s(case)
    measured = [exchange for exchange in _exchanges(case, calls) if exchange.step in steps_s]
    waited_s: dict[int, float] = defaultdict(float)
    for exchange in measured:
        waited_s[exchange.step] += exchange.waited_s
    if not waited_s:
        return None
    share = median(waited_s[step] / seconds for step, seconds in steps_s.items())
    slow = _slow_nodes(measured)
    least = _LEAST_SHARE_SIMULATED if case.run.is_simulated else _LEAST_SHARE
    if share < (_LEAST_SHARE_OF_SLOW if slow is not None else least):
        return None
    by_kind: dict[Kind, list[Exchange]] = defaultdict(list)
    for exchange in measured:
        by_kind[exchange.kind].append(exchange)
    total_s = {kind: sum(exchange.waited_s for exchange in exchanges) for kind, exchanges in by_kind.items()}
    lines = [
        _line(kind, exchanges) for kind, exchanges in by_kind.items() if total_s[kind] > 0.02 * sum(total_s.values())
    ]
    longest = max(total_s, key=lambda kind: total_s[kind])
    what = f"communication between nodes takes {share:.0%} of each step, though no rank is late for it"
    cause = f"{what}: the network limits the run"
    if slow is not None:
        nodes, times = slow
        where = f"node {nodes[0]}" if len(nodes) == 1 else "nodes " + " and ".join(map(str, nodes))
        cause = f"the network of {where} is slow: it takes {times:.1f} times as long as that of the other nodes; {what}"
    diagnosis = Diagnosis(
        "slow",
        cause,
        node_rank=slow[0][0] if slow is not None and len(slow[0]) == 1 else None,
        step=min(steps_s),
        collective=_words(longest),
        certain=slow is not None and len(slow[0]) == 1,
        evidence=tuple(lines),
        advice="measure the links (nccl-tests between pairs of nodes, `ib_write_bw`, `ip -s link`); communicate less "
        "between nodes: larger micro-batches or more of them, a strategy with less traffic (`frog strategies`)",
    )
    return diagnosis, share


def _steps_s(case: Case) -> dict[int, float]:
    """Return the time of each training step, summed over its ranks."""
    times: dict[int, float] = defaultdict(float)
    for worker in case.attempt.workers.values():
        for step, (start, end) in _bounds(case, worker.rank).items():
            times[step] += (end - start) / 1e9
    return times


def _bounds(case: Case, rank: int) -> dict[int, tuple[int, int]]:
    """Return when each training step of a rank began and ended, without evaluations and checkpoints."""
    bounds: dict[int, tuple[int, int]] = {}
    for span in case.attempt.workers[rank].of(SpanEvent):
        if span.phase in STEP_PHASES:
            start, end = bounds.get(span.step, (span.start_ns, span.end_ns))
            bounds[span.step] = min(start, span.start_ns), max(end, span.end_ns)
    return bounds


@dataclass(frozen=True)
class _Call:
    """A rank's part in an exchange, in nanoseconds of the time of day."""

    start_ns: int
    end_ns: int
    wait_ns: int


def _exchanges(case: Case, calls: CollectiveCalls) -> Iterator[Exchange]:
    """Yield all exchanges between nodes of which every rank's part was recorded."""
    own = {rank: _calls_of(case, rank) for rank in case.ranks if rank in case.attempt.workers}
    axes = sorted({key[1] for of_rank in own.values() for key in of_rank})
    for axis in axes:
        for ranks in calls.sets_of(axis):
            nodes = _nodes(case, ranks)
            if len(nodes) > 1 and all(rank in own for rank in ranks):
                yield from _collectives(axis, ranks, nodes, own)
    yield from _messages(case, calls)


_Key = tuple[str, str, int, int]
"""Operation, axis, step, and the number of the call among those of that step."""


def _calls_of(case: Case, rank: int) -> dict[_Key, tuple[int, _Call]]:
    """Return the payload and times of a rank's collectives."""
    count: dict[tuple[str, str, int], int] = defaultdict(int)
    by_key = {}
    worker = case.attempt.workers[rank]
    for event in sorted(worker.of(CollectiveEvent), key=lambda event: event.seq):
        if event.op not in BETWEEN_TWO:
            number = count[event.op, event.axis, event.step]
            count[event.op, event.axis, event.step] += 1
            by_key[event.op, event.axis, event.step, number] = event.payload_bytes, _call(case, rank, event)
    return by_key


def _call(case: Case, rank: int, event: CollectiveEvent) -> _Call:
    start = case.attempt.workers[rank].start
    offset_ns = start.unix_ns - start.mono_ns if start is not None else 0
    return _Call(event.start_ns + offset_ns, event.end_ns + offset_ns, event.wait_ns)


def _collectives(
    axis: str, ranks: list[int], nodes: frozenset[int], own: Mapping[int, Mapping[_Key, tuple[int, _Call]]]
) -> Iterator[Exchange]:
    complete = []
    for key in (key for key in own[ranks[0]] if key[1] == axis):
        parts = [own[rank][key] for rank in ranks if key in own[rank]]
        if len(parts) == len(ranks):
            calls = [call for _, call in parts]
            ends_ns = max(call.end_ns for call in calls)
            complete.append((ends_ns, key[2], (key[0], axis, parts[0][0], len(ranks)), calls))
    before_ns = 0
    for ends_ns, step, kind, calls in sorted(complete):
        ready_ns = max(call.start_ns for call in calls)
        waited_ns = sum(max(0, min(call.wait_ns, call.end_ns - ready_ns)) for call in calls)
        yield Exchange(kind, nodes, step, (ends_ns - max(ready_ns, before_ns)) / 1e9, waited_ns / 1e9)
        before_ns = ends_ns


def _messages(case: Case, calls: CollectiveCalls) -> Iterator[Exchange]:
    """Yield the messages between neighboring stages on different nodes; a receiver waits for its sender, too."""
    sent: dict[tuple[int, int, int], list[CollectiveEvent]] = defaultdict(list)
    received: dict[tuple[int, int, int], list[CollectiveEvent]] = defaultdict(list)
    stages = [sorted(ranks) for ranks in calls.sets_of("pp")]
    neighbors = {rank: (ranks[index - 1], ranks[(index + 1) % len(ranks)]) for ranks in stages
                 for index, rank in enumerate(ranks)}  # fmt: skip
    for rank, (before, after) in neighbors.items():
        phases = {call.seq: call.phase for call in calls.of(rank)}
        worker = case.attempt.workers.get(rank)
        for event in sorted(worker.of(CollectiveEvent), key=lambda event: event.seq) if worker is not None else []:
            if event.op not in BETWEEN_TWO or (phase := phases.get(event.seq)) not in ("forward", "backward"):
                continue
            if event.op == "send":
                sent[rank, after if phase == "forward" else before, event.step].append(event)
            else:
                received[before if phase == "forward" else after, rank, event.step].append(event)
    for (source, target, step), sends in sent.items():
        nodes, recvs = _nodes(case, [source, target]), received[source, target, step]
        if len(nodes) > 1 and len(sends) == len(recvs):
            before_ns = 0
            for send, recv in zip(sends, recvs, strict=True):
                own, other = _call(case, source, send), _call(case, target, recv)
                waited_ns = own.wait_ns + max(0, min(other.wait_ns, other.end_ns - max(own.start_ns, other.start_ns)))
                transfer_ns = own.end_ns - max(own.start_ns, before_ns)
                kind = ("send", send.axis, send.payload_bytes, 2)
                yield Exchange(kind, nodes, step, transfer_ns / 1e9, waited_ns / 1e9)
                before_ns = own.end_ns


def _nodes(case: Case, ranks: list[int]) -> frozenset[int]:
    return frozenset(node for rank in ranks if (node := case.attempt.node_of(rank)) is not None)


def _slow_nodes(exchanges: list[Exchange]) -> tuple[list[int], float] | None:
    """Return the nodes that all slow exchanges have in common and no other has, and how much slower those are."""
    times: dict[Kind, dict[frozenset[int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for exchange in exchanges:
        times[exchange.kind][exchange.nodes].append(exchange.transfer_s)
    slow: list[frozenset[int]] = []
    fast: set[int] = set()
    ratios = []
    for by_nodes in times.values():
        medians = {nodes: median(seconds) for nodes, seconds in by_nodes.items()}
        usual_s = min(medians.values())
        slower = [nodes for nodes, seconds in medians.items() if seconds > max(_SLOWER * usual_s, 1e-6)]
        if usual_s > 0 and slower:
            slow += slower
            ratios += [medians[nodes] / usual_s for nodes in slower]
            fast |= {node for nodes in medians if nodes not in slower for node in nodes}
    suspects = sorted(frozenset.intersection(*slow) - fast) if slow else []
    return (suspects, max(ratios)) if suspects else None


def _words(kind: Kind) -> str:
    op, axis, payload_bytes, _ = kind
    return f"{op} of {payload_bytes} bytes over {axis}"


def _line(kind: Kind, exchanges: list[Exchange]) -> str:
    per_step = len(exchanges) / len({exchange.step for exchange in exchanges})
    by_nodes: dict[frozenset[int], list[float]] = defaultdict(list)
    for exchange in exchanges:
        by_nodes[exchange.nodes].append(exchange.transfer_s)
    longest = max(by_nodes, key=lambda nodes: median(by_nodes[nodes]))
    seconds = median(by_nodes[longest])
    rate = f", {kind[2] / seconds / 1e9:.3g} GB/s of payload" if seconds > 0 else ""
    where = " and ".join(map(str, sorted(longest))) if len(longest) < 5 else f"{len(longest)} of them"
    return (
        f"{'':12}  {_words(kind)}: takes {1e3 * seconds:.3g} ms between nodes {where}{rate}; "
        f"{per_step:.0f} in each step  [events/]"
    )
