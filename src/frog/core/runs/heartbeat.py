"""A rank's heartbeat: its current state, in one small file that outlives the process.

The rank rewrites the file in place at every change, and a thread does so twice a second, each with one write of a fixed
length. So the file has the last state of a killed rank, and its age reveals a stopped one. The events contain only
operations that ended; the heartbeat also contains those that never did.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from frog.core.errors import RunError
from frog.core.runs.event_schema import Beat
from frog.core.runs.folder import RunFolder
from frog.core.runs.vocabulary import Phase
from frog.core.schema import decode, read_bounded

_SIZE = 2048
"""Bytes of the file: at most one page, so that a reader never sees half a change."""

_MOST_OPEN = 8
"""Maximum number of active collectives in the file, oldest first."""

BEAT_S = 0.5


class Heartbeat:
    """Keeps one file up to date. `who` has the fields that do not change: rank, pid, node_rank, host, attempt, …"""

    def __init__(self, path: Path, who: dict[str, Any], beat_s: float | None = BEAT_S) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self._who = json.dumps(who)[:-1]
        self._lock = threading.Lock()
        self._status = "running"
        self._step, self._micro, self._phase_ns = 0, 0, time.monotonic_ns()
        self._phase: Phase | None = None
        self._num_collectives = 0
        self._open: dict[int, str] = {}
        self.beat()
        if beat_s is not None:
            threading.Thread(target=self._keep_beating, args=(beat_s,), name="heartbeat", daemon=True).start()

    def enter(self, step: int, phase: Phase | None, micro: int = 0) -> None:
        """Record the start of a phase; None: the end of the last one."""
        self._step, self._phase, self._micro, self._phase_ns = step, phase, micro, time.monotonic_ns()
        self.beat()

    def begin(self, seq: int, op: str, axis: str, payload_bytes: int, start_ns: int) -> None:
        """Record the start of a collective."""
        with self._lock:
            self._num_collectives = seq + 1
            self._open[seq] = (
                f'{{"seq":{seq},"op":"{op}","axis":"{axis}","payload_bytes":{payload_bytes},"start_ns":{start_ns}}}'
            )
        self.beat()

    def end(self, seq: int) -> None:
        """Record the end of a collective."""
        with self._lock:
            self._open.pop(seq, None)
        self.beat()

    def beat(self) -> None:
        """Write the current state."""
        with self._lock:
            if self._descriptor is None:
                return
            phase = f'"{self._phase}"' if self._phase else "null"
            under_way = ",".join(list(self._open.values())[:_MOST_OPEN])
            text = (
                f'{self._who},"status":"{self._status}","step":{self._step},"phase":{phase},"micro":{self._micro},'
                f'"phase_ns":{self._phase_ns},"num_collectives":{self._num_collectives},"open":[{under_way}],'
                f'"beat_ns":{time.monotonic_ns()},"unix_ns":{time.time_ns()}}}'
            )
            os.pwrite(self._descriptor, text.encode().ljust(_SIZE), 0)

    def close(self, status: str = "running") -> None:
        """Write the last beat: how this rank ended, or "running" if it continues in another file."""
        self._status = status
        self.beat()
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _keep_beating(self, beat_s: float) -> None:
        while self._descriptor is not None:
            time.sleep(beat_s)
            try:
                self.beat()
            except OSError:  # a full disk: the rank itself will report it
                continue


def read_heartbeat(path: Path, problems: list[str] | None = None) -> Beat | None:
    """Read a rank's last heartbeat; None if missing or unreadable. Adds the reason to `problems`."""
    said = ""
    for _ in range(3):  # the rank may be writing at this moment
        try:
            return decode(read_bounded(path), Beat, str(path))
        except FileNotFoundError:
            return None
        except RunError as error:
            said = error.what
    if problems is not None:
        problems.append(said)
    return None


def archive_heartbeats(folder: RunFolder, attempt: int, epoch: int = 0) -> None:
    """Move the last heartbeats of previous worlds to an archive folder.

    Call this before any rank of this world opens its heartbeat, which would overwrite them.
    """
    for path in folder.heartbeats.glob("rank_*.json"):
        beat = read_heartbeat(path)
        if beat is not None and (beat.attempt, beat.epoch) < (attempt, epoch):
            world = f"attempt_{beat.attempt}" + f"_epoch_{beat.epoch}" * (beat.epoch > 0)
            aside = folder.heartbeats / world
            aside.mkdir(exist_ok=True)
            path.replace(aside / path.name)
