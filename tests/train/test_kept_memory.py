"""What a step frees stays with the process, for the next step."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
from frog.train.hardware import keep_freed_memory
if {keep}:
    keep_freed_memory()
step = lambda: [torch.ones(1 << 20) for _ in range(16)]
step()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(keep: bool) -> int:
    """Of a program that makes 64 MiB in pieces and frees them, in the third round: glibc itself learns slowly."""
    command = [sys.executable, "-c", PROGRAM.format(keep=keep)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's allocator that is set")
def test_pages_are_not_faulted_in_again() -> None:
    assert 10 * page_faults(keep=True) < page_faults(keep=False)
