"""Collectives timed on every rank of a world, contenders in turn. `frog collectives bench` starts this.

    -m frog.gauge.rank REQUEST.json RESULT.json

In a round every contender has its turn; which one begins changes from round to round. The time of a turn is the slowest
rank's. What it is held against: how fast memory is copied while all ranks do so.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from frog.collectives.cost import Costs
from frog.comm import World, join_world
from frog.comm.process_group import FrogProcessGroup, register
from frog.core.env import world_env
from frog.core.files import write_json
from frog.core.processes import leave
from frog.gauge.measurement import Request, Row, read_request

_TIMEOUT_S = 120.0
_TURN_S = 0.02
"""A turn repeats a short call until it has taken about so long."""
_ROUND_S = 1.5
"""What one size of one operation may take of a contender, all rounds together."""
_MOST_ROUNDS = 40


def _group(contender: str) -> Any:
    """torch's group for a contender: gloo; frog as it chooses; tcp: frog without shared memory."""
    if contender == "gloo":
        return dist.new_group(backend="gloo")
    FrogProcessGroup.memory = False if contender == "tcp" else None
    try:
        return dist.new_group(backend="frog")
    finally:
        FrogProcessGroup.memory = None


def _call(operation: str, num_bytes: int, size: int, group: Any) -> tuple[Callable[[], object], int]:
    """A collective of this size, and the bytes that it counts as, as nccl-tests counts them."""
    each = max(1, num_bytes // 4 // size)
    whole, part = torch.zeros(each * size), torch.zeros(each)
    if operation == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group), whole.nbytes
    if operation == "broadcast":
        return lambda: dist.broadcast(whole, 0, group=group), whole.nbytes
    if operation == "all_gather":
        return lambda: dist.all_gather_single(whole, part, group=group), whole.nbytes
    if operation == "reduce_scatter":
        return lambda: dist.reduce_scatter_single(part, whole, group=group), whole.nbytes
    other = torch.empty_like(whole)
    return lambda: dist.all_to_all_single(other, whole, group=group), whole.nbytes


def _turn_s(call: Callable[[], object], repeats: int, world: World) -> float:
    """Seconds a call takes on the slowest rank."""
    world.barrier()
    start_ns = time.monotonic_ns()
    for _ in range(repeats):
        call()
    own = torch.tensor([(time.monotonic_ns() - start_ns) / repeats / 1e9], dtype=torch.float64)
    return float(world.gather_rows(own).max())


def measure(request: Request, world: World) -> list[Row]:
    """Every operation at every size by every contender."""
    groups = {name: _group(name) for name in request.contenders}
    if request.steps:
        groups["tcp"].group.costs = Costs(alpha_s=1e9)
    rows = []
    for operation in request.operations:
        for num_bytes in request.sizes:
            calls = {name: _call(operation, num_bytes, world.size, group) for name, group in groups.items()}
            first_s = {name: min(_turn_s(call, 5, world) for _ in range(3)) for name, (call, _) in calls.items()}
            repeats = {name: min(500, max(1, round(_TURN_S / one_s))) for name, one_s in first_s.items()}
            longest_s = max(first_s[name] * repeats[name] for name in calls)
            rounds = request.rounds or max(5, min(_MOST_ROUNDS, round(_ROUND_S / longest_s)))
            times: dict[str, list[float]] = {name: [] for name in calls}
            names = list(calls)
            for number in range(rounds):
                first = number % len(names)
                for name in names[first:] + names[:first]:
                    times[name].append(_turn_s(calls[name][0], repeats[name], world))
            rows += [
                Row(operation, calls[name][1], name, statistics.median(found), rounds) for name, found in times.items()
            ]
    return rows


def copy_bytes_per_s(world: World, num_bytes: int = 64 << 20) -> float:
    """How fast one rank copies memory while all do: a limit to what goes through memory."""
    source, target = torch.zeros(num_bytes // 4), torch.zeros(num_bytes // 4)
    return num_bytes / statistics.median(_turn_s(lambda: target.copy_(source), 1, world) for _ in range(9))


def main(arguments: list[str]) -> int:
    """Measure, and let rank 0 write down what came out."""
    request = read_request(Path(arguments[0]))
    torch.set_num_threads(1)
    world = join_world(world_env(), torch.device("cpu"), _TIMEOUT_S, "gloo")
    register()
    try:
        rows = measure(request, world)
        copied = copy_bytes_per_s(world)
        if world.is_main:
            write_json(Path(arguments[1]), {"copy_bytes_per_s": copied, "rows": [vars(row) for row in rows]})
        world.barrier()
    finally:
        world.leave()
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
