"""Which process of a rank writes to the rank's folder: a shell script may run several, in turn or at the same time.

The process that has imported torch comes before one that has not, even after its end: a script's last command must not
hide what happened before. Among equals, a running process keeps the folder. The files of a process that has ended move
to `earlier/` when another takes over.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from . import files
from .place import Place

_FRESH_NS = 5_000_000_000
_EVIDENCE = ("collectives.json", "stacks.json", "error.json", "crash.txt", "status.json")


class Owner:
    """This process's claim to the folder."""

    def __init__(self, place: Place, pid: int) -> None:
        self._place, self._pid = place, pid

    def may_write(self, has_torch: bool) -> bool:
        """True if the folder is this process's, possibly from now on."""
        status = files.read_json(os.path.join(self._place.folder, "status.json"))
        if not isinstance(status, dict) or status.get("pid") == self._pid:
            return True
        had_torch = bool(status.get("torch"))
        if had_torch and not has_torch:
            return False
        if had_torch == has_torch and self._is_running(status):
            return False
        self._move_aside()
        return True

    def _is_running(self, status: dict[str, Any]) -> bool:
        written_ns, pid = status.get("unix_ns"), status.get("pid")
        if status.get("state") != "running" or not isinstance(written_ns, int) or not isinstance(pid, int):
            return False
        if status.get("host") == self._place.host:
            with contextlib.suppress(OSError):
                os.kill(pid, 0)
                return pid > 0
            return False
        return time.time_ns() - written_ns < _FRESH_NS

    def _move_aside(self) -> None:
        aside = os.path.join(self._place.folder, "earlier")
        with contextlib.suppress(OSError):
            os.makedirs(aside, exist_ok=True)
        for name in _EVIDENCE:
            with contextlib.suppress(OSError):
                os.replace(os.path.join(self._place.folder, name), os.path.join(aside, name))
