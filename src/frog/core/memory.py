"""The memory of this machine, and the memory that the C library's allocator keeps."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

import psutil

from frog.core.errors import ConfigError
from frog.core.units import format_bytes

CGROUP = Path("/sys/fs/cgroup")
"""The folder with a container's limits."""

PROCESS_BYTES = 32 << 20
"""Minimum memory of a Python process."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MOST_MMAP_THRESHOLD = 32 << 20
"""The largest value that glibc accepts on a 64-bit system."""


def machine_bytes() -> int:
    """Return the machine's total memory; in a container, its limit."""
    total = int(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):  # no container limit, or the value is "max"
        total = min(total, int((CGROUP / "memory.max").read_text()))
    return total


def free_bytes() -> int:
    """Return the available memory; in a container, the part of its limit that is available."""
    free = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError):
        limit = int((CGROUP / "memory.max").read_text())
        free = min(free, limit - int((CGROUP / "memory.current").read_text()))
    return free


def check_memory(num_bytes: int, what: str, hint: str) -> None:
    """Raise ConfigError if the machine does not have this much memory in total."""
    have = machine_bytes()
    if num_bytes > have:
        need = f"{what} takes at least {format_bytes(num_bytes)} of memory"
        raise ConfigError(f"{need}, but this machine has {format_bytes(have)}", hint)


def keep_freed_memory() -> None:
    """Let glibc keep the memory that a training step frees: the next step would otherwise fault the same pages again.

    For the effect see docs/development/decisions/0005-model-speed.md. Does nothing without glibc.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # the function or the library does not exist
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_MMAP_THRESHOLD, _MOST_MMAP_THRESHOLD)
