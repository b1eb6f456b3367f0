"""The watchdog of a world: detects silent and stuck ranks.

Each node's agent (launch/torchrun/agent.py), not the watchdog, reports ended ranks to launch/world.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from frog.core.processes import is_alive
from frog.core.runs.event_schema import Beat
from frog.core.runs.folder import RunFolder
from frog.core.runs.heartbeat import read_heartbeat


@dataclass(frozen=True)
class Hang:
    """A rank that makes no progress."""

    rank: int
    """The rank that it was started as; its heartbeat file may have another rank by now."""
    pid: int
    kind: str
    """"silent": no heartbeat, so the process is stopped or blocked; "stuck": heartbeats, but waits in a collective."""
    waited_s: float
    heartbeat: Beat

    def __str__(self) -> str:
        beat = self.heartbeat
        place = f"step {beat.step}" + (f", {beat.phase}" if beat.phase else "")
        if self.kind == "silent":
            return f"rank {self.rank} (pid {self.pid}) sent no heartbeat for {self.waited_s:.0f} s, after {place}"
        op = beat.open[0].op
        return f"rank {self.rank} (pid {self.pid}) has waited {self.waited_s:.0f} s in {op} ({place})"


def find_hangs(folder: RunFolder, pids: dict[int, int], deadline_s: float, stuck_s: float) -> Iterator[Hang]:
    """Yield those of the given ranks that have been silent or stuck for longer than allowed.

    A rank without a heartbeat is still starting. The agent reports a rank that has ended, possibly late, since it ends
    the others first. A rank is stuck after `stuck_s`, or twice its collectives' timeout if that is longer; the same
    limit applies to a rank that does not exit after its last step.
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
