"""`frog collectives tune`: measure and save the latency and bandwidth between two ranks."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from frog.core.errors import UsageError
from frog.core.units import format_bytes
from frog.launch.launch_commands import read_world
from frog.launch.world import run_world
from frog.measure.peers.measurement import Request, Row
from frog.train.comm.collectives.cost import Costs, save_costs

_SIZES = tuple(64 << (2 * power) for power in range(8))
"""64 bytes to 1 MiB."""


def add_s_per_byte(num_bytes: int = 1 << 20) -> float:
    """Measure the time per byte of a float32 addition in the cache."""
    x, y = np.zeros(num_bytes // 4, np.float32), np.zeros(num_bytes // 4, np.float32)
    times_s = []
    for _ in range(30):
        begin_s = time.perf_counter()
        np.add(x, y, out=x)
        times_s.append(time.perf_counter() - begin_s)
    return statistics.median(times_s) / num_bytes


def tune(args: argparse.Namespace) -> int:
    """Start two ranks, time single steps between them, and save the line fitted to the times."""
    nodes, options = read_world(args)
    if nodes.most * nodes.ranks != 2:
        raise UsageError("latency and bandwidth are measured between two ranks", "--nproc 2, or --nodes 2x1")
    with tempfile.TemporaryDirectory(prefix="frog-tune-") as scratch:
        asked, answer = Path(scratch) / "request.json", Path(scratch) / "result.json"
        Request(("all_reduce",), _SIZES, ("tcp",), args.rounds, steps=True).write(asked)
        if code := run_world(nodes, ["collectives", str(asked), str(answer)], options):
            return code
        rows = [Row(**row) for row in json.loads(answer.read_text())["rows"]]
    costs = Costs.fit([row.num_bytes for row in rows], [row.time_s for row in rows], add_s_per_byte())
    print("one step between two ranks over TCP: measured, and according to the fitted line")
    for row in rows:
        line_us = costs.doubling_s(row.num_bytes, 2) * 1e6
        print(f"  {format_bytes(row.num_bytes):>10}{row.time_s * 1e6:>10.1f} us{line_us:>10.1f} us")
    print(
        f"alpha {costs.alpha_s * 1e6:.1f} us, beta for {1e-9 / costs.beta_s_per_byte:.2f} GB/s, "
        f"gamma for {1e-9 / costs.gamma_s_per_byte:.2f} GB/s"
    )
    for num_ranks in (2, 4, 8):
        least = next((size for size in range(1 << 10, 1 << 26, 1 << 10) if costs.takes_ring(size, num_ranks)), None)
        print(f"  {num_ranks} ranks: the ring from {format_bytes(least) if least else 'nowhere'} on")
    print(f"saved in {save_costs(costs)}")
    return 0
