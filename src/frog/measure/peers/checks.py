"""The checks, in order: the session of each, its judgement, and the measurements of correct peers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from frog.core.units import format_bytes, format_seconds
from frog.measure.peers.calls import Call, operation_calls, result_calls
from frog.measure.peers.ends import has_no_operation, judge_ends
from frog.measure.peers.findings import Finding
from frog.measure.peers.losses import judge_loss, survivors
from frog.measure.peers.observed import Fault, Observed, Pair, Plan, Shape
from frog.measure.peers.shape import busiest, data_links, judge_connections, judge_shape, ring_bytes, shape_of
from frog.measure.peers.values import judge_values

Observe = Callable[[Plan], Observed]
"""Runs a plan, or returns the observations of an earlier run."""

_MEBI = Call("all_reduce", "float32", 1 << 18)
_LARGE = Call("all_reduce", "float32", 1 << 22)
"""16 MiB: half of it exceeds all buffers between two ranks."""
_SLOW_BYTES_PER_S, _SLOW_DELAY_S = 4e6, 0.005
_FAULT_TIMEOUT_S = 3.0
_FAULT_WORLD = 3
_PIECES_CALLS = tuple(Call("all_reduce", dtype, count) for dtype, count in (("float32", 1), ("float64", 997)))


@dataclass(frozen=True)
class Scope:
    """The selected worlds and operations."""

    worlds: tuple[int, ...]
    operations: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """The problem that a check found, or its measurements if it found none."""

    check: str
    status: Literal["passed", "rejected", "skipped"]
    measured: tuple[str, ...] = ()
    finding: Finding | None = None
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Check:
    """A check: its requirement, in one line, and its function, which returns a finding or measurements."""

    name: str
    asks: str
    make: Callable[[Observe, Scope], Finding | tuple[str, ...]]


class Skip(Exception):
    """A check does not apply, with the reason."""


def examine(
    observe: Observe,
    scope: Scope,
    only: Sequence[str],
    report: Callable[[Outcome], None],
    exit_first: bool = False,
) -> list[Outcome]:
    """Run the checks; skip those that need correct results if the results are wrong, or stop at the first rejection."""
    outcomes: list[Outcome] = []
    for check in CHECKS:
        if only and check.name not in only:
            continue
        start = time.monotonic()
        if any(outcome.check == "results" and outcome.status == "rejected" for outcome in outcomes):
            outcome = Outcome(check.name, "skipped", ("correct results first",))
        else:
            outcome = _made(check, observe, scope, start)
        report(outcome)
        outcomes.append(outcome)
        if exit_first and outcome.status == "rejected":
            break
    return outcomes


def _made(check: Check, observe: Observe, scope: Scope, start: float) -> Outcome:
    try:
        result = check.make(observe, scope)
    except Skip as why:
        return Outcome(check.name, "skipped", (str(why),), None, time.monotonic() - start)
    seconds = time.monotonic() - start
    if isinstance(result, Finding):
        return Outcome(check.name, "rejected", (), result, seconds)
    return Outcome(check.name, "passed", result, None, seconds)


# ---- plans -----------------------------------------------------------------------------------------------------------


def results_plan(world: int) -> Plan:
    """Return a plan with many all-reduces in the same processes."""
    return Plan(f"results-{world}", world, result_calls(world))


def base_plan(world: int) -> Plan:
    """Return a plan with one undisturbed all-reduce of 1 MiB."""
    return Plan(f"base-{world}", world, (_MEBI,))


# ---- the checks ------------------------------------------------------------------------------------------------------


def _results(observe: Observe, scope: Scope) -> Finding | tuple[str, ...]:
    for world in scope.worlds:
        seen = observe(results_plan(world))
        if finding := judge_ends(seen) or judge_values(seen):
            return finding
    calls = sum(len(result_calls(world)) for world in scope.worlds)
    return (f"{calls} all-reduces at world {_listed(scope.worlds)}: correct on every rank, inputs unchanged",)


def _operations(observe: Observe, scope: Scope) -> Finding | tuple[str, ...]:
    measured: list[str] = []
    for operation in scope.operations:
        if operation == "all_reduce":
            continue
        for world in scope.worlds:
            seen = observe(Plan(f"{operation}-{world}", world, operation_calls(operation, world)))
            if has_no_operation(seen):
                measured.append(f"{operation}: the peer reports that it does not support it")
                break
            if finding := judge_ends(seen) or judge_values(seen):
                return finding
        else:
            measured.append(f"{operation}: correct at world {_listed(scope.worlds)}")
    if not measured:
        raise Skip("no other operation was requested")
    return tuple(measured)


def _connections(observe: Observe, scope: Scope) -> Finding | tuple[str, ...]:
    seen = observe(results_plan(max(scope.worlds)))
    if finding := judge_ends(seen) or judge_connections(seen):
        return finding
    return (f"{sum(seen.connections.values())} connections at world {seen.world} for {len(seen.plan.calls)} calls",)


def _ring(observe: Observe, scope: Scope) -> Finding | tuple[str, ...]:
    if max(scope.worlds) < 3:
        raise Skip("a world of 2 has one link, and every shape looks the same")
    seen = observe(base_plan(max(scope.worlds)))
    if finding := judge_ends(seen) or judge_shape(seen):
        return finding
    payload = seen.plan.calls[0].payload_bytes
    _, most = busiest(seen.sent)
    ring = ring_bytes(seen.world, payload)
    more = 100 * (most / ring - 1)
    _, name = shape_of(data_links(seen.sent, payload), seen.world)
    return (
        name,
        f"the busiest rank moved {most:,} bytes; 2(n-1)/n x {payload:,} is {ring:,.0f} ({more:+.2f} %)",
    )


def _large(observe: Observe, scope: Scope) -> Finding | tuple[str, ...]:
    seen = observe(Plan("large", 2, (_LARGE,)))
    finding = judge_ends(seen) or judge_values(seen)
    if finding is not None and finding.id == "never-ends":
        return Finding("deadlock", f"{format_bytes(_LARGE.payload_bytes)}, {finding.observed}")
    return finding or (f"{format_bytes(_LARGE.payload_bytes)} at world 2 in {format_seconds(seen.moved_s)}",)


def _short_reads(observe: Observe, scope: Scope) -> Finding | tuple[str, ...]:
    world = max(scope.worlds)
    shapes = {(i, j): Shape(in_pieces=True) for i in range(world) for j in range(world) if i != j}
    seen = observe(Plan("short-reads", world, _PIECES_CALLS, shapes))
    if finding := judge_ends(seen) or judge_values(seen):
        text = "Every link delivered 1 to 1021 bytes at a time. " + finding.observed
        return Finding("short-read", text)
    return (f"{sum(seen.sent.values()):,} bytes in pieces of 1 to 1021 bytes",)


def _slow_link(observe: Observe, scope: Scope) -> Finding | tuple[str, ...]:
    world = max(scope.worlds)
    slow = _busiest_link(observe, world)
    plan = Plan("slow-link", world, (_MEBI,), {slow: Shape(_SLOW_BYTES_PER_S, _SLOW_DELAY_S)})
    seen = observe(plan)
    if finding := judge_ends(seen) or judge_values(seen):
        return finding
    ring_s = 2 * (world - 1) * _SLOW_DELAY_S + ring_bytes(world, _MEBI.payload_bytes) / _SLOW_BYTES_PER_S
    return (
        f"{slow[0]} → {slow[1]} at {_SLOW_BYTES_PER_S / 1e6:g} MB/s and {1e3 * _SLOW_DELAY_S:g} ms: correct, in "
        f"{format_seconds(seen.moved_s)}; a ring's 2(n-1) alpha + 2(n-1)/n B/beta is {format_seconds(ring_s)}",
    )


def _killed_peer(observe: Observe, scope: Scope) -> Finding | tuple[str, ...]:
    world = min(_FAULT_WORLD, max(scope.worlds))
    base = _undisturbed(observe, world)
    rank = world - 1
    all_bytes = sum(count for (i, _), count in base.sent.items() if i == rank)
    faults = [Fault("kill", (rank, rank), after) for after in (all_bytes // 3, all_bytes - 1)]
    return _under_faults(observe, world, faults)


def _reset_link(observe: Observe, scope: Scope) -> Finding | tuple[str, ...]:
    world = min(_FAULT_WORLD, max(scope.worlds))
    link = _busiest_link(observe, world)
    return _under_faults(observe, world, [Fault("reset", link, _undisturbed(observe, world).sent[link] // 2)])


def _cut_link(observe: Observe, scope: Scope) -> Finding | tuple[str, ...]:
    world = min(_FAULT_WORLD, max(scope.worlds))
    link = _busiest_link(observe, world)
    return _under_faults(observe, world, [Fault("cut", link, _undisturbed(observe, world).sent[link] // 2)])


def _listed(worlds: Sequence[int]) -> str:
    """Format as `2, 3 and 4`."""
    return " and ".join(filter(None, [", ".join(map(str, worlds[:-1])), str(worlds[-1])]))


def _undisturbed(observe: Observe, world: int) -> Observed:
    """Run the undisturbed all-reduce, which shows the bytes on each link. Skip if its result is wrong."""
    seen = observe(base_plan(world))
    if judge_ends(seen) or judge_values(seen) or not seen.sent:
        raise Skip(f"an undisturbed all-reduce at world {world} is not correct yet")
    return seen


def _busiest_link(observe: Observe, world: int) -> Pair:
    sent = _undisturbed(observe, world).sent
    return max(sorted(sent), key=lambda pair: sent[pair])


def _under_faults(observe: Observe, world: int, faults: Sequence[Fault]) -> Finding | tuple[str, ...]:
    """Run one session per fault."""
    measured = []
    for number, fault in enumerate(faults):
        seen = observe(Plan(f"{fault.kind}-{number}", world, (_MEBI,), fault=fault, timeout_s=_FAULT_TIMEOUT_S))
        if finding := judge_loss(seen):
            return finding
        measured.append(_how_it_went(seen, fault))
    return tuple(measured)


def _how_it_went(seen: Observed, fault: Fault) -> str:
    if seen.fault_at_s is None:
        return f"fewer than {fault.after_bytes:,} bytes used this link: no fault occurred"
    last = max(seen.ends[rank].at_s for rank in survivors(seen)) - seen.fault_at_s
    named = [f"rank {rank} lost {end.lost}" for rank, end in enumerate(seen.ends) if end.lost is not None]
    whole = [str(rank) for rank in survivors(seen) if seen.ends[rank].code == 0]
    right = f"rank {', '.join(whole)} had a correct result" if whole else ""
    ended = f"all had ended {format_seconds(last)} later"
    return f"{fault}; {ended}: " + ", ".join(filter(None, [right, *named]))


CHECKS = (
    Check("results", "sums are correct: exact ones bit for bit, others equal on all ranks", _results),
    Check("operations", "the other operations are correct too", _operations),
    Check("connections", "connections are made once, not for each call", _connections),
    Check("ring", "the busiest rank moves no more than in a ring", _ring),
    Check("large", "a large buffer works like a small one", _large),
    Check("short-reads", "bytes may arrive one at a time", _short_reads),
    Check("slow-link", "a slow link makes the result late, not wrong", _slow_link),
    Check("killed-peer", "a peer dies midway: the others end, and name it", _killed_peer),
    Check("reset-link", "a link is reset midway", _reset_link),
    Check("cut-link", "a link falls silent: the others end after PEER_TIMEOUT_S", _cut_link),
)
