"""Timing of collectives on every rank of a world, with alternating contenders. `frog collectives bench` starts this.

    -m frog.measure.peers.peers_rank REQUEST.json RESULT.json

Each round times every contender once; the first one changes from round to round. The time of a turn is the slowest
rank's. For comparison it measures how fast all ranks together copy memory and send bytes through plain sockets.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from frog.core.env import world_env
from frog.core.files import write_json
from frog.core.processes import leave
from frog.measure.peers.limits import Around
from frog.measure.peers.measurement import Limit, Request, Result, Row, read_request
from frog.measure.peers.open_mpi import OpenMPI
from frog.train.comm import World, join_world
from frog.train.comm.backend import all_gather_single, reduce_scatter_single
from frog.train.comm.collectives.cost import Costs
from frog.train.comm.collectives.rendezvous import own_host
from frog.train.comm.process_group import FrogProcessGroup, register

_TIMEOUT_S = 120.0
_TURN_S = 0.02
"""A turn repeats a short call until it has taken about this long."""
_ROUND_S = 0.4
"""Time per size, operation and contender, for all rounds together."""
_MOST_ROUNDS = 40


class Bench:
    """A world that measures the contenders, and the machine itself."""

    def __init__(self, request: Request, world: World) -> None:
        self._request, self._world = request, world
        self._groups = {name: _group(name) for name in request.contenders}
        if request.steps:
            self._groups["tcp"].group.costs = Costs(alpha_s=1e9)
        self._around = Around(own_host(world.env.master_addr))
        places: list[Any] = [None] * world.size
        dist.all_gather_object(places, self._around.address)
        self._around.connect(places[(world.rank + 1) % world.size])

    def rows(self) -> list[Row]:
        """Measure every operation at every size with every contender."""
        rows = []
        for operation in self._request.operations:
            for num_bytes in self._request.sizes:
                calls = {
                    name: _call(operation, _elements(num_bytes, self._world.size), self._world.size, group)
                    for name, group in self._groups.items()
                }
                counted = 4 * _elements(num_bytes, self._world.size)
                medians = self._medians(calls)
                rows += [Row(operation, counted, name, time_s, rounds) for name, (time_s, rounds) in medians.items()]
        return rows

    def limits(self) -> list[Limit]:
        """Measure the speed of memory copies and of plain sockets, at every size."""
        limits = []
        for num_bytes in self._request.sizes:
            source, target = (np.ones(4 * _elements(num_bytes, self._world.size), np.uint8) for _ in range(2))
            calls = {
                "memory": functools.partial(np.copyto, target, source),
                "sockets": functools.partial(self._around.pass_on, source.data, target.data),
            }
            limits += [Limit(name, len(source), median_s) for name, (median_s, _) in self._medians(calls).items()]
        return limits

    def _medians(self, calls: Mapping[str, Callable[[], object]]) -> dict[str, tuple[float, int]]:
        """Return the median time of each call over alternating rounds, and the number of rounds."""
        first_s = {name: self._first_s(call) for name, call in calls.items()}
        repeats = {name: min(500, max(1, round(_TURN_S / one_s))) for name, one_s in first_s.items()}
        longest_s = max(first_s[name] * repeats[name] for name in calls)
        rounds = self._request.rounds or max(5, min(_MOST_ROUNDS, round(_ROUND_S / longest_s)))
        times: dict[str, list[float]] = {name: [] for name in calls}
        names = list(calls)
        for number in range(rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                times[name].append(self._turn_s(calls[name], repeats[name]))
        return {name: (statistics.median(times_s), rounds) for name, times_s in times.items()}

    def _first_s(self, call: Callable[[], object]) -> float:
        """Time a single call, to choose the number of calls per turn."""
        first_s = self._turn_s(call, 1)
        return first_s if first_s > _TURN_S else min(self._turn_s(call, 5) for _ in range(3))

    def _turn_s(self, call: Callable[[], object], repeats: int) -> float:
        """Return the seconds per call on the slowest rank."""
        self._world.barrier()
        start_ns = time.monotonic_ns()
        for _ in range(repeats):
            call()
        own = torch.tensor([(time.monotonic_ns() - start_ns) / repeats / 1e9], dtype=torch.float64)
        return float(self._world.gather_rows(own).max())

    def close(self) -> None:
        self._around.close()
        for group in self._groups.values():
            if isinstance(group, OpenMPI):
                group.close()


def _elements(num_bytes: int, size: int) -> int:
    """Return the number of elements of the whole buffer: the same number for each rank."""
    return max(1, num_bytes // 4 // size) * size


def _group(contender: str) -> Any:
    """Return torch's group for a contender, or Open MPI; tcp is frog without shared memory."""
    if contender == "mpi":
        return OpenMPI()
    if contender == "gloo":
        return dist.new_group(backend="gloo")
    FrogProcessGroup.memory = False if contender == "tcp" else None
    try:
        return dist.new_group(backend="frog")
    finally:
        FrogProcessGroup.memory = None


def _call(operation: str, num_elements: int, size: int, group: Any) -> Callable[[], object]:
    """Return a collective on a whole buffer of this many elements."""
    whole, part, other = torch.zeros(num_elements), torch.zeros(num_elements // size), torch.zeros(num_elements)
    if isinstance(group, OpenMPI):
        return group.call(operation, *(x.numpy() for x in (whole, part, other)))
    if operation == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if operation == "broadcast":
        return lambda: dist.broadcast(whole, 0, group=group)
    if operation == "all_gather":
        return lambda: all_gather_single(whole, part, group=group)
    if operation == "reduce_scatter":
        return lambda: reduce_scatter_single(part, whole, group=group)
    return lambda: dist.all_to_all_single(other, whole, group=group)


def main(arguments: list[str]) -> int:
    """Measure, and let rank 0 write the result."""
    request = read_request(Path(arguments[0]))
    torch.set_num_threads(1)
    world = join_world(world_env(), torch.device("cpu"), _TIMEOUT_S, "gloo")
    register()
    try:
        bench = Bench(request, world)
        limits = [] if request.steps else bench.limits()
        several_nodes = world.env.local_world_size < world.size
        result = Result(world.size, several_nodes, tuple(bench.rows()), tuple(limits))
        if world.is_main:
            write_json(Path(arguments[1]), asdict(result))
        world.barrier()
        bench.close()
    finally:
        world.leave()
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
