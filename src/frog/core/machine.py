"""What this machine has for a process: free ports, memory, cores and huge pages."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from frog.core.errors import ConfigError
from frog.core.namespaces import call_libc
from frog.core.units import format_bytes

_PORTS_OF_RUNS = range(10_000, 30_000)
"""Ports below the ephemeral ports: Linux assigns those from 32768 on, macOS from 49152 on."""


def free_port(address: str = "127.0.0.1", among: range = _PORTS_OF_RUNS) -> int:
    """Return a port that no process uses now, and that the system does not assign on its own."""
    while True:
        port = random.choice(among)
        with contextlib.suppress(OSError), socket.create_server((address, port)):
            return port


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


def usable_cores() -> float:
    """Return the number of cores in this process's affinity mask, or its container's quota if that is lower."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with contextlib.suppress(OSError, ValueError):
        quota, period = (CGROUP / "cpu.max").read_text().split()
        cores = min(cores, int(quota) / int(period))
    return cores


def threads_per_rank(num_ranks: int) -> int:
    """Return the threads of each rank if the ranks of this machine share its cores: at least 1."""
    return max(1, int(usable_cores()) // num_ranks)


_HUGE_PAGE_BYTES = 2 << 20
MADV_COLLAPSE = 25
"""The advice to `madvise` to move a range to huge pages now."""


def use_huge_pages() -> None:
    """Move this process's own memory to huge pages, if the system can: Linux 6.1 or later, with enough free memory.

    A fork of a process that has torch loaded, with the end of the child, then takes 3 ms of processor time instead of
    17 ms. The move takes 140 ms. A child that writes to a huge page gets a copy of 4 KiB of it, as without huge pages.
    """
    for start, end in _own_memory():
        with contextlib.suppress(OSError):
            call_libc("madvise", ctypes.c_ulong(start), ctypes.c_ulong(end - start), MADV_COLLAPSE)


def _own_memory() -> Iterator[tuple[int, int]]:
    """Yield the ranges of whole huge pages in writable memory that belongs to no file."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as file:  # absent on other systems
        for line in file.readlines():
            place, rights, _, _, inode, *name = line.split(maxsplit=5)
            start, end = (int(text, 16) for text in place.split("-"))
            start, end = -(-start // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES, end // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
            if rights.startswith("rw-p") and inode == "0" and name in ([], ["[heap]\n"]) and start < end:
                yield start, end
