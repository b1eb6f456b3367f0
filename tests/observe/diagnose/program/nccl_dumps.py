"""Flight-recorder dumps as torch's NCCL backend writes them, in its documented format."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

SECOND = 10**9
Calls = list[tuple[str, int, str, int]]
"""Operation, elements, state and line of each call."""


def entry(number: int, op: str, size: int, state: str, line: int, group: str, version: str) -> dict[str, Any]:
    """Return a record of the ring buffer."""
    frames = [
        {
            "name": "all_reduce",
            "filename": "/opt/conda/lib/python3.10/site-packages/torch/distributed/c10d.py",
            "line": 9,
        },
        {"name": "train", "filename": "/home/ada/job/train.py", "line": line},
        {"name": "<module>", "filename": "/home/ada/job/train.py", "line": 200},
    ]
    done = state == "completed"
    old = version in ("2.0", "2.1")
    numbers = {"seq_id": number} if old else {"collective_seq_id": number, "p2p_seq_id": 0, "op_id": number}
    return {
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": (group, "default_pg" if group == "0" else "undefined"),
        **numbers,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": 1_700_000_000 * SECOND + number * SECOND,
        "input_sizes": ((size,),),
        "output_sizes": ((size,),),
        **({} if old else {"input_dtypes": ["Float"], "output_dtypes": ["Float"], "is_p2p": False}),
        "state": state,
        "time_discovered_started_ns": None if state == "scheduled" else number * SECOND,
        "time_discovered_completed_ns": number * SECOND if done else None,
        "retired": done,
        "timeout_ms": 600_000,
        "frames": frames,
    }


def dump(calls: Calls, ranks: list[int], group: str = "0", version: str = "2.10") -> dict[str, Any]:
    """Return a rank's dump."""
    entries = [entry(number, *call, group, version) for number, call in enumerate(calls, 1)]
    done = sum(call[2] == "completed" for call in calls)
    status = {"last_enqueued_collective": len(calls), "last_started_collective": -1, "last_completed_collective": done}
    description = "default_pg" if group == "0" else "undefined"
    return {
        "version": version,
        "pg_config": {group: {"name": group, "desc": description, "ranks": str(ranks)}},
        "pg_status": {group: status},
        "entries": entries,
    }


def write_dumps(folder: Path, ranks: dict[int, Calls], name: str = "nccl_trace_rank_", **fields: Any) -> None:
    """Write a pickle per rank."""
    for rank, calls in ranks.items():
        content = dump(calls, fields.get("members", sorted(ranks)), version=fields.get("version", "2.10"))
        (folder / f"{name}{rank}").write_bytes(pickle.dumps(content, 2))
