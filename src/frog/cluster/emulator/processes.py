"""The processes of jobs: signalled as groups, found again by a mark in their environment, ended with their job."""

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
"""Its value is cluster/job.start/ for a batch script, cluster/job.start/step/ for a task, so a prefix finds a whole. Of
the daemon it is cluster/daemon/."""

_END_S = 10.0


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; False if nothing is left of it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        return False
    return True


def find_marked(prefix: str) -> list[int]:
    """The live processes whose mark begins with `prefix`, also those that have left their group."""
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
        except OSError:  # it has just ended, or belongs to somebody else
            continue
        found += [(int(entry.name), item.removeprefix(name).decode()) for item in variables if item.startswith(name)]
    return found


def _marks_of_ps() -> list[tuple[int, str]]:
    """Where there is no /proc: ps shows the environment of one's own processes behind their command."""
    words = ["ps", "-A", "-E", "-ww"] if sys.platform == "darwin" else ["ps", "axeww"]
    done = subprocess.run([*words, "-o", "pid=,command="], capture_output=True, text=True, timeout=20)
    return parse_ps(done.stdout)


def parse_ps(text: str) -> list[tuple[int, str]]:
    """Pid and mark of the lines of ps that have one."""
    found = re.findall(rf"^\s*(\d+)\s.*?\b{MARK}=(\S+)", text, re.MULTILINE)
    return [(int(pid), mark) for pid, mark in found]


def enter(folder: Path) -> tuple[Path, str]:
    """Where a process of a job runs, and what Slurm says to its stderr if that is not where it was asked to."""
    if folder.is_dir():
        return folder, ""
    why = os.strerror(errno.ENOTDIR if folder.exists() else errno.ENOENT)
    return Path("/tmp"), f"slurmstepd: error: couldn't chdir to `{folder}': {why}: going to /tmp instead\n"


def kill_marked(prefix: str, groups: Sequence[int] = ()) -> list[int]:
    """SIGKILL everything of a mark until nothing is left; return what is left all the same after a while."""
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
    """Send a signal once to the leaders of a mark's groups, then to each of its other processes; not to `but`.

    A leader that ends of it must not first see its child end.
    """
    for pid in dict.fromkeys([*leaders, *find_marked(prefix)]):
        if pid not in but:
            signal_one(pid, number)
