"""Simulated GPUs: a program written for CUDA and NCCL runs on the CPU and gloo, unchanged.

`install` runs before the program imports torch, and replaces the functions that need a GPU as soon as torch is
imported. All tensors stay in the memory of the CPU; only their names are translated. This package has only imports of
the standard library and of itself, because the program's Python may not have Frog.
"""

from __future__ import annotations

from .settings import VARIABLE, num_gpus, prefer_cpu_libraries


def install() -> None:
    """Simulate the GPUs that the environment asks for. Do nothing if it asks for none."""
    count = num_gpus()
    if count is None:
        return
    from .patches import simulate

    prefer_cpu_libraries()
    simulate(count)


__all__ = ["VARIABLE", "install"]
