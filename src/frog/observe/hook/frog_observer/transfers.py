"""The message between two ranks for which a thread waits in torch's `send` or `recv`.

torch's recorder for gloo has no messages. So this reads the variables of torch's own function, but only when evidence
is asked for.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

_PEERS = {"send": "dst", "recv": "src"}
"""The functions, and their variable with the other rank."""


def transfer_of(stack: list[FrameType]) -> dict[str, Any] | None:
    """Return the message for which a thread waits; None if it waits for none. stack: innermost first."""
    frame = next((one for one in stack if _is_transfer(one)), None)
    if frame is None:
        return None
    try:
        return _fields(frame.f_code.co_name, frame.f_locals)
    except Exception:  # another version of torch
        return None


def _is_transfer(frame: FrameType) -> bool:
    return frame.f_code.co_name in _PEERS and frame.f_code.co_filename.endswith("distributed_c10d.py")


def _fields(op: str, values: dict[str, Any]) -> dict[str, Any]:
    tensor = values["tensor"]
    return {
        "op": op,
        "peer": _peer(values, _PEERS[op]),
        "tag": values.get("tag") or 0,
        "size": list(tensor.shape),
        "dtype": str(tensor.dtype).rpartition(".")[2],
    }


def _peer(values: dict[str, Any], side: str) -> int | None:
    """Return the other rank; None for a message from any rank. Functions may give its number within their group."""
    if values.get(side) is not None:
        return int(values[side])
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    members = world.pg_group_ranks[values.get("group") or world.default_pg]
    return next((rank for rank, number in members.items() if number == values.get(f"group_{side}")), None)
