"""Cheaper forks: memory in huge pages has a page table 512 times as short, and a fork copies the page table."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress

from frog.core.namespaces import call_libc

_PAGE = 2 << 20
MADV_COLLAPSE = 25
"""The advice to `madvise` to move a range to huge pages now."""


def use_huge_pages() -> None:
    """Move this process's own memory to huge pages, if the system can: Linux 6.1 or later, with enough free memory.

    A fork of a process that has torch loaded, with the end of the child, then takes 3 ms of processor time instead of
    17 ms. The move takes 140 ms. A child that writes to a huge page gets a copy of 4 KiB of it, as without huge pages.
    """
    for start, end in _own_memory():
        with suppress(OSError):
            call_libc("madvise", ctypes.c_ulong(start), ctypes.c_ulong(end - start), MADV_COLLAPSE)


def _own_memory() -> Iterator[tuple[int, int]]:
    """Yield the ranges of whole huge pages in writable memory that belongs to no file."""
    with suppress(OSError), open("/proc/self/maps") as file:  # absent on other systems
        for line in file.readlines():
            place, rights, _, _, inode, *name = line.split(maxsplit=5)
            start, end = (int(text, 16) for text in place.split("-"))
            start, end = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
            if rights.startswith("rw-p") and inode == "0" and name in ([], ["[heap]\n"]) and start < end:
                yield start, end
