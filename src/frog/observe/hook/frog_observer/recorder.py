"""What torch knows of its collectives: its flight recorder and the tables of torch.distributed.

Never imports torch: before the program does, there is nothing to record. The functions that return entries may block
if a GPU hangs, since torch then asks CUDA for the state of each; call them where that does no harm.
"""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

from . import frames

_RECORDERS = (("_dump_fr_trace_json", "_dump_fr_trace"), ("_dump_nccl_trace_json", "_dump_nccl_trace"))
"""The recorders of gloo and of NCCL, without and with frames: functions that differ between versions of torch."""
_GLOO = _RECORDERS[0][0]

_MOST_ENTRIES, _MOST_FRAMES, _MOST_TENSORS = 2000, 8, 8


class Recorder:
    """Reads torch's tables, and remembers those that torch deletes when the program destroys its groups."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[str, Any]] = {}
        self.backend: str | None = None
        self._known: tuple[str, ...] = ()
        self._names: dict[tuple[int, str], str] = {}
        self._last: dict[str, tuple[int, int]] = {}
        """The numbers of collectives that each group of gloo had enqueued and completed at the last call."""

    def counts(self, exact: bool = False) -> list[dict[str, Any]]:
        """Return how many collectives each group has enqueued and completed. Takes 40 microseconds, without CUDA.

        If a group of gloo seems to wait, its entries tell; torch takes up to 0.2 s to return them, while the program
        is in a step. So they are read only if the group has not enqueued anything since the last call, or if `exact`.
        """
        counts = []
        for number, (dump, _) in enumerate(_RECORDERS):
            status = _dump(dump, False).get("pg_status") or {}
            if any((number, key) not in self._names for key in status):
                self._learn_names(number, _dump(dump, True))
            for key in sorted(status, key=str):
                name = self._names.setdefault((number, key), str(key))
                enqueued, completed = (_count(status[key], what) for what in ("enqueued", "completed"))
                if dump == _GLOO:
                    last_enqueued, last_completed = self._last.get(key, (0, 0))
                    if enqueued == last_enqueued:
                        completed = max(completed, last_completed)
                    if completed < enqueued and (exact or enqueued == last_enqueued):
                        completed = max(completed, _retired(_dump(dump, True), str(key), enqueued))
                    self._last[key] = enqueued, completed
                counts.append({"group": name, "enqueued": enqueued, "completed": completed})
        return counts

    def look_at_groups(self) -> None:
        """Remember the members of new groups and the backend of the first.

        Holds a process group only if the names have changed: the thread that drops the last reference destroys it.
        """
        world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
        names = () if world is None else tuple(world.pg_names.values())
        if world is None or names == self._known:
            return
        for group, name in list(world.pg_names.items()):
            ranks = sorted(world.pg_group_ranks.get(group) or ())
            if self.backend is None:
                self.backend = str(world.pg_map[group][0])
            self.groups[str(name)] = {"description": str(getattr(group, "group_desc", "")), "ranks": ranks}
        self._known = names

    def collectives(self, with_frames: bool) -> dict[str, Any]:
        """Return the fields of collectives.json that come from torch."""
        self.look_at_groups()
        status = self.counts(exact=True)  # not after the entries: it would count collectives that they lack
        recorded = [_dump(plain, True) if not with_frames else _dump_frames(full) for plain, full in _RECORDERS]
        for number, dump in enumerate(recorded):
            self._learn_names(number, dump)
        raw = [entry for dump in recorded for entry in dump.get("entries") or ()]
        raw.sort(key=lambda entry: entry.get("time_created_ns") or 0)
        return {
            "frames": with_frames,
            "groups": self.groups,
            "status": status,
            "entries": [_entry(item) for item in raw[-_MOST_ENTRIES:]],
        }

    def _learn_names(self, number: int, recorded: dict[str, Any]) -> None:
        """Remember the names of groups, which the recorder counts under numbers that differ between ranks."""
        for entry in recorded.get("entries") or ():
            self._names[number, str(entry.get("pg_id"))] = str(entry["process_group"][0])


def num_enqueued() -> int:
    """Return how many collectives this rank has enqueued in all groups."""
    statuses = (_dump(name, False).get("pg_status") or {} for name, _ in _RECORDERS)
    return sum(_count(status, "enqueued") for groups in statuses for status in groups.values())


def torch_version() -> str | None:
    """Return torch's version if the program has imported it."""
    version = getattr(sys.modules.get("torch"), "__version__", None)
    return None if version is None else str(version)


def _dump(name: str, collectives: bool) -> dict[str, Any]:
    """Return one recorder's content without frames; empty if torch is not loaded or has no such recorder."""
    dump = getattr(sys.modules.get("torch._C._distributed_c10d"), name, None)
    recorded = json.loads(dump(collectives, False) or "{}") if dump else {}
    return recorded if isinstance(recorded, dict) else {}


def _dump_frames(name: str) -> dict[str, Any]:
    """Return one recorder's content with frames.

    To translate frames of compiled code, torch would import its compiler, which takes a second and waits for the
    thread that is importing something else. An attribute in its place prevents this.
    """
    dump = getattr(sys.modules.get("torch._C._distributed_c10d"), name, None)
    torch: Any = sys.modules.get("torch")
    if dump is None or torch is None:
        return {}
    stand_in = None if "_inductor" in vars(torch) else _NoCompiler()
    if stand_in is not None:
        torch._inductor = stand_in
    try:
        recorded = pickle.loads(dump(True, True, False))
    finally:
        if stand_in is not None and vars(torch).get("_inductor") is stand_in:
            del torch._inductor
    return recorded if isinstance(recorded, dict) else {}


class _NoCompiler:
    """Stands for `torch._inductor` while it is not loaded."""


def _count(status: dict[str, Any], what: str) -> int:
    """Return a number of collectives; torch writes it as text, and -1 for none."""
    return max(0, int(status.get(f"last_{what}_collective", -1)))


def _retired(recorded: dict[str, Any], group: str, enqueued: int) -> int:
    """Return how many of a group's first collectives gloo has retired; 0 if the last one has no entry yet.

    Each of gloo's two threads writes the number of the collective that it completed, and the slower one may write last.
    The status then stays below the truth until the next collective.
    """
    entries = [
        entry for entry in recorded.get("entries") or () if str(entry.get("pg_id")) == group and not entry.get("is_p2p")
    ]
    active = [entry["collective_seq_id"] for entry in entries if not entry.get("retired")]
    if enqueued not in [entry["collective_seq_id"] for entry in entries]:
        return 0
    return int(min(active, default=enqueued + 1)) - 1


def _entry(raw: dict[str, Any]) -> dict[str, Any]:
    """Return an entry in the form of collectives.json."""
    backend, _, op = str(raw.get("profiling_name", "")).rpartition(":")
    p2p = bool(raw.get("is_p2p"))
    stack = [
        {"file": frames.full_path(frame["filename"]), "line": frame["line"], "function": frame["name"]}
        for frame in raw.get("frames") or ()
        if frames.is_user_file(frame["filename"])
    ][:_MOST_FRAMES]
    completed = raw.get("state") == "completed"
    return {
        "group": str(raw["process_group"][0]),
        "seq": raw["p2p_seq_id"] if p2p else raw["collective_seq_id"],
        "op": op,
        "backend": backend,
        "p2p": p2p,
        "sizes": raw.get("input_sizes", [])[:_MOST_TENSORS],
        "dtypes": raw.get("input_dtypes", [])[:_MOST_TENSORS],
        "created_unix_ns": raw.get("time_created_ns") or 0,
        "started_unix_ns": raw.get("time_discovered_started_ns") or None,
        "completed_unix_ns": raw.get("time_discovered_completed_ns") or None,
        # gloo's entries never leave the state "scheduled"; a retired one of NCCL may have timed out
        "done": completed or (bool(raw.get("retired")) and backend != "nccl"),
        "line": stack[0] if stack else None,
        "stack": stack,
    }
