"""Which collectives a rank entered during a cell, when, and from which line.

torch's flight recorder lists every collective that a rank enters, also those inside a backward pass. It does not know
when gloo's ended, so the functions of torch.distributed are also timed, from their call to their return.
"""

from __future__ import annotations

import functools
import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from frog.launch.cells.messages import Call

_TIMED = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter"),
    *("reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "scatter", "barrier", "send", "recv"),
    *("isend", "irecv", "batch_isend_irecv", "monitored_barrier"),
    *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
)
_P2P = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}
_OWN_FILE = "<frog>"
"""The file of the timing functions in tracebacks, which observers do not take for the user's."""
_MOST_CALLS = 400
"""Most calls of a cell that are reported: the last ones."""


class CallRecorder:
    """Records the calls of one rank. line_of: returns the innermost line of a cell in this thread's stack."""

    def __init__(self, line_of: Callable[[Any], str]) -> None:
        self._line_of = line_of
        self._timed: list[dict[str, Any]] = []
        self._open: list[dict[str, Any]] = []
        self._since_ns = 0
        self.is_on = False
        for name in _TIMED:
            if hasattr(dist, name):
                self._wrap(name)

    def _wrap(self, name: str) -> None:
        function = getattr(dist, name)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self.is_on or self._open:  # a function of torch's inside another one
                return function(*args, **kwargs)
            noted = {"op": name, "start": time.time_ns(), "end": None, "line": self._line_of(sys._getframe(1))}
            noted.update(_facts(name, args, kwargs))
            self._open.append(noted)
            self._timed.append(noted)
            try:
                work = function(*args, **kwargs)
                noted["end"] = time.time_ns()
                noted["later"] = work is not None and not isinstance(work, bool)
                return work
            except BaseException:
                noted["end"], noted["failed"] = time.time_ns(), True
                raise
            finally:
                self._open.clear()

        timed.__code__ = timed.__code__.replace(  # type: ignore[attr-defined]
            co_filename=_OWN_FILE
        )
        for module in (dist, distributed_c10d):
            if getattr(module, name, None) is function:
                setattr(module, name, timed)

    def start(self) -> None:
        """Forget earlier calls, and record from now on."""
        self._timed.clear()
        self._open.clear()
        self._since_ns = time.time_ns()
        self.is_on = True

    def stop(self) -> list[Call]:
        """Return the calls since the start, in order."""
        self.is_on = False
        entered = [entry for entry in _entries() if entry.get("time_created_ns", 0) >= self._since_ns]
        timed = [call for call in self._timed[-_MOST_CALLS:] if call["op"] != "batch_isend_irecv"]
        calls: list[Call] = []
        for entry in entered[-_MOST_CALLS:]:
            owner = _owner(entry, timed)
            calls.append(_call(entry, owner))
        if not entered:  # another backend, or a version of torch without the recorder
            return [_timed_call(call, number) for number, call in enumerate(timed, start=1)]
        messages = [_timed_call(call, 0) for call in timed if call["op"] in _P2P and not call.get("used")]
        return sorted([*calls, *messages], key=lambda call: call.start_ns)


def _facts(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the size and the peer of a call, as far as its arguments show them."""
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
    facts: dict[str, Any] = {}
    if tensors:
        facts["bytes"] = tensors[0].numel() * tensors[0].element_size()
        facts["shape"] = f"{str(tensors[0].dtype).removeprefix('torch.')} {tuple(tensors[0].shape)}"
    if name in _P2P:
        peer = kwargs.get(_P2P[name], args[1] if len(args) > 1 else None)
        facts["peer"] = peer if isinstance(peer, int) else None
    return facts


def _entries() -> list[dict[str, Any]]:
    """Return the entries of gloo's and NCCL's flight recorders, in order of time."""
    entries: list[dict[str, Any]] = []
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(torch._C._distributed_c10d, name, None)
        recorded = json.loads(dump(True, False) or "{}") if dump else {}
        entries += recorded.get("entries") or []
    return sorted(entries, key=lambda entry: int(entry.get("time_created_ns") or 0))


def _owner(entry: dict[str, Any], timed: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the timed call in which a collective was entered."""
    at = entry["time_created_ns"]
    owners = [call for call in timed if call["start"] <= at and (call["end"] is None or at <= call["end"])]
    for call in owners:
        call["used"] = True
    return owners[-1] if owners else None


def _call(entry: dict[str, Any], owner: dict[str, Any] | None) -> Call:
    backend, _, op = str(entry.get("profiling_name", "")).rpartition(":")
    is_p2p = bool(entry.get("is_p2p"))
    sizes, dtypes = entry.get("input_sizes") or [], entry.get("input_dtypes") or []
    num_bytes = sum(math.prod(size) * _width(dtype) for size, dtype in zip(sizes, dtypes, strict=False))
    shape = f"{dtypes[0].lower()} {tuple(sizes[0])}" if sizes and dtypes else ""
    known = owner or {}
    ends = known.get("end") if not known.get("later") else None
    return Call(
        op=known["op"] if owner and "_object" not in owner["op"] else op or backend,
        group=str(entry["process_group"][0]),
        seq=entry["p2p_seq_id"] if is_p2p else entry["collective_seq_id"],
        p2p=is_p2p,
        payload_bytes=num_bytes or int(known.get("bytes", 0)),
        shape=known.get("shape", "") or shape,
        start_ns=int(known.get("start") or entry["time_created_ns"]) if owner else int(entry["time_created_ns"]),
        end_ns=ends,
        line=known.get("line", ""),
        done=bool(entry.get("retired")) and not known.get("failed"),
        peer=known.get("peer"),
        blocks=owner is not None and not owner.get("later"),
        members=members_of(str(entry["process_group"][0])),
    )


def _timed_call(call: dict[str, Any], number: int) -> Call:
    return Call(
        op=call["op"],
        seq=number,
        p2p=call["op"] in _P2P,
        payload_bytes=int(call.get("bytes", 0)),
        shape=call.get("shape", ""),
        start_ns=call["start"],
        end_ns=None if call.get("later") else call["end"],
        line=call["line"],
        done=not call.get("failed"),
        peer=call.get("peer"),
        blocks=not call.get("later"),
    )


_WIDTHS = {"double": 8, "long": 8, "half": 2, "bfloat16": 2, "short": 2, "byte": 1, "char": 1, "bool": 1}


def _width(dtype: str) -> int:
    """Return the bytes of one element: the recorder names types as C++ does."""
    return next((width for name, width in _WIDTHS.items() if name in dtype.lower()), 4)


def members_of(name: str) -> list[int]:
    """Return the global ranks of a process group of this rank; empty if it no longer exists."""
    world = distributed_c10d._world
    for group, own in list(world.pg_names.items()):
        if str(own) == name:
            return sorted(world.pg_group_ranks.get(group) or ())
    return []
