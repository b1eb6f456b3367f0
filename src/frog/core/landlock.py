"""Landlock: Linux's way for a process to give up rights for good, without root (landlock(7), Linux 5.13 and later).

What the process and its children gave up, the kernel refuses, whichever language or library asks for it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from frog.core.namespaces import allow_no_new_privileges

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System calls, with the same numbers on all of Frog's architectures."""
_ASK_VERSION, _BELOW_A_FOLDER = 1, 1
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_CHANGES = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
"""Write to files; remove and create files, folders, sockets, pipes, devices and links."""
_MOVES_BETWEEN_FOLDERS, _SIGNALS_OTHERS = 1 << 13, 1 << 1


def landlock_version() -> int:
    """Return the version of Landlock's interface that this system has, 0 if it has none."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, _call(_CREATE_RULESET, None, 0, _ASK_VERSION))


def allow_writes_only_below(places: Sequence[Path]) -> bool:
    """Refuse this process and its later children to change files outside `places`, which are folders or files, and,
    from Linux 6.12 on, to signal processes that are not their own. It cannot be undone.

    Return False if the system has no Landlock; nothing has changed then. Version 1 lets files be shortened everywhere,
    and never lets them be moved to another folder.
    Assumes: this process has one thread that matters: Landlock holds the calling thread and those that it starts.
    """
    version = landlock_version()
    if version == 0:
        return False
    changes = _CHANGES | (_MOVES_BETWEEN_FOLDERS if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    fields = [changes, *([0] if version >= 4 else []), *([_SIGNALS_OTHERS] if version >= 6 else [])]
    attributes = struct.pack(f"{len(fields)}Q", *fields)
    rules = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    if rules < 0:
        return False
    try:
        for place in places:
            _allow(rules, place, changes)
        allow_no_new_privileges()
        return _call(_RESTRICT_SELF, rules, 0) == 0
    finally:
        os.close(rules)


def _allow(rules: int, place: Path, changes: int) -> None:
    """Let files below a folder, or one file, be changed; a place that does not exist needs no rule."""
    try:
        handle = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = changes if place.is_dir() else changes & (_WRITE_FILE | _TRUNCATE)
        _call(_ADD_RULE, rules, _BELOW_A_FOLDER, struct.pack("=Qi", rights, handle), 0)
    finally:
        os.close(handle)


def _call(number: int, *arguments: int | bytes | None) -> int:
    """Make a system call; return its result, or -1."""
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(number, *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]))
