"""The process keeps memory that a step frees, for the next step."""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys

import pytest
from harness import LIMIT_S

PROGRAM = """
import ctypes
import resource
import torch
from frog.core.machine import keep_freed_memory

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]

libc = ctypes.CDLL(None)
libc.mallinfo.restype = Mallinfo
keep_freed_memory()
others = libc.mallinfo().hblks
for _ in range(10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [torch.ones(1 << 20) for _ in range(16)]
    mapped = libc.mallinfo().hblks - others
    del pieces
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    print(faults, mapped, libc.mallinfo().arena)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's allocator that is set")
def test_freed_memory_is_kept_for_reuse() -> None:
    """A program allocates 64 MiB in pieces of 1,024 pages and frees them, ten times.

    By default, glibc maps such pieces at first, and later usually keeps them too.
    """
    command = [sys.executable, "-c", PROGRAM]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout
    rounds = [tuple(map(int, line.split())) for line in out.splitlines()]
    assert statistics.median(faults for faults, *_ in rounds) < 100
    assert {mapped for _, mapped, _ in rounds} == {0}
    assert min(arena for *_, arena in rounds) >= 64 << 20
