"""How much memory this machine has, and what the C library's allocator keeps of it."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

import psutil

from frog.core.errors import ConfigError
from frog.core.units import format_bytes

CGROUP = Path("/sys/fs/cgroup")
"""Where a container's limits stand."""

PROCESS_BYTES = 32 << 20
"""The least that a process takes which runs Python."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MOST_MMAP_THRESHOLD = 32 << 20
"""The largest value that glibc accepts on a 64-bit system."""


def machine_bytes() -> int:
    """The machine's memory, used or not; in a container what it may use of that."""
    total = int(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):  # no container's limit; the word max
        total = min(total, int((CGROUP / "memory.max").read_text()))
    return total


def free_bytes() -> int:
    """The memory that is not in use; in a container, of what it may use."""
    free = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError):
        limit = int((CGROUP / "memory.max").read_text())
        free = min(free, limit - int((CGROUP / "memory.current").read_text()))
    return free


def check_memory(num_bytes: int, what: str, hint: str) -> None:
    """Before it is taken: ConfigError if that is more than the machine has, in use or not."""
    have = machine_bytes()
    if num_bytes > have:
        need = f"{what} takes at least {format_bytes(num_bytes)} of memory"
        raise ConfigError(f"{need}, this machine has {format_bytes(have)}", hint)


def keep_freed_memory() -> None:
    """Let glibc keep what a training step frees: the next step would otherwise fault the same pages in again.

    What this is worth: docs/development/decisions/0005-model-speed.md. Does nothing without glibc.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # no such function; no such library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_MMAP_THRESHOLD, _MOST_MMAP_THRESHOLD)
