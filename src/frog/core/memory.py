"""How much memory there is to be had on this machine."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from frog.core.errors import ConfigError
from frog.core.units import format_bytes

CGROUP = Path("/sys/fs/cgroup")
"""Where a container's limits stand."""

PROCESS_BYTES = 32 << 20
"""The least that a process takes which runs Python."""


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
