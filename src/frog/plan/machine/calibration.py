"""The profile of this machine, as a cluster file: measured numbers, with what they are and when they were measured."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from frog.core.machine import machine_bytes
from frog.plan.machine.costs import Curve, Machine, WorldCosts
from frog.plan.machine.profile import machine_lines, rate_text
from frog.plan.machine.request import Request
from frog.plan.machine.world import fit_machine, measure_worlds, product_rates

_CPUINFO = Path("/proc/cpuinfo")

_BUSY = 0.75
"""Load for each core above which a calibration is not to be trusted."""


@dataclass(frozen=True)
class Calibration:
    """What was measured, and the costs that follow."""

    measured: Sequence[Mapping[str, Any]]
    machine: Machine
    source: str
    cores: float = 1.0
    load: float = 0.0
    """Mean number of programs that used a core just before."""

    @property
    def text(self) -> str:
        """Return the cluster file."""
        return "\n".join([*_cluster_lines(self), "", *machine_lines(self.machine)]) + "\n"


def calibrate(request: Request) -> Calibration:
    """Measure this machine.

    Raises:  RunError if a rank fails.
    """
    load = os.getloadavg()[0]
    measured = measure_worlds(request)
    threads = " or ".join(str(count) for count in sorted({threads for _, threads in request.worlds}))
    plural = "s" if threads != "1" else ""
    day = datetime.now(UTC).date()
    where = f"{processor()}, {request.cores:g} cores, load {load:.1f} before"
    source = f"measured on {day}, {where}, {threads} thread{plural} per rank"
    return Calibration(measured, fit_machine(measured, request.cores), source, request.cores, load)


def processor() -> str:
    """Return the processor's name and, on Linux, its family and model, since processors of one name differ."""
    text = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    facts = dict(re.findall(r"^(model name|cpu family|model)\s*: (.+)$", text, re.MULTILINE))
    name = facts.pop("model name", platform.processor() or platform.machine())
    words = " ".join([name, *(f"{key.removeprefix('cpu ')} {number}" for key, number in facts.items())])
    return re.sub(r'[^ -~]|["\\]', "", words)


def _cluster_lines(calibration: Calibration) -> Iterator[str]:
    """Yield the keys that every cluster file has: one rank counts as a GPU, this machine as a node."""
    machine = calibration.machine
    size = max((ranks for ranks, costs in machine.worlds.items() if ranks * costs.threads <= machine.cores), default=1)
    costs = machine.nearest(size)
    world = next(measured for measured in calibration.measured if measured["world_size"] == size)
    rates = {name: product_rates(world, name) for name in ("bf16", "fp32")}
    best = max((rates["bf16"] or rates["fp32"]).values())
    ring = rate_text(link_rate(_ring(machine, size)), "B/s")
    yield "# Written by frog plan calibrate. Use it with: frog plan RUN.toml --cluster THIS_FILE"
    yield f'source = "{calibration.source}"'
    yield f"gpus_per_node = {size}  # ranks"
    yield f"nvlink_domain = {size}"
    yield f'network = {{ value = "{ring}", source = "assumed: as between processes of this machine" }}'
    yield from ("", "[gpu]  # a rank")
    memory = rate_text(machine_bytes() / size, "B")
    yield f'memory = {{ value = "{memory}", source = "measured: the machine\'s, divided by the ranks" }}'
    yield f'memory_bandwidth = {{ value = "{rate_text(1 / costs.memory_s, "B/s")}", source = "measured" }}'
    yield f'link_bandwidth = {{ value = "{ring}", source = "measured: all-reduce between processes" }}'
    yield f'num_sms = {{ value = {costs.threads}, source = "threads of a rank" }}'
    yield 'power = { value = "65 W", source = "assumed" }'
    yield f'peak_bf16 = {{ value = "{rate_text(best, "FLOP/s")}", source = "measured: {_products(rates)}" }}'
    yield f'sustained_bf16 = {{ value = "{rate_text(best, "FLOP/s")}", source = "measured: the same" }}'
    for key in ("attention", "attention_fused"):
        yield f'{key} = {{ value = "{rate_text(best / 2, "FLOP/s")}", source = "assumed: half of the products" }}'


def _products(rates: Mapping[str, Mapping[int, float]]) -> str:
    """Describe the measured products: `fp32 GFLOP/s by width 128: 48, 256: 87`."""
    return "; ".join(
        f"{name} GFLOP/s by width {', '.join(f'{width}: {rate / 1e9:.0f}' for width, rate in rate_by_width.items())}"
        for name, rate_by_width in rates.items()
        if rate_by_width
    )


def _ring(machine: Machine, size: int) -> Curve:
    return machine.worlds[max(size, min(ranks for ranks in machine.worlds if ranks > 1))].links["all_reduce"]


def link_rate(curve: Curve) -> float:
    """Return the bytes of payload per second of the largest measured message."""
    num_bytes, seconds = curve.points[-1]
    return num_bytes / seconds


def summary_lines(calibration: Calibration) -> Iterator[str]:
    """Yield what was measured, a column for each world."""
    worlds = calibration.machine.worlds
    yield calibration.source
    yield f"{'ranks at once':<34}" + "".join(f"{size:>10}" for size in worlds)
    rows = {
        f"products of {precision}, GFLOP/s": [
            max(product_rates(measured, precision).values()) / 1e9 for measured in calibration.measured
        ]
        for precision in ("fp32", "bf16")
        if product_rates(calibration.measured[0], precision)
    }
    rows["memory, GB/s"] = [1e-9 / costs.memory_s for costs in worlds.values()]
    rows["launch of an operation, us"] = [costs.launch_s * 1e6 for costs in worlds.values()]
    rows["optimizer, large, GB/s"] = [link_rate(costs.optimizer) / 1e9 for costs in worlds.values()]
    for op in max(worlds.values(), key=lambda costs: len(costs.links)).links:
        rows[f"{op}, alpha, us"] = [_alpha_us(costs, op) for costs in worlds.values()]
        rows[f"{op}, beta, GB/s"] = [_beta(costs, op) for costs in worlds.values()]
    for name, values in rows.items():
        yield f"  {name:<32}" + "".join(f"{value:>10.3g}" if value else f"{'-':>10}" for value in values)
    samples = [sample for world in calibration.measured for sample in world["samples"]]
    if late := sum(sample.get("late", False) for sample in samples):
        yield (
            f"note: {late} of {len(samples)} operations differed by more than 5 % between two rounds, and there was no "
            "time for a third one"
        )
    if calibration.load > _BUSY * calibration.cores:
        yield (
            f"note: other programs used the cores (load {calibration.load:.1f} on {calibration.cores:g}): collectives "
            "seem slower than they are; measure again on an idle machine"
        )


def _alpha_us(costs: WorldCosts, op: str) -> float:
    return costs.links[op].points[0][1] * 1e6 if op in costs.links else 0.0


def _beta(costs: WorldCosts, op: str) -> float:
    return link_rate(costs.links[op]) / 1e9 if op in costs.links else 0.0
