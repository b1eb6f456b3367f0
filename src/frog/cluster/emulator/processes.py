"""Processes of jobs: signal their groups, find them by a mark in their environment, end them with their job."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

MARK = "FROG_EMULATOR_MARK"
"""Variable with the value cluster/job.start/ in a batch script, cluster/job.start/step/ in a task and cluster/daemon/
in the daemon, so a prefix finds all processes of a step, a job or a cluster."""

_END_S = 10.0


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; return False if it no longer exists."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS raises PermissionError for a group of zombies
        return False
    return True


def find_marked(prefix: str) -> list[int]:
    """Return the live processes whose mark begins with `prefix`, including those that left their group."""
    marks = _marks_of_proc() if Path("/proc/self/environ").exists() else _marks_of_ps()
    return [pid for pid, mark in marks if mark.startswith(prefix) and pid != os.getpid()]


def _marks_of_proc() -> list[tuple[int, str]]:
    name = f"{MARK}=".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it has just ended, or belongs to another user
            continue
        found += [(int(entry.name), item.removeprefix(name).decode()) for item in variables if item.startswith(name)]
    return found


def _marks_of_ps() -> list[tuple[int, str]]:
    """Read marks without /proc: ps prints the environment of the user's own processes after their command."""
    words = ["ps", "-A", "-E", "-ww"] if sys.platform == "darwin" else ["ps", "axeww"]
    done = subprocess.run([*words, "-o", "pid=,command="], capture_output=True, text=True, timeout=20)
    return parse_ps(done.stdout)


def parse_ps(text: str) -> list[tuple[int, str]]:
    """Return pid and mark of each line of ps that has a mark."""
    found = re.findall(rf"^\s*(\d+)\s.*?\b{MARK}=(\S+)", text, re.MULTILINE)
    return [(int(pid), mark) for pid, mark in found]


def enter(folder: Path) -> tuple[Path, str]:
    """Return the working folder of a job's process, and Slurm's message on stderr if it is not the requested one."""
    if folder.is_dir():
        return folder, ""
    why = os.strerror(errno.ENOTDIR if folder.exists() else errno.ENOENT)
    return Path("/tmp"), f"slurmstepd: error: couldn't chdir to `{folder}': {why}: going to /tmp instead\n"


def kill_marked(prefix: str, groups: Sequence[int] = ()) -> list[int]:
    """Send SIGKILL to all processes with a mark until none remains; return those that still exist at the deadline."""
    deadline = time.monotonic() + _END_S
    for group in groups:
        signal_group(group, signal.SIGKILL)
    while (left := find_marked(prefix)) and time.monotonic() < deadline:
        for pid in left:
            signal_one(pid, signal.SIGKILL)
        time.sleep(0.02)
    return left


def signal_one(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def signal_marked(prefix: str, number: int, *, leaders: Sequence[int] = (), but: Sequence[int] = ()) -> None:
    """Send a signal once to the leaders of a mark's groups, then to each of its other processes, except `but`.

    A leader that ends on the signal must not see its child end first.
    """
    for pid in dict.fromkeys([*leaders, *find_marked(prefix)]):
        if pid not in but:
            signal_one(pid, number)
