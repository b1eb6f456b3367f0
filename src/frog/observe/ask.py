"""Ask the ranks of a running program what they are doing."""

from __future__ import annotations

import time
from pathlib import Path

from frog.core.errors import RunError
from frog.core.runs.folder import find_evidence
from frog.core.runs.observed import Observed, Status, observed_folder, read_observed, write_request
from frog.core.units import count

_PATIENCE_S, _POLL_S = 10.0, 0.1


def ask_ranks(run: str) -> str:
    """Ask all ranks of a run for their evidence; return where each one is, one per line.

    Raises:  RunError if the run does not exist or has no observed ranks.
    """
    folder = find_evidence(run).path
    ranks = _last_attempt(folder)
    if not ranks:
        raise RunError(f"{folder}: no rank has written a status", "start the program with frog run, or see --env")
    if any(map(_is_fresh, ranks.values())):
        number, until_s = write_request(folder, "user"), time.monotonic() + _PATIENCE_S
        while time.monotonic() < until_s and not _have_answered(ranks, number):
            time.sleep(_POLL_S)
            ranks = _last_attempt(folder)
    lines = [_describe(own) for own in ranks.values()]
    return "\n".join([*lines, f"stacks of all threads, and the last collectives: {observed_folder(folder)}"])


def _last_attempt(folder: Path) -> dict[int, Observed]:
    attempts = read_observed(folder)
    return attempts[max(attempts)] if attempts else {}


def _is_fresh(own: Observed) -> bool:
    return own.status is not None and own.status.is_fresh(time.time_ns())


def _have_answered(ranks: dict[int, Observed], number: int) -> bool:
    return all(own.status is not None and own.status.answered == number for own in ranks.values() if _is_fresh(own))


def _age_s(status: Status) -> float:
    return max(0.0, time.time() - status.unix_ns / 1e9)


def _describe(own: Observed) -> str:
    status = own.status
    if status is None:
        return f"rank {own.rank}: its status cannot be read"
    where = f" at {status.line} in {status.line.function}" if status.line is not None else ""
    done = count(own.num_completed, "collective")
    if status.state != "running":
        return f"rank {own.rank}: {status.state}, after {done}"
    if not status.is_fresh(time.time_ns()):
        return f"rank {own.rank}: no sign of life for {_age_s(status):.0f} s; last{where}, after {done}"
    pending = next((group for group in status.groups if group.pending), None)
    waits = f", in collective number {pending.completed + 1} of group {pending.group}" if pending else ""
    return f"rank {own.rank}:{where or ' running'}{waits}, after {done}"
