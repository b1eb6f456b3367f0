"""Other processes of this machine."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from frog.core.env import launcher_pid

NOT_MET = os.EX_UNAVAILABLE
"""Exit code of an agent that did not find the other nodes, or lost them."""


_TAKE_ORPHANS = 36
"""PR_SET_CHILD_SUBREAPER of <sys/prctl.h>."""


def take_orphans() -> bool:
    """Be the parent of all that this process's descendants leave behind; whether the system can do that."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(_TAKE_ORPHANS, 1, 0, 0, 0) == 0)


def reap_orphans() -> None:
    """Take note of all children that have ended: for who takes orphans, and waits for no other child at that time."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def descendants(pid: int) -> list[int]:
    """The processes that one has started, and all that those have.

    Linux keeps lists of children. Elsewhere, all processes of the machine are looked at, which takes far longer.
    """
    if not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists():
        import psutil  # seldom needed, and every command would wait for it

        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        return []
    found, parents = [], [pid]
    while parents:
        for text in of_threads(parents.pop(), "children"):
            own = list(map(int, text.split()))
            found += own
            parents += own
    return found


def of_threads(pid: int, name: str) -> list[str]:
    """What Linux says of each thread of a process, under a name in /proc; nothing of those that end meanwhile."""
    found = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/task/{thread}/{name}").read_text())
    return found


def leave(code: int) -> NoReturn:
    """End this process with that exit code: what was registered for the end runs, output is flushed, and that is all.

    Python would go on to take every module apart, which with torch loaded takes most of a second for each rank.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def is_alive(pid: int) -> bool:
    """Whether a process of that number runs, whoever it belongs to. One that ended and was not yet seen to does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended just now; or this is not Linux
        return not Path("/proc/self/stat").exists()
    except OSError:  # no more files can be opened
        return True


def kill_group(leader: int) -> None:
    """Kill a process that leads a group, and all of that group; nothing if there is none."""
    if leader <= 1:
        raise ValueError(f"process {leader}: never a group of ours")
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def leave_with_parent(poll_s: float = 0.5, *, last: Callable[[], None] | None = None) -> None:
    """End this process when the one that started it, or the launcher, is gone: nothing outlives a `kill -9`.

    last: what to do before that, such as to end one's own children.
    """
    parent, launcher = os.getppid(), launcher_pid()

    def watch() -> None:
        while os.getppid() == parent and (launcher is None or is_alive(launcher)):
            time.sleep(poll_s)
        if last is not None:
            last()
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
