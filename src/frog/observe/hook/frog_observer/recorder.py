"""What torch knows of its collectives: the flight recorder and the tables of torch.distributed.

Never imports torch: before the program does, there is nothing to record.
"""

from __future__ import annotations

import json
import sys
from typing import Any

_BACKENDS = (("_dump_fr_trace_json", "_dump_fr_trace"), ("_dump_nccl_trace_json", "_dump_nccl_trace"))
"""The recorders of gloo and of NCCL: functions of torch._C._distributed_c10d, which differ between versions."""


def counts() -> list[dict[str, Any]]:
    """Return how many collectives each group has enqueued and completed. Takes 40 microseconds; makes no CUDA call."""
    found = []
    for name, _ in _BACKENDS:
        recorded = _dump(name, False)
        for group, status in sorted((recorded.get("pg_status") or {}).items()):
            enqueued, completed = (_count(status, key) for key in ("enqueued", "completed"))
            found.append({"group": str(group), "enqueued": enqueued, "completed": completed})
    return found


def _dump(name: str, collectives: bool) -> dict[str, Any]:
    """Return one recorder's content without frames; empty if torch has no such recorder or is not loaded."""
    module = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(module, name, None)
    if dump is None:
        return {}
    recorded = json.loads(dump(collectives, False) or "{}")
    return recorded if isinstance(recorded, dict) else {}


def _count(status: dict[str, Any], key: str) -> int:
    """Return a number of collectives; torch writes it as text, and -1 for none."""
    return max(0, int(status.get(f"last_{key}_collective", -1)))


def versions() -> tuple[str | None, str | None]:
    """Return torch's version and the backend of the default process group, if they are known yet."""
    torch = sys.modules.get("torch")
    version = getattr(torch, "__version__", None)
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(distributed, "_world", None)
    group = getattr(world, "default_pg", None)
    entry = world.pg_map.get(group) if world is not None and group is not None else None
    return (None if version is None else str(version)), (None if entry is None else str(entry[0]))
