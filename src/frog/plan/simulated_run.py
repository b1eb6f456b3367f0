"""The folder of a simulated run: what a real run of these ranks would leave, marked as simulated.

Its clock begins at `START_NS` and ends now.
"""

from __future__ import annotations

import datetime as dt
import json
import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from frog.core.config.load import SIMULATED_LAYOUT
from frog.core.files import write_atomic, write_json
from frog.core.runs.folder import RunFolder
from frog.core.runs.launcher_schema import LAUNCHER_FIELDS
from frog.core.runs.record import FORMAT
from frog.plan.estimate.hardware import Cluster

START_NS = 10**9
_NO_PID = 2**22
"""Above the process ids of Linux, so that no process is taken for a simulated rank."""


@dataclass(frozen=True)
class SimulatedRun:
    """The ranks of a simulated run, their nodes, and the files of its folder."""

    folder: RunFolder
    cluster: Cluster
    nodes: Mapping[int, int]
    """The node of each rank."""
    mesh: Mapping[str, int]
    command: list[str]
    """What the user typed."""
    end_ns: int

    @cached_property
    def unix_ns(self) -> int:
        """Unix time when the simulated clock is 0."""
        return time.time_ns() - self.end_ns

    @property
    def world_size(self) -> int:
        return len(self.nodes)

    @property
    def num_nodes(self) -> int:
        return max(self.nodes.values()) + 1

    @property
    def device(self) -> str:
        return f"simulated {self.cluster.gpu.name}"

    def create(self) -> None:
        """Create the folder."""
        self.folder.events.mkdir(parents=True)
        self.folder.heartbeats.mkdir()

    # ---- one rank ----------------------------------------------------------------------------------------------------

    def write_rank(self, rank: int, lines: Iterable[dict[str, Any]]) -> None:
        """Write the events of a rank."""
        write_atomic(self.folder.rank_events(rank), _json_lines(lines))

    def start(self, rank: int, local_rank: int, place: Mapping[str, int]) -> dict[str, Any]:
        """Return the first event of a rank. place: its index on each axis of the mesh."""
        node = self.nodes[rank]
        return {
            "event": "start", "step": 0, "rank": rank, "world_size": self.world_size, "local_rank": local_rank,
            "node_rank": node, "host": host_of(node), "pid": pid_of(rank), "device": self.device, "threads": 1,
            "unix_ns": self.unix_ns + START_NS, "mono_ns": START_NS, "mesh": dict(self.mesh), "passed_over": [],
            "place": dict(place),
        }  # fmt: skip

    def step(
        self, number: int, *, tokens: int, seconds: float, mfu: float, memory_bytes: float, end_s: float
    ) -> dict[str, Any]:
        """Return the event of a step of a rank. tokens: of all ranks."""
        return {
            "event": "step", "step": number, "loss": None, "loss_mean": None, "grad_norm_local": None,
            "grad_norm": None, "learning_rate": None, "tokens": tokens // self.world_size,
            "tokens_per_s": tokens / seconds, "mfu": mfu, "memory_bytes": int(memory_bytes), "loss_scale": None,
            "skipped": False, "sample_ids": [], "end_ns": to_ns(end_s),
        }  # fmt: skip

    def end(self, step: int, status: str) -> dict[str, Any]:
        """Return the last event of a rank."""
        return {"event": "end", "step": step, "status": status, "weights_sha256": None}

    # ---- the whole run -----------------------------------------------------------------------------------------------

    def write_launcher(self, code: int, exits: Iterable[dict[str, Any]] = ()) -> None:
        """Write what a launcher would have seen: the ranks of each node, their exits, and the end of the run."""
        hosts = range(self.num_nodes)
        nodes = [{"node": node, "host": host_of(node), "address": ""} for node in hosts]
        about = {"pid": _NO_PID, "nodes": nodes, "ranks_per_node": self.cluster.gpus_per_node, "restarts": 0}
        lines = [self.told("launch", START_NS, **about, program=self.command)]
        for node in hosts:
            ranks = [rank for rank, own in self.nodes.items() if own == node]
            world = {"ranks": ranks, "pids": list(map(pid_of, ranks)), "world_size": self.world_size}
            about = {"attempt": 0, "node": node, "node_rank": node, "master_addr": host_of(0), "master_port": 0}
            lines.append(self.told("world", START_NS, **about, **world))
        lines += [*exits, self.told("end", self.end_ns, code=code)]
        write_atomic(self.folder.launcher_events, _json_lines(lines))

    def told(self, event: str, at_ns: int, **fields: Any) -> dict[str, Any]:
        """Return an event of the launcher."""
        return {"event": event, "unix_ns": self.unix_ns + at_ns, **dict.fromkeys(LAUNCHER_FIELDS[event]), **fields}

    def write_run(self, layout: Mapping[str, Any], train: Mapping[str, Any], num_parameters: int) -> None:
        """Write run.json. layout, train: what the report shows as its configuration."""
        started = self._utc(START_NS)
        segment = {
            "world_size": self.world_size, "mesh": dict(self.mesh), "num_nodes": self.num_nodes,
            "device": self.device, "threads": 1, "from_step": 0, "host": host_of(0), "started": started,
        }  # fmt: skip
        content = {
            "format": FORMAT, "name": self.folder.path.name, "created": started, "argv": self.command,
            "config": {SIMULATED_LAYOUT: dict(layout), "train": dict(train)}, "num_parameters": num_parameters,
            "data": None, "segments": [segment], "simulated": True, "versions": {"python": platform.python_version()},
        }  # fmt: skip
        write_json(self.folder.run_json, content)

    def write_record(
        self, *, step: int, tokens: int, wall_s: float, failed: bool = False, error: dict[str, Any] | None = None
    ) -> None:
        """Write record.json, which says how the run ended."""
        content = {
            "format": FORMAT, "status": "failed" if failed else "completed", "step": step, "error": error,
            "ended": self._utc(self.end_ns), "starts": 1, "tokens": tokens, "wall_s": wall_s,
            "tokens_per_s": tokens / wall_s if wall_s else None,
        }  # fmt: skip
        write_json(self.folder.record_json, content)

    def _utc(self, at_ns: int) -> str:
        return dt.datetime.fromtimestamp((self.unix_ns + at_ns) / 1e9, dt.UTC).isoformat(timespec="seconds")


def pid_of(rank: int) -> int:
    """Return the process id of a simulated rank."""
    return _NO_PID + 1 + rank


def host_of(node: int) -> str:
    """Return the host name of a simulated node."""
    return f"simulated-{node}"


def to_ns(seconds: float) -> int:
    """Return a time of a simulation on the clock of its folder."""
    return START_NS + round(seconds * 1e9)


def _json_lines(lines: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)
