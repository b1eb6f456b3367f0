"""Fitted constants of the model of step time. `benchmarks/planner.py` fits them; docs/plan/plan.md explains each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """Efficiencies and overheads that no data sheet gives, the same for all GPUs and programs."""

    product: float = 0.9
    """Rate of a large product in a training step, of the best that was measured alone on the GPU."""
    product_fp8: float = 0.9
    """The same for float8."""
    tile_s: float = 2e-6
    """Time to load the first and store the last part of a tile, in which its multiprocessor does no arithmetic."""
    wave_loss: float = 0.5
    """Waves of tiles that a product loses, since its last wave fills only part of the GPU."""
    attention: float = 0.8
    """Rate of fused attention, of the best that was published."""
    memory: float = 0.8
    """Bandwidth of memory-bound operations, of the data sheet's."""
    launch_s: float = 50e-6
    """Time in which Python launches one kernel; it bounds small layers."""
    link: float = 0.75
    """Bandwidth of collectives inside a node, of the data sheet's."""
    network: float = 0.8
    """Bandwidth of collectives between nodes, of the data sheet's."""
    link_latency_s: float = 10e-6
    """Latency of one hop inside a node, with the start of the collective."""
    network_latency_s: float = 15e-6
    """Latency of one hop between nodes."""
    hidden: float = 0.8
    """Fraction of the backward pass that can hide the reduction of gradients."""
    hidden_tensor: float = 0.6
    """Fraction of tensor-parallel communication that an overlapping implementation hides."""
    step_s: float = 0.002
    """Fixed time of a step: the loader, the norm of the gradient, logging."""
    jitter: float = 0.005
    """Slowdown for each doubling of the number of nodes, as all wait for the slowest."""


FITTED = Constants(
    product=0.9147,
    product_fp8=0.8345,
    tile_s=1.913e-06,
    wave_loss=0.8457,
    attention=0.6519,
    memory=0.735,
    launch_s=4.712e-05,
    link=0.8116,
    network=0.6897,
    link_latency_s=1.013e-05,
    network_latency_s=1.824e-05,
    hidden=1,
    hidden_tensor=0.8048,
    step_s=0.001994,
    jitter=0.004441,
)
