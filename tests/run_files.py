"""Complete, valid files of a run folder, for tests that change a few fields."""

from __future__ import annotations

from typing import Any

from frog.core.runs.record import FORMAT


def run_json(**changes: Any) -> dict[str, Any]:
    """Return the run.json of a run that has not started."""
    content = {
        "format": FORMAT, "name": "run", "created": "2026-11-21T04:12:00+00:00", "argv": ["frog", "train"],
        "config": {}, "num_parameters": 1000, "data": None, "versions": {}, "segments": [],
    }  # fmt: skip
    return content | changes


def segment(**changes: Any) -> dict[str, Any]:
    """Return one of run.json's segments."""
    content = {
        "world_size": 1, "mesh": {}, "num_nodes": 1, "device": "cpu", "threads": 1, "from_step": 0, "host": "pond",
        "started": "2026-11-21T04:12:00+00:00",
    }  # fmt: skip
    return content | changes


def record_json(**changes: Any) -> dict[str, Any]:
    """Return the record.json of a completed run."""
    content = {
        "format": FORMAT, "status": "completed", "step": 8, "error": None, "ended": "2026-11-21T04:13:10+00:00",
    }  # fmt: skip
    return content | changes


def beat(**changes: Any) -> dict[str, Any]:
    """Return a heartbeat."""
    content = {
        "rank": 1, "pid": 2**22 + 1, "node_rank": 0, "host": "pond", "attempt": 0, "world_size": 2, "timeout_s": 0.0,
        "status": "running", "step": 3, "phase": "reduce", "micro": 0, "phase_ns": 0, "num_collectives": 0, "open": [],
        "beat_ns": 0, "unix_ns": 0,
    }  # fmt: skip
    return content | changes


_EVENTS: dict[str, dict[str, Any]] = {
    "start": {
        "rank": 0, "world_size": 1, "local_rank": 0, "node_rank": 0, "host": "pond", "pid": 2**22 + 1, "device": "cpu",
        "threads": 1, "step": 0, "unix_ns": 0, "mono_ns": 0, "mesh": {}, "place": {}, "passed_over": [],
    },
    "span": {"step": 1, "phase": "data", "micro": 0, "start_ns": 0, "end_ns": 0},
    "collective": {
        "step": 1, "op": "all_reduce", "axis": "dp", "payload_bytes": 4, "seq": 0, "start_ns": 0, "end_ns": 0,
        "wait_ns": 0,
    },
    "step": {
        "step": 1, "loss": 1.0, "loss_mean": 1.0, "grad_norm_local": None, "grad_norm": 1.0, "learning_rate": 0.1,
        "tokens": 1, "tokens_per_s": 1.0, "mfu": None, "memory_bytes": 1, "loss_scale": None, "skipped": False,
        "sample_ids": [], "end_ns": 0,
    },
    "launch": {
        "unix_ns": 0, "pid": 2**22 + 1, "nodes": [], "ranks_per_node": 1, "program": ["x"], "restarts": 0,
        "network": None,
    },
    "commit": {"step": 1, "payload_bytes": 1, "write_ns": 1},
}  # fmt: skip


def event(kind: str, **changes: Any) -> dict[str, Any]:
    """Return an event of a rank or of the launcher."""
    return {"event": kind} | _EVENTS[kind] | changes
