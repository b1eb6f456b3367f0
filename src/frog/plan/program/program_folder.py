"""Write the planned step of a program as a run folder, marked as simulated: its phases and collectives on a timeline.

The folder's ranks are those that ran, numbered from 0 in their order: each stands for all ranks like it.
"""

from __future__ import annotations

import datetime as dt
import json
import platform
import time
from pathlib import Path
from typing import Any

from frog.core.config.load import SIMULATED_LAYOUT
from frog.core.files import write_atomic, write_json
from frog.core.runs.folder import RunFolder
from frog.core.runs.launcher_schema import LAUNCHER_FIELDS
from frog.core.runs.record import FORMAT
from frog.plan.program.program_memory import memory_of
from frog.plan.program.program_text import ProgramPlan
from frog.plan.program.program_time import Trace

_START_NS = 10**9
_NO_PID = 2**22
"""Above the process ids of Linux, so that no process is taken for a simulated rank."""


def write_program_folder(path: Path, plan: ProgramPlan, command: list[str]) -> None:
    """Write the folder of a plan. `command` is what the user typed."""
    folder = RunFolder(path)
    folder.events.mkdir(parents=True)
    folder.heartbeats.mkdir()
    total_s = plan.time.total
    end_ns = _ns(total_s)
    about = _About(plan, time.time_ns() - end_ns)
    for number, (rank, spent) in enumerate(plan.times.items()):
        lines = [about.start(number, rank), *_events(spent.trace), about.step(rank), about.end()]
        write_atomic(folder.rank_events(number), "".join(json.dumps(line) + "\n" for line in lines))
    write_atomic(folder.launcher_events, "".join(json.dumps(line) + "\n" for line in about.launcher(command)))
    write_json(folder.run_json, about.run(path.name, command))
    record = {
        "format": FORMAT, "status": "completed", "step": 1, "error": None, "ended": about.utc(end_ns), "starts": 1,
        "tokens": about.tokens, "wall_s": total_s, "tokens_per_s": about.tokens / total_s,
    }  # fmt: skip
    write_json(folder.record_json, record)


class _About:
    """The facts of a plan, as the events of a run have them."""

    def __init__(self, plan: ProgramPlan, unix_ns: int) -> None:
        self.plan, self.unix_ns = plan, unix_ns
        self.size = len(plan.times)
        self.mesh = {"pp": self.size, "dp": 1, "cp": 1, "tp": 1}
        self.device = f"simulated {plan.cluster.gpu.name}"
        self.tokens = plan.tokens
        self.nodes = sorted({rank // plan.cluster.gpus_per_node for rank in plan.times})

    def start(self, number: int, rank: int) -> dict[str, Any]:
        node = self.nodes.index(rank // self.plan.cluster.gpus_per_node)
        return {
            "event": "start", "step": 0, "rank": number, "world_size": self.size,
            "local_rank": rank % self.plan.cluster.gpus_per_node, "node_rank": node, "host": _host(node),
            "pid": _NO_PID + 1 + number, "device": self.device, "threads": 1, "unix_ns": self.unix_ns + _START_NS,
            "mono_ns": _START_NS, "mesh": self.mesh, "passed_over": [],
            "place": {"pp": number, "dp": 0, "cp": 0, "tp": 0},
        }  # fmt: skip

    def step(self, rank: int) -> dict[str, Any]:
        plan = self.plan
        return {
            "event": "step", "step": 1, "loss": None, "loss_mean": None, "grad_norm_local": None, "grad_norm": None,
            "learning_rate": None, "tokens": self.tokens // self.size, "tokens_per_s": self.tokens / plan.time.total,
            "mfu": plan.mfu, "memory_bytes": int(memory_of(plan.of_rank[rank]).total), "loss_scale": None,
            "skipped": False, "sample_ids": [], "end_ns": _ns(plan.time.total),
        }  # fmt: skip

    def end(self) -> dict[str, Any]:
        return {"event": "end", "step": 1, "status": "completed", "weights_sha256": None}

    def launcher(self, command: list[str]) -> list[dict[str, Any]]:
        """Return what a launcher would have seen."""
        per_node = self.plan.cluster.gpus_per_node
        nodes = [{"node": node, "host": _host(node), "address": ""} for node in range(len(self.nodes))]
        launch = {"pid": _NO_PID, "nodes": nodes, "ranks_per_node": per_node, "program": command, "restarts": 0}
        lines = [self._told("launch", _START_NS, **launch)]
        for node, real in enumerate(self.nodes):
            ranks = [number for number, rank in enumerate(self.plan.times) if rank // per_node == real]
            world = {"ranks": ranks, "pids": [_NO_PID + 1 + rank for rank in ranks], "world_size": self.size}
            where = {"attempt": 0, "node": node, "node_rank": node, "master_addr": _host(0), "master_port": 0}
            lines.append(self._told("world", _START_NS, **where, **world))
        return [*lines, self._told("end", _ns(self.plan.time.total), code=0)]

    def run(self, name: str, command: list[str]) -> dict[str, Any]:
        started = self.utc(_START_NS)
        segment = {
            "world_size": self.size, "mesh": self.mesh, "num_nodes": len(self.nodes), "device": self.device,
            "threads": 1, "from_step": 0, "host": _host(0), "started": started,
        }  # fmt: skip
        plan = {
            "program": self.plan.program, "cluster": self.plan.cluster_name, "gpus": self.plan.num_gpus,
            "ranks": list(self.plan.times),
        }  # fmt: skip
        parameters = {facts["parameters"] for facts in self.plan.of_rank.values()}
        return {
            "format": FORMAT, "name": name, "created": started, "argv": command,
            "config": {SIMULATED_LAYOUT: plan, "train": {"steps": 1}}, "num_parameters": max(parameters),
            "data": None, "segments": [segment], "simulated": True, "versions": {"python": platform.python_version()},
        }  # fmt: skip

    def utc(self, at_ns: int) -> str:
        return dt.datetime.fromtimestamp((self.unix_ns + at_ns) / 1e9, dt.UTC).isoformat(timespec="seconds")

    def _told(self, event: str, at_ns: int, **fields: Any) -> dict[str, Any]:
        return {"event": event, "unix_ns": self.unix_ns + at_ns, **dict.fromkeys(LAUNCHER_FIELDS[event]), **fields}


def _events(trace: Trace) -> list[dict[str, Any]]:
    """Return the phases and collectives of a rank."""
    begin = {"phase": "data", "micro": 0, "start_ns": _START_NS, "end_ns": _START_NS}
    events: list[dict[str, Any]] = [{"event": "span", "step": 1, **begin}]  # a rank may wait before it computes
    for span in trace.spans:
        times = {"start_ns": _ns(span.start), "end_ns": _ns(span.end)}
        events.append({"event": "span", "step": 1, "phase": span.phase, "micro": span.micro, **times})
    for seq, call in enumerate(sorted(trace.calls, key=lambda call: call.start)):
        start, end = _ns(call.start), _ns(call.end)
        about = {"op": call.op, "axis": call.axis, "payload_bytes": int(call.num_bytes), "seq": seq}
        waits = min(end - start, round(call.waits * 1e9))
        events.append({"event": "collective", "step": 1, **about, "start_ns": start, "end_ns": end, "wait_ns": waits})
    return events


def _host(node: int) -> str:
    return f"simulated-{node}"


def _ns(seconds: float) -> int:
    return _START_NS + round(seconds * 1e9)
