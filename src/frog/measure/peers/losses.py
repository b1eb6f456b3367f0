"""Judges the other ranks after a peer was killed, or a link cut or reset. A pure function of the observations."""

from __future__ import annotations

from frog.core.errors import describe_exit
from frog.measure.peers.buffers import Unreadable
from frog.measure.peers.ends import judge_ends, last_words
from frog.measure.peers.findings import Finding
from frog.measure.peers.observed import Fault, Observed
from frog.measure.peers.values import is_right


def survivors(seen: Observed) -> list[int]:
    """Return all ranks except a killed one."""
    fault = seen.plan.fault
    killed = {fault.pair[0]} if fault is not None and fault.kind == "kill" else set()
    return [rank for rank in range(seen.world) if rank not in killed]


def judge_loss(seen: Observed) -> Finding | None:
    """Check that each survivor ends in time, with a correct result, or with an error that names the lost rank."""
    fault = seen.plan.fault
    if fault is None or seen.fault_at_s is None:
        return judge_ends(seen)
    where = f"world {seen.world}: {fault}; "
    for rank in survivors(seen):
        if (finding := _survivor(seen, rank)) is not None:
            return Finding(finding.id, where + finding.observed)
    if seen.left:
        return Finding("left-over", f"{where}rank {seen.left[0]} ended and left a running process behind.")
    lost = {rank: seen.ends[rank].lost for rank in survivors(seen)}
    named = {rank: other for rank, other in lost.items() if other is not None}
    if named and not _names_it(fault, named):
        said = ", ".join(f"rank {rank} named {lost}" for rank, lost in named.items())
        return Finding("wrong-loss", f"{where}{said}.")
    return None


def _survivor(seen: Observed, rank: int) -> Finding | None:
    end = seen.ends[rank]
    fault_at_s = seen.fault_at_s or 0.0
    if end.code is None:
        text = f"{end.at_s - fault_at_s:.1f} s later rank {rank} had not ended; it was given PEER_TIMEOUT_S="
        return Finding("hangs-after-loss", f"{text}{seen.plan.timeout_s:g}.")
    result, call = seen.results[0][rank], seen.plan.calls[0]
    right = is_right(call, seen.inputs[0], result, rank)
    if end.code == 0:
        wrong = "its result is wrong" if not isinstance(result, Unreadable) else result.observed
        return None if right else Finding("wrong-after-loss", f"rank {rank} ended with exit code 0, and {wrong}.")
    if not right and not (isinstance(result, Unreadable) and result.id == "no-result"):
        text = f"rank {rank} {describe_exit(end.code)} and left an invalid result file."
        return Finding("result-before-complete", text)
    if end.lost is None:
        return Finding("loss-unnamed", f"rank {rank} {describe_exit(end.code)}, naming no rank{last_words(end)}")
    return None


def _names_it(fault: Fault, named: dict[int, int]) -> bool:
    """True if a survivor names the killed rank, or one end of the link names the other."""
    if fault.kind == "kill":
        return fault.pair[0] in named.values()
    first, second = fault.pair
    return named.get(first) == second or named.get(second) == first
