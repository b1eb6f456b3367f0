"""The output of a profiled run: the traces for a viewer, and the page about them."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator
from typing import Any

from frog.core.files import write_atomic
from frog.core.runs.event_schema import CollectiveEvent, SpanEvent, StartEvent
from frog.core.runs.folder import RunFolder
from frog.train.profile.numbers import Profile, read_profile
from frog.train.profile.page import profile_page
from frog.train.profile.trace import TraceEvent

_LARGE_BYTES = 32 << 20
_DEVICES = 1000
"""The process number of the first rank's GPUs; the next rank's start at twice that."""

_FLOWS = ("s", "t", "f")


def write_profile(folder: RunFolder) -> str:
    """Write the traces for a viewer and the page; return the page."""
    profile = read_profile(folder)
    write_traces(profile)
    page = profile_page(profile)
    write_atomic(folder.profile / "summary.md", page)
    return page


def write_traces(profile: Profile) -> None:
    """Rewrite each rank's trace with the rank's name and its collectives, and write one trace of all ranks.

    torch's own trace shows a collective on a thread of the communication library, without its mesh axis.
    """
    together: list[TraceEvent] = []
    base_ns = min(file.base_ns for file in profile.files.values())
    for rank, file in profile.files.items():
        own = list(_rank_trace(profile, rank, base_ns))
        data = _encode({**file.about, "baseTimeNanoseconds": base_ns}, own)
        path = profile.folder.trace(rank)
        path.unlink()
        if len(data) > _LARGE_BYTES:
            write_atomic(path.with_suffix(".json.gz"), gzip.compress(data, 6))
        else:
            write_atomic(path, data)
        together += own
    about = {"displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns}
    write_atomic(profile.folder.profile / "trace.json.gz", gzip.compress(_encode(about, together), 6))


def _encode(about: dict[str, Any], events: list[TraceEvent]) -> bytes:
    return json.dumps({**about, "traceEvents": events}, separators=(",", ":")).encode()


def _rank_trace(profile: Profile, rank: int, base_ns: int) -> Iterator[TraceEvent]:
    """Make the rank the process, so that several traces can be combined; its GPUs are processes next to it."""
    file = profile.files[rank]
    start = profile.run.ranks[rank].of(StartEvent)[-1]
    place = ", ".join(f"{axis} {at}" for axis, at in start.place.items() if start.mesh[axis] > 1)
    name = f"rank {rank}{f' ({place})' if place else ''}, pid {start.pid}"
    for kind, args in (("process_name", {"name": name}), ("process_sort_index", {"sort_index": rank})):
        yield {"ph": "M", "name": kind, "pid": rank, "tid": 0, "args": args}
    for event in itertools.chain(file.events, _collectives(profile, rank)):
        pid = event.get("pid")
        if not isinstance(pid, int) or (pid == start.pid and event["name"].startswith("process_")):
            continue
        changed: dict[str, Any] = {**event, "pid": rank if pid == start.pid else _DEVICES * (rank + 1) + pid}
        if "ts" in event:
            changed["ts"] = event["ts"] + (file.base_ns - base_ns) / 1e3
        if event["ph"] in _FLOWS:
            changed["id"] = (rank << 32) + event["id"]
        yield changed


def _collectives(profile: Profile, rank: int) -> Iterator[TraceEvent]:
    """Yield a rank's collectives in the recorded steps, from its events, on the clock of its trace."""
    trace, events = profile.traces[rank], profile.run.ranks[rank]
    spans = [span for span in events.of(SpanEvent) if span.step in trace.steps]
    pid = events.of(StartEvent)[-1].pid
    # A phase's mark starts just inside its span. An interruption between the two can only make them differ by more.
    offset_us = min(mark - span.start_ns / 1e3 for (_, (mark, _)), span in zip(trace.phases, spans, strict=True))
    for event in events.of(CollectiveEvent):
        if event.step in trace.steps:
            same = {"cat": "collective", "id2": {"local": hex(event.seq)}, "pid": pid, "tid": 0}
            same["name"] = f"{event.op} over {event.axis}"
            args = {"payload_bytes": event.payload_bytes, "seq": event.seq, "blocked_us": event.wait_ns / 1e3}
            yield {"ph": "b", **same, "ts": event.start_ns / 1e3 + offset_us, "args": args}
            yield {"ph": "e", **same, "ts": event.end_ns / 1e3 + offset_us}
