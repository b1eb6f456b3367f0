"""Memory in huge pages."""

from __future__ import annotations

import ctypes
import mmap

import pytest

from frog.core.machine import MADV_COLLAPSE, use_huge_pages
from frog.core.namespaces import call_libc

_PAGE = 2 << 20


def test_memory_in_huge_pages_has_the_same_content() -> None:
    with mmap.mmap(-1, 4 * _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(bytes(range(256)) * (4 * _PAGE // 256))
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        use_huge_pages()
        content, after = memory[:], _huge_bytes(start)
        try:
            call_libc("madvise", ctypes.c_ulong(-(-start // _PAGE) * _PAGE), ctypes.c_ulong(_PAGE), MADV_COLLAPSE)
        except OSError as problem:
            pytest.skip(f"this system has no huge pages: {problem}")
    assert content == bytes(range(256)) * (4 * _PAGE // 256)
    assert after >= 3 * _PAGE


def _huge_bytes(address: int) -> int:
    """Return the bytes in huge pages of the mapping that contains an address."""
    with open("/proc/self/smaps") as file:
        is_it = False
        for line in file:
            first, *rest = line.split()
            if "-" in first and not first.endswith(":"):
                start, end = (int(text, 16) for text in first.split("-"))
                is_it = start <= address < end
            elif is_it and first == "AnonHugePages:":
                return int(rest[0]) << 10
    return 0
