"""The run folder of a program whose ranks wait for each other, as a launcher and observers leave it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from core.runs.test_observed_files import STATUS, write

from frog.core.runs.folder import RunFolder
from frog.core.runs.observed import Status
from frog.core.runs.positions import PositionWriter
from frog.core.runs.record import FORMAT
from frog.core.schema import decode

START_NS = 1_750_000_000 * 10**9
SECOND = 10**9
SOURCE = (
    "import torch.distributed as dist\nif rank == 0:\n    dist.barrier()\nelse:\n    dist.all_reduce(x)\nprint(1)\n"
)
NAME = "prog.py"


def status_at(second: float, rank: int, line: int, called: int, done: int, cwd: Path, **fields: Any) -> dict[str, Any]:
    """Return a rank's status: at a line of the program, with so many collectives called and done."""
    return {
        **STATUS,
        "rank": rank,
        "pid": 4_000_000 + rank,
        "started_unix_ns": START_NS,
        "unix_ns": START_NS + round(second * SECOND),
        "cpu_s": second / 2,
        "rss_bytes": (100 + rank) << 20,
        "groups": [{"group": "0", "enqueued": called, "completed": done}],
        "line": {"file": f"{cwd}/{NAME}", "line": line, "function": "<module>"},
        "no_sync": None,
        **fields,
    }


def call(seq: int, op: str, line: int, second: float, cwd: Path, *, done: bool = False) -> dict[str, Any]:
    """Return a collective as in collectives.json."""
    place = {"file": f"{cwd}/{NAME}", "line": line, "function": "<module>"}
    times = {"created_unix_ns": START_NS + round(second * SECOND)}
    size = {"sizes": [[4]], "dtypes": ["Float"]} if op != "barrier" else {}
    return {"group": "0", "seq": seq, "op": op, "done": done, "line": place, "backend": "gloo", **times, **size}


def hung_program(path: Path, *, ended: bool = True, num_ranks: int = 4) -> RunFolder:
    """Write a run: each rank finishes a collective at second 2; from 3 on, rank 0 waits in a barrier for the others,
    which wait in an all_reduce. The launcher ends them at second 30; or it is this process, and the run goes on.
    """
    folder, cwd = RunFolder(path), path.parent
    cwd.mkdir(parents=True, exist_ok=True)
    (cwd / NAME).write_text(SOURCE)
    program = {"command": [NAME], "kind": "script", "cwd": str(cwd), "environment": {}}
    run = {"format": FORMAT, "name": path.name, "created": "2026-11-21T04:12:00+00:00", "argv": ["frog", "run"]}
    rest = {"config": {}, "num_parameters": 0, "data": None, "versions": {}, "segments": [], "program": program}
    folder.events.mkdir(parents=True)
    folder.run_json.write_text(json.dumps({**run, **rest}))
    writer = PositionWriter(path, 0)
    for rank in range(num_ranks):
        write(path, "status.json", status_at(0.5, rank, 1, 0, 0, cwd, groups=[]), rank=rank)
    moments = [(0.5, 1, 0, 0), (2.0, 2, 1, 1), (3.0, 0, 2, 1), (29.0, 0, 2, 1)]
    for second, at, called, done in moments:
        statuses = {}
        for rank in range(num_ranks):
            line = at or (3 if rank == 0 else 5)
            said = status_at(second, rank, line, called, done, cwd, **({} if called else {"groups": []}))
            statuses[rank] = decode(json.dumps(said).encode(), Status, "status")
            write(path, "status.json", said, rank=rank)
        writer.look(statuses)
    for rank in range(num_ranks):
        calls = [call(1, "all_reduce", 5, 1.5, cwd, done=True)]
        calls.append(call(2, "barrier", 3, 3, cwd) if rank == 0 else call(2, "all_reduce", 5, 3, cwd))
        groups = {"0": {"description": "default_pg", "ranks": list(range(num_ranks))}}
        head = {"format": 1, "rank": rank, "pid": 7, "unix_ns": START_NS + 29 * SECOND, "frames": True}
        counts = [{"group": "0", "enqueued": 2, "completed": 1, "backend": "gloo"}]
        write(path, "collectives.json", {**head, "groups": groups, "status": counts, "entries": calls}, rank=rank)
    _write_launcher(folder, num_ranks, ended)
    if ended:
        error = {"type": "HangError", "message": "hang", "rank": 0, "step": 0}
        record = {"format": FORMAT, "status": "failed", "step": 0, "error": error, "ended": "2026-11-21T04:13:00+00:00"}
        folder.record_json.write_text(json.dumps(record))
    return folder


def _write_launcher(folder: RunFolder, num_ranks: int, ended: bool) -> None:
    node = {"node": 0, "host": "node0", "address": ""}
    world = {"attempt": 0, "node": 0, "node_rank": 0, "ranks": list(range(num_ranks)), "world_size": num_ranks}
    lost = {"attempt": 0, "node": 0, "node_rank": 0, "error": None, "traceback": None, "left": []}
    roles = dict.fromkeys(map(str, range(num_ranks)), "waits")
    stall = {"attempt": 0, "kind": "hang", "still_s": 27.0, "roles": roles, "text": "hang: nothing moves\n  all wait"}
    launch = {
        "pid": 4_194_303 if ended else os.getpid(),
        "nodes": [node],
        "ranks_per_node": num_ranks,
        "program": [NAME],
        "restarts": 0,
    }
    events: list[tuple[float, str, dict[str, Any]]] = [
        (0, "launch", {**launch, "network": None}),
        (0.1, "world", {**world, "master_addr": "h", "master_port": 1, "pids": list(range(1, num_ranks + 1))}),
    ]
    if ended:
        events += [
            (30, "stall", {**stall, "ends": True, "stopped": False}),
            *((30.5, "exit", {**lost, "rank": rank, "pid": rank + 1, "code": -9}) for rank in range(num_ranks)),
            (31, "end", {"code": 137, "network": None}),
        ]
    lines = [
        json.dumps({"event": event, "unix_ns": START_NS + round(at * SECOND), **fields}) for at, event, fields in events
    ]
    folder.launcher_events.write_text("\n".join(lines) + "\n")
