"""The number of cores that this process may use."""

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
