"""From a step to a whole training: days, GPU-hours, energy, money, checkpoints and failures.

Sources: Young 1974, A first order approximation to the optimum checkpoint interval; Daly 2006, A higher order estimate
of the optimum checkpoint interval for restart dumps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from frog.plan.estimate.hardware import Cluster
from frog.plan.estimate.step_time import StepModel
from frog.plan.layout import Layout

CHECKPOINT_BYTES = 12
"""Size of the weight and two moments in float32 of one parameter."""
RESTART_S = 600.0
"""Assumed: notice the failure, replace the node, start the program. Loading takes as long as writing."""


@dataclass(frozen=True)
class Checkpoints:
    """What a synchronous checkpoint costs and, if the profile has a failure rate, how often to write one."""

    num_bytes: float
    write_s: float
    failure_s: float | None = None
    """Mean time between failures of all nodes together."""
    young_s: float | None = None
    daly_s: float | None = None
    slowdown: float = 1.0
    """Expected time of the training with checkpoints at Daly's interval and failures, of the time without both."""


@dataclass(frozen=True)
class Budget:
    """A training of a number of tokens. What the cluster's profile does not give is None."""

    tokens: float
    steps: int
    compute_s: float
    """Time of all steps."""
    wall_s: float
    """The same with checkpoints and failures, as far as they are known."""
    gpu_hours: float
    energy_wh: float
    whole_nodes: bool
    """The energy is that of whole nodes, not of the GPUs alone."""
    money: float | None
    currency: str | None
    failures: float | None
    """Expected number of failures."""
    checkpoints: Checkpoints | None


def training_budget(step: StepModel, tokens: float) -> Budget:
    """Return what a training of so many tokens needs.

    Assumes: nodes draw their largest power all the time; failures are independent and as frequent as in the profile.
    """
    layout, cluster = step.layout, step.cluster
    steps = num_steps(layout, tokens)
    compute_s = steps * step.step.total
    checkpoints = checkpoint_costs(step)
    wall_s = compute_s * (checkpoints.slowdown if checkpoints else 1.0)
    hours = wall_s / 3600
    nodes = num_nodes(layout.num_gpus, cluster)
    watts = layout.num_gpus * cluster.gpu.power if cluster.node_power is None else nodes * cluster.node_power
    gpu_hours = layout.num_gpus * hours
    return Budget(
        tokens,
        steps,
        compute_s,
        wall_s,
        gpu_hours,
        watts * hours,
        cluster.node_power is not None,
        None if cluster.price is None else cluster.price.amount * gpu_hours,
        None if cluster.price is None else cluster.price.currency,
        None if cluster.node_mtbf_s is None else wall_s * nodes / cluster.node_mtbf_s,
        checkpoints,
    )


def num_steps(layout: Layout, tokens: float) -> int:
    return math.ceil(tokens / (layout.global_batch * layout.seq_len))


def num_nodes(num_gpus: int, cluster: Cluster) -> int:
    return math.ceil(num_gpus / cluster.gpus_per_node)


def checkpoint_costs(step: StepModel) -> Checkpoints | None:
    """Return what checkpoints cost; None if the profile does not say how fast a node writes."""
    cluster = step.cluster
    if cluster.storage is None:
        return None
    nodes = num_nodes(step.layout.num_gpus, cluster)
    num_bytes = float(CHECKPOINT_BYTES * step.trained_parameters)
    write_s = num_bytes / (nodes * cluster.storage)
    if cluster.node_mtbf_s is None:
        return Checkpoints(num_bytes, write_s)
    failure_s = cluster.node_mtbf_s / nodes
    daly_s = daly_interval(write_s, failure_s)
    slowdown = _slowdown(write_s, daly_s, failure_s)
    return Checkpoints(num_bytes, write_s, failure_s, young_interval(write_s, failure_s), daly_s, slowdown)


def young_interval(write_s: float, failure_s: float) -> float:
    """Return the seconds of work between checkpoints that lose least time, to first order: sqrt(2 w M).

    Source:  Young 1974.
    """
    return math.sqrt(2 * write_s * failure_s)


def daly_interval(write_s: float, failure_s: float) -> float:
    """Return the same to higher order: sqrt(2 w M) (1 + sqrt(w / 2M) / 3 + (w / 2M) / 9) - w, or M if w >= 2 M.

    Source:  Daly 2006.
    """
    if write_s >= 2 * failure_s:
        return failure_s
    ratio = write_s / (2 * failure_s)
    return young_interval(write_s, failure_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s


def _slowdown(write_s: float, interval_s: float, failure_s: float) -> float:
    """Return the expected time of work with checkpoints and failures, of the time of the work alone.

    Source:  Daly 2006: M exp(R / M) (exp((t + w) / M) - 1) / t, where R is a restart.
    """
    restart_s = RESTART_S + write_s
    exponent = min(500.0, (interval_s + write_s) / failure_s)
    return failure_s * math.exp(min(100.0, restart_s / failure_s)) * math.expm1(exponent) / interval_s
