"""Before torchrun ends the other ranks of a failed program: ask their observers for what they know.

A rank that is ended leaves no record of its collectives. The first failure is often not the cause, as when gloo ends
the process that received another rank's mistake.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from frog.core.runs.observed import Status, read_statuses, write_request

_WAIT_S, _POLL_S = 5.0, 0.05
"""Longest wait; observers look for requests twice a second, and answer in a tenth of one."""


def ask_others(folder: Path, attempt: int, running: Callable[[], set[int]]) -> None:
    """Ask the observed ranks, and wait until each running one has answered or ended.

    running: returns the ranks of this node that are still running.
    """
    if not running() & read_statuses(folder, attempt).keys():
        return
    number, until = write_request(folder, "failure"), time.monotonic() + _WAIT_S
    while time.monotonic() < until:
        statuses = read_statuses(folder, attempt)
        if not running() & {rank for rank, status in statuses.items() if _may_write(status, number)}:
            return
        time.sleep(_POLL_S)


def _may_write(status: Status, number: int) -> bool:
    """True if a rank may still write: it has not answered, or writes what it knows because it failed too."""
    return status.state == "failed" or (status.state == "running" and status.answered != number)
