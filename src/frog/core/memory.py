"""How much memory there is to be had on this machine."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from frog.core.errors import ConfigError
from frog.core.units import format_bytes

_LIMIT = Path("/sys/fs/cgroup/memory.max")


def machine_bytes() -> int:
    """The machine's memory, used or not; in a container what it may use of that."""
    total = int(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):  # no container's limit; the word max
        total = min(total, int(_LIMIT.read_text()))
    return total


def check_memory(num_bytes: int, what: str, hint: str) -> None:
    """Before it is taken: ConfigError if that is more than the machine has, in use or not."""
    have = machine_bytes()
    if num_bytes > have:
        need = f"{what} takes at least {format_bytes(num_bytes)} of memory"
        raise ConfigError(f"{need}, this machine has {format_bytes(have)}", hint)
