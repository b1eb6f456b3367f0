"""The watchdog of a world: who gives no sign of life, and who is stuck.

Who has ended is not seen here: each node's agent reports it (launch/torchrun/agent.py), and launch/world.py hears it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from frog.core.processes import is_alive
from frog.runs.folder import RunFolder
from frog.runs.heartbeat import read_heartbeat
from frog.runs.schema import Beat


@dataclass(frozen=True)
class Hang:
    """A rank that does not go on."""

    rank: int
    """As which it was started: its heartbeat may lie under another since."""
    pid: int
    kind: str
    """"silent": no heartbeat, so the process is stopped or held; "stuck": it beats, but waits in one collective."""
    waited_s: float
    heartbeat: Beat

    def __str__(self) -> str:
        beat = self.heartbeat
        place = f"step {beat.step}" + (f", {beat.phase}" if beat.phase else "")
        if self.kind == "silent":
            return f"rank {self.rank} (pid {self.pid}) gave no sign of life for {self.waited_s:.0f} s, after {place}"
        op = beat.open[0].op
        return f"rank {self.rank} (pid {self.pid}) has waited {self.waited_s:.0f} s in {op} ({place})"


def find_hangs(folder: RunFolder, pids: dict[int, int], deadline_s: float, stuck_s: float) -> Iterator[Hang]:
    """The ranks, out of those given with their pids, that have been silent or stuck for longer than allowed.

    A rank without a heartbeat yet is still starting; one that has ended is its agent's to report, which first ends the
    others and may take its time for that. A rank is stuck after `stuck_s`, or twice its own collectives' time-out if
    that is longer; so is one that has taken its last step and does not leave.
    """
    now_ns = time.monotonic_ns()
    ranks = {pid: rank for rank, pid in pids.items()}
    for place in folder.heartbeat_ranks():
        beat = read_heartbeat(folder.heartbeat(place))
        if beat is None or beat.pid not in ranks or not is_alive(beat.pid):
            continue
        rank, pid = ranks[beat.pid], beat.pid
        silent_s = (now_ns - beat.beat_ns) / 1e9
        allowed_s = max(stuck_s, 2 * beat.timeout_s)
        if silent_s > (deadline_s if beat.status == "running" else allowed_s):
            yield Hang(rank, pid, "silent", silent_s, beat)
        elif beat.open and (now_ns - beat.open[0].start_ns) / 1e9 > allowed_s:
            yield Hang(rank, pid, "stuck", (now_ns - beat.open[0].start_ns) / 1e9, beat)
