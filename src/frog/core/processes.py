"""Processes: their descendants and orphans, how they end, and how they import faster."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from frog.core.env import launcher_pid

NOT_MET = os.EX_UNAVAILABLE
"""Exit code of an agent that did not find the other nodes, or lost them."""


_TAKE_ORPHANS = 36
"""PR_SET_CHILD_SUBREAPER of <sys/prctl.h>."""


def take_orphans() -> bool:
    """Adopt all processes that this process's descendants leave behind; return False if the system cannot do that."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(_TAKE_ORPHANS, 1, 0, 0, 0) == 0)


def reap_orphans() -> None:
    """Reap all ended children, in a process that adopts orphans and does not currently wait for a child."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def descendants(pid: int) -> list[int]:
    """Return the children of a process, and their descendants.

    Linux has lists of children. On other systems this scans all processes of the machine, which takes far longer.
    """
    if not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
        import psutil  # rarely needed, and every command would wait for the import

        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        return []
    family, parents = [], [pid]
    while parents:
        for text in of_threads(parents.pop(), "children"):
            own = list(map(int, text.split()))
            family += own
            parents += own
    return family


def of_threads(pid: int, name: str) -> list[bytes]:
    """Read a file in /proc for each thread of a process, on Linux; skip threads that end meanwhile."""
    contents = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/{name}", "rb", buffering=0) as file:
                contents.append(file.read())
    return contents


def leave(code: int) -> NoReturn:
    """End this process with that exit code: run the exit handlers, flush the output, and stop.

    Python would otherwise unload every module, which takes most of a second per rank if torch is loaded.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def is_alive(pid: int) -> bool:
    """True if a process with this pid runs, for any user. An ended process that was not reaped does not count."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it has just ended, or this is not Linux
        return not Path("/proc/self/stat").exists()
    except OSError:  # too many open files
        return True


def kill_group(leader: int) -> None:
    """Kill a process group, with its leader; do nothing if it does not exist."""
    if leader <= 1:
        raise ValueError(f"process {leader}: not the leader of a group that Frog started")
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def leave_with_parent(poll_s: float = 0.5, *, last: Callable[[], None] | None = None) -> None:
    """End this process when its parent or the launcher ends, so that nothing survives a `kill -9` of either.

    last: called before the end, for example to end this process's own children.
    """
    parent, launcher = os.getppid(), launcher_pid()

    def watch() -> None:
        while os.getppid() == parent and (launcher is None or is_alive(launcher)):
            time.sleep(poll_s)
        if last is not None:
            last()
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import modules without garbage collection, now or later: their objects stay until the process ends."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
