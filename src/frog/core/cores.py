"""The cores that this process may use, and the threads of ranks that share them."""

from __future__ import annotations

import contextlib
import os

from frog.core import memory


def usable_cores() -> float:
    """Return the number of cores in this process's affinity mask, or its container's quota if that is lower."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with contextlib.suppress(OSError, ValueError):
        quota, period = (memory.CGROUP / "cpu.max").read_text().split()
        cores = min(cores, int(quota) / int(period))
    return cores


def threads_per_rank(num_ranks: int) -> int:
    """Return the threads of each rank if the ranks of this machine share its cores: at least 1."""
    return max(1, int(usable_cores()) // num_ranks)
