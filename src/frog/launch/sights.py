"""What the launcher sees of a program's ranks: their observers' statuses, and their processes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psutil

from frog.core.runs.observed import Status
from frog.launch.program_watch import Snapshot

_INSIDE_TORCH = "torch/distributed/"


def take_snapshot(status: Status, with_children: bool) -> Snapshot:
    """Return what is seen of one rank now. with_children: also measure its child processes."""
    snapshot = Snapshot(
        completed=sum(group.completed for group in status.groups),
        pending=status.in_message
        or any(group.pending for group in status.groups)
        or (status.inside is not None and _INSIDE_TORCH in status.inside.file),
        cpu_s=status.cpu_s,
        line=status.line,
        inside=status.inside,
        ended=status.state != "running",
        failed=status.state == "failed",
    )
    return snapshot if snapshot.ended else _with_process(snapshot, status.pid, with_children)


def take_snapshots(statuses: Mapping[int, Status], with_children: bool) -> dict[int, Snapshot]:
    """Return what is seen of each rank now."""
    return {rank: take_snapshot(status, with_children) for rank, status in statuses.items()}


def _with_process(snapshot: Snapshot, pid: int, with_children: bool) -> Snapshot:
    """Add what the operating system knows of a process; a status may be old, and the process may have ended."""
    try:
        process = psutil.Process(pid)
        state, times = process.status(), process.cpu_times()
        children = process.children(recursive=True) if with_children else []
    except psutil.Error:
        return replace(snapshot, ended=True)
    return replace(
        snapshot,
        cpu_s=times.user + times.system,
        queued_s=_queued_s(pid),
        moved_bytes=_moved_bytes(pid),
        children_cpu_s=sum(map(_cpu_s, children)) if with_children else None,
        ended=state == psutil.STATUS_ZOMBIE,
        stopped=state in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP),
    )


def _cpu_s(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _queued_s(pid: int) -> float:
    """Return how long a process's main thread has been ready to run without a core; 0 where that is unknown."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _moved_bytes(pid: int) -> int:
    """Return a count of the bytes that a process has read and written; 0 where that is unknown.

    It includes gloo's sockets, and pages of mapped files that came from a disk.
    """
    try:
        fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        return sum(int(fields[name]) for name in ("rchar", "wchar", "read_bytes", "write_bytes"))
    except (OSError, ValueError, KeyError):
        return 0
