"""The measured runs nearest to a planned one: how far off their predictions were, and whether the plan is beyond them.

measured.csv has the errors of published runs with constants that were fitted without their source
(`benchmarks/planner.py --nearest`).
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from frog.plan.estimate.rows import PlannedRun

_NEAREST = 10
_BEYOND = 2.0
"""Factor beyond the largest measured run up to which a plan counts as validated."""
WIDER = 0.1
"""Growth of the range for each doubling of distance to the nearest measured run."""


@dataclass(frozen=True)
class MeasuredRun:
    """A published run and the logarithm of its predicted over its measured time."""

    source: str
    gpu: str
    num_gpus: float
    parameters: float
    seq_len: float
    micro_tokens: float
    network: float
    """Gbit/s of a GPU to the network; 0 if the run needs none."""
    experts: float
    pp: float
    zero: float
    program: str
    error: float


def features_of(run: PlannedRun) -> dict[str, float]:
    """Return the numbers by which runs are near or far."""
    layout, cluster = run.layout, run.cluster
    return {
        "num_gpus": layout.num_gpus,
        "parameters": run.model.num_parameters(),
        "seq_len": layout.seq_len,
        "micro_tokens": layout.tokens / layout.tp,
        "network": cluster.network_bandwidth_per_gpu * 8 / 1e9 if layout.num_gpus > cluster.nvlink_domain else 0.0,
        "experts": run.model.experts,
        "pp": layout.pp,
        "zero": layout.zero,
    }


@functools.cache
def measured_runs() -> tuple[MeasuredRun, ...]:
    text = files("frog.plan.estimate").joinpath("measured.csv").read_text()
    _, *rows = csv.reader(text.splitlines())
    runs = []
    for source, gpu, *numbers, program, error in rows:
        sizes = dict(zip(_NUMBERS, map(float, numbers), strict=True))
        runs.append(MeasuredRun(source, gpu, **sizes, program=program, error=float(error)))
    return tuple(runs)


def nearest_runs(run: PlannedRun, among: Sequence[MeasuredRun] = ()) -> list[tuple[float, MeasuredRun]]:
    """Return the nearest measured runs, or the nearest of some, with their distance in doublings.

    Another GPU, a mixture, and FSDP or not count as two; a pipeline or not, a network or none, and another program as
    one.
    """
    sizes, program = features_of(run), _FAMILIES.get(run.program, run.program)

    def distance(other: MeasuredRun) -> float:
        squares = [_doublings(sizes[name], getattr(other, name)) ** 2 for name in _SIZES]
        networks = sizes["network"], other.network
        squares.append(_doublings(*networks) ** 2 if all(networks) else float(any(networks)))
        kinds = other.gpu != run.cluster.gpu.name, bool(other.experts) != bool(sizes["experts"])
        far = (*kinds, (other.zero == 3) != (sizes["zero"] == 3))
        near = (other.pp > 1) != (sizes["pp"] > 1), other.program != program
        return math.sqrt(sum(squares) + 4 * sum(far) + sum(near))

    by_distance = sorted(((distance(other), other) for other in among or measured_runs()), key=lambda pair: pair[0])
    return by_distance[:_NEAREST]


_SIZES = ("num_gpus", "parameters", "seq_len", "micro_tokens")
_NUMBERS = (*_SIZES, "network", "experts", "pp", "zero")


_FAMILIES = {
    "megatron-core": "megatron-bridge",
    "deepspeed": "megatron-deepspeed",
    **dict.fromkeys(("transformers", "accelerate", "fms-fsdp"), "llm-foundry"),
}
"""The measured program that is most like another one."""


def _doublings(one: float, other: float) -> float:
    return math.log2(max(one, 1e-9) / max(other, 1e-9))


def spread_of_nearest(run: PlannedRun, among: Sequence[MeasuredRun] = ()) -> float:
    """Return the error that nine of ten of the nearest measured runs do not exceed, more for runs far from them."""
    return typical_error(run, among) * (1 + WIDER * nearest_runs(run, among)[0][0])


def typical_error(run: PlannedRun, among: Sequence[MeasuredRun] = ()) -> float:
    """Return the relative error that nine of ten of the nearest measured runs do not exceed."""
    errors = sorted(abs(other.error) for _, other in nearest_runs(run, among))
    return math.expm1(errors[round(0.9 * (len(errors) - 1))])


def beyond_measured(run: PlannedRun) -> list[str]:
    """Return how the run exceeds what was measured; empty inside of the validated range."""
    sizes = features_of(run)
    words = {"num_gpus": "GPUs", "parameters": "parameters", "seq_len": "tokens in a sequence"}
    excesses = []
    for name, what in words.items():
        values = [getattr(other, name) for other in measured_runs()]
        if sizes[name] > _BEYOND * max(values):
            excesses.append(f"{sizes[name]:,.0f} {what}: the largest measured run has {max(values):,.0f}")
        elif sizes[name] < min(values) / _BEYOND:
            excesses.append(f"{sizes[name]:,.0f} {what}: the smallest measured run has {min(values):,.0f}")
    if run.cluster.gpu.name == "CPU":
        excesses.append("CPU: no run on one is among the measured ones")
    return excesses
