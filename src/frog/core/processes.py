"""Other processes of this machine."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import NoReturn

from frog.core.env import launcher_pid


def leave(code: int) -> NoReturn:
    """End this process with that exit code: what was registered for the end runs, output is flushed, and that is all.

    Python would go on to take every module apart, which with torch loaded takes most of a second for each rank.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def is_alive(pid: int) -> bool:
    """Whether a process of that number runs, whoever it belongs to."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def leave_with_parent(poll_s: float = 0.5) -> None:
    """End this process when the one that started it, or the launcher, is gone: nothing outlives a `kill -9`."""
    parent, launcher = os.getppid(), launcher_pid()

    def watch() -> None:
        while os.getppid() == parent and (launcher is None or is_alive(launcher)):
            time.sleep(poll_s)
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
