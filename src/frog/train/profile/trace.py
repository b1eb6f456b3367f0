"""Read one rank's Chrome trace from torch.profiler: what ran in its recorded steps, and for how long.

Units: microseconds on the trace's own clock, which the ranks of one machine share.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from frog.core.errors import RunError
from frog.core.schema import Amount, Natural, Typed, convert, read_bounded

Interval = tuple[float, float]
TraceEvent = dict[str, Any]

_STEP = re.compile(r"frog::step (\d+)")
_PHASE = re.compile(r"frog::(\w+)")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_TRANSFER = ("gloo:", "nccl:")
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
_LINEAR = "mkldnn::_linear_pointwise"
_COMPILED = "## Call CompiledFxGraph"
_COMMUNICATION = ("c10d::", "_c10d_functional::")
_NO_WORK = ("autograd", "torch", "c10d", "_c10d_functional")
"""Namespaces of operators whose own time is not arithmetic: the engine, which runs Python's hooks; communication."""


_MOST_BYTES = 1 << 31
"""Limit of a decompressed trace. Traces of a few steps have some megabytes, those of large models hundreds."""


class _Arguments(Typed, frozen=True):
    input_dims: list[Any] = msgspec.field(name="Input Dims", default_factory=list)
    input_type: list[str] = msgspec.field(name="Input type", default_factory=list)


class _Span(Typed, frozen=True):
    """An event with a duration; only the fields that are used."""

    name: str
    ts: float
    tid: int | str
    dur: Amount = 0.0
    cat: str | None = None
    args: _Arguments = msgspec.field(default_factory=_Arguments)


class _About(Typed, frozen=True):
    traceEvents: list[dict[str, Any]]
    baseTimeNanoseconds: Natural = 0


class TraceFile(NamedTuple):
    """A trace as it was written."""

    events: list[TraceEvent]
    about: dict[str, Any]
    """The fields of the file next to the events."""

    @property
    def base_ns(self) -> int:
        """The origin of the time stamps."""
        return int(self.about.get("baseTimeNanoseconds", 0))


@dataclass(frozen=True)
class OperatorCall:
    """One call of an operator on the training thread."""

    name: str
    whole_us: float
    own: tuple[Interval, ...]
    """The intervals in which it ran itself, without the operators that it called."""
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of its tensor inputs."""
    dtype: str
    communicates: bool
    """True if it called communication, and so may have waited."""

    @property
    def self_us(self) -> float:
        return sum(end - start for start, end in self.own)

    @property
    def is_work(self) -> bool:
        """True if it is `namespace::operator` of a namespace that computes, and does nothing else."""
        namespace, colons, _ = self.name.partition("::")
        return bool(colons) and namespace not in _NO_WORK and not self.communicates

    @property
    def matrices(self) -> list[tuple[int, ...]]:
        """The input shapes that are matrices, or batches of them."""
        return [shape for shape in self.shapes if len(shape) >= 2]

    @property
    def is_product(self) -> bool:
        """True if it multiplies matrices."""
        return self.name in (*_PRODUCTS, _LINEAR) and len(self.matrices) >= 2

    @property
    def flops(self) -> float:
        """Operations of a product: a multiply-add counts as two."""
        if self.name == _LINEAR:  # x (..., k) and a weight (n, k)
            return 2.0 * math.prod(self.matrices[0]) * self.matrices[1][0]
        return 2.0 * math.prod(self.matrices[-2]) * self.matrices[-1][-1]


@dataclass(frozen=True)
class Trace:
    """The contents of one rank's trace for its recorded steps."""

    steps: dict[int, Interval]
    phases: list[tuple[str, Interval]]
    calls: list[OperatorCall]
    """Calls in the steps, in the order in which they began."""
    transfers: list[Interval]
    """Collectives as seen by the communication library, on its own threads or streams."""
    kernels: list[Interval]
    """Kernels of a GPU, without communication; empty on a CPU."""

    @property
    def work(self) -> list[Interval]:
        """The intervals in which an operator computed: on a GPU its kernels, on a CPU the operators themselves."""
        return self.kernels or [stretch for call in self.calls if call.is_work for stretch in call.own]


def read_trace_file(path: Path) -> TraceFile:
    """Read a trace, plain or gzipped. Raises RunError if the file is not one."""
    origin, hint = f"{path}: not a torch.profiler trace", "profile again"
    try:
        data = read_bounded(path, RunError, hint, _MOST_BYTES)
        # Not msgspec's parser: torch may write NaN.
        content = json.loads(_inflated(data) if path.suffix == ".gz" else data)
    except (FileNotFoundError, ValueError, RecursionError, zlib.error) as error:
        raise RunError(f"{origin}: {error}", hint) from None
    table = convert(content, dict[str, Any], origin, hint)
    about = convert(table, _About, origin, hint)
    for number, event in enumerate(about.traceEvents):
        if event.get("ph") == "X":
            convert(event, _Span, f"{origin}: event {number}", hint)
    return TraceFile(about.traceEvents, {key: value for key, value in table.items() if key != "traceEvents"})


def _inflated(data: bytes) -> bytes:
    """Decompress a gzip file. Raises ValueError if the result exceeds the limit: a small file can be huge inside."""
    stream = zlib.decompressobj(wbits=31)
    inflated = stream.decompress(data, _MOST_BYTES)
    if not stream.eof:
        raise ValueError(f"it is truncated, or larger than {_MOST_BYTES} bytes")
    return inflated


def understand(events: Sequence[TraceEvent]) -> Trace:
    """Sort a trace's events. Raises RunError if no step is marked in it."""
    spans = [event for event in events if event.get("ph") == "X"]
    marks = [event for event in spans if event.get("cat") == "user_annotation"]
    steps = {int(match[1]): event for event in marks if (match := _STEP.fullmatch(event["name"]))}
    if not steps:
        raise RunError("the trace contains no mark `frog::step N`", "profile again")
    thread = next(iter(steps.values()))["tid"]
    inside = [_interval(event) for event in steps.values()]
    first, last = min(start for start, _ in inside), max(end for _, end in inside)
    own = [event for event in spans if event["tid"] == thread and first <= event["ts"] <= last]
    device = [event for event in spans if event.get("cat") in _ON_DEVICE]
    is_nccl = [event["name"].startswith("nccl") for event in device]
    there = [_interval(event) for event, nccl in zip(device, is_nccl, strict=True) if nccl]
    here = [_interval(event) for event in marks if event["name"].startswith(_TRANSFER)]
    return Trace(
        steps={number: _interval(event) for number, event in sorted(steps.items())},
        phases=[
            (match[1], _interval(event))
            for event in own
            if event.get("cat") == "user_annotation" and (match := _PHASE.fullmatch(event["name"]))
        ],
        calls=list(_calls(own)),
        transfers=there if device else here,
        kernels=[_interval(event) for event, nccl in zip(device, is_nccl, strict=True) if not nccl],
    )


def _interval(event: TraceEvent) -> Interval:
    return event["ts"], event["ts"] + event.get("dur", 0.0)


def _calls(events: Sequence[TraceEvent]) -> Iterator[OperatorCall]:
    """Yield the operators of one thread, each with its own time: every moment belongs to the innermost operator.

    Operators that communication calls internally count as part of it.
    """
    ordered = sorted(events, key=lambda event: (event["ts"], -event.get("dur", 0.0)))
    ends = [_interval(event)[1] for event in ordered]
    own: list[list[Interval]] = [[] for _ in ordered]
    communicates = [False] * len(ordered)
    open_calls: list[int] = []
    now_us = 0.0

    def pass_time(until_us: float) -> None:
        nonlocal now_us
        if open_calls and until_us > now_us:
            own[open_calls[-1]].append((now_us, until_us))
        now_us = max(now_us, until_us)

    def close(until_us: float) -> None:
        while open_calls and ends[open_calls[-1]] <= until_us:
            pass_time(ends[open_calls[-1]])
            open_calls.pop()

    for index, event in enumerate(ordered):
        close(event["ts"])
        if open_calls and ordered[open_calls[-1]]["name"].startswith(_COMMUNICATION):
            continue
        pass_time(event["ts"])
        open_calls.append(index)
        if event["name"].startswith(_COMMUNICATION):
            for caller in open_calls:
                communicates[caller] = True
    close(math.inf)
    for event, stretches, with_others in zip(ordered, own, communicates, strict=True):
        is_graph = event["name"].startswith(_COMPILED)
        if stretches and (is_graph or event.get("cat") == "cpu_op"):
            yield _call("compiled::graph" if is_graph else event["name"], event, tuple(stretches), with_others)


def _call(name: str, event: TraceEvent, own: tuple[Interval, ...], communicates: bool) -> OperatorCall:
    args = event.get("args", {})
    lists = (dims for dims in args.get("Input Dims", ()) if isinstance(dims, list) and dims)
    shapes = tuple(tuple(dims) for dims in lists if all(isinstance(size, int) and size >= 0 for size in dims))
    dtype = next(iter(args.get("Input type", ())), "")
    return OperatorCall(name, event.get("dur", 0.0), own, shapes, dtype, communicates)


# ---- intervals -------------------------------------------------------------------------------------------------------


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals into disjoint ones, in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def common(a: Iterable[Interval], b: Iterable[Interval]) -> list[Interval]:
    """Return the time that is in both."""
    intervals, first, second = [], union(a), union(b)
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if end > start:
            intervals.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return intervals


def length(intervals: Iterable[Interval]) -> float:
    """Return the total time; overlapping intervals count once."""
    return sum(end - start for start, end in union(intervals))


def without(a: Iterable[Interval], b: Iterable[Interval]) -> float:
    """Return how much of `a` is not in `b`."""
    a = list(a)
    return length(a) - length(common(a, b))
