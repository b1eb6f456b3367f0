"""Time of a recorded step on a cluster: its operations in order, with the kernels and links of `frog plan MODEL`.

Three clocks run: Python's, which launches; the GPU's; and one for each group's collectives. An operation starts when
it was launched and the GPU is free. A started collective runs next to the computation until the program waits for it.
Messages, and collectives that ranks_together.py plays with other ranks, start when all of their ranks are ready.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from frog.plan.columns import log2
from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.hardware import Cluster
from frog.plan.estimate.kernels import BLOCK, LOAD_BYTES, Kernels
from frog.plan.layout import Layout
from frog.plan.links import Group, Links, wire_bytes

_MODEL_PASSES = ("forward", "backward")
"""Passes whose operations count for the MFU: what is recomputed does not."""


class NotYet(Exception):
    """Another rank has not reached what this one waits for."""


class Meetings(Protocol):
    """When the ranks of a message or of a collective are ready for it."""

    def arrive(self, name: str, rank: int, at: float) -> None:
        """Note that a rank is ready."""

    def ready(self, name: str, line: int) -> float:
        """Return when the last rank is ready. Raises NotYet. line: the index of this rank's line."""


@dataclass
class Meeting:
    """Messages or a collective that this rank has started, and whose end depends on other ranks."""

    key: str
    line: int
    where: tuple[int, int]
    start: float
    seconds: float
    communicator: str
    names: list[str]
    op: str
    num_bytes: float


@dataclass
class Span:
    """A phase of the step on the default stream, of one micro-batch."""

    phase: str
    micro: int
    start: float
    end: float


@dataclass
class Call:
    """A collective, or a batch of messages; `waits` is the time in which the GPU waited for it."""

    op: str
    axis: str
    num_bytes: float
    start: float
    end: float
    waits: float = 0.0


_PHASES = {"forward": "forward", "backward": "backward", "recomputed": "backward", "optimizer": "optimize"}
"""The phases of a run's events, by the pass of an operation."""


@dataclass
class Trace:
    """The phases and the collectives of a step."""

    spans: list[Span] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    is_cut: bool = True
    """True if messages have passed since the last operation, so that another micro-batch may follow."""

    def compute(self, passed: str, start: float, end: float) -> None:
        """Add an operation to the phase that runs, or begin another one."""
        phase = _PHASES[passed]
        if self.is_cut or self.spans[-1].phase != phase:
            self.spans.append(Span(phase, sum(span.phase == phase for span in self.spans), start, end))
        self.spans[-1].end = end
        self.is_cut = False

    def wait(self, end: float, seconds: float) -> None:
        """Add the time in which the GPU waited for the collective that ends then."""
        for call in reversed(self.calls):
            if call.end == end:
                call.waits += seconds
                return


@dataclass
class GroupTime:
    """The collectives of the groups with one size and stride."""

    kinds: Counter[str] = field(default_factory=Counter)
    num_bytes: float = 0.0
    seconds: float = 0.0
    exposed: float = 0.0


@dataclass
class ProgramTime:
    """Seconds of the planned step by cause, by line and by group, and its operations."""

    products: float = 0.0
    attention: float = 0.0
    memory: float = 0.0
    launch: float = 0.0
    """Time in which the GPU waits for Python to launch the next operation."""
    communication: float = 0.0
    """The exposed part."""
    waiting: float = 0.0
    """Time in which the GPU waits until other ranks are ready for a message or a collective."""
    slowed: float = 0.0
    """Computation that takes longer next to a collective."""
    other: float = 0.0
    by_line: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    groups: dict[tuple[int, int], GroupTime] = field(default_factory=dict)
    model_flops: float = 0.0
    trace: Trace = field(default_factory=Trace)
    num_float32: int = 0
    """Products in float32."""

    @property
    def total(self) -> float:
        parts = self.products + self.attention + self.memory + self.launch + self.waiting
        return parts + self.communication + self.slowed + self.other


@dataclass
class StepClock:
    """Plays the rows of a step."""

    cluster: Cluster
    constants: Constants = FITTED
    result: ProgramTime = field(default_factory=ProgramTime)
    python: float = 0.0
    gpu: float = 0.0
    stream: int = 0
    """The stream on which the program launches; 0 is the default one, whose time is `gpu`."""
    streams: dict[int, float] = field(default_factory=dict)
    """When the work of each other stream ends."""
    events: dict[int, float] = field(default_factory=dict)
    recorded_on: dict[int, str] = field(default_factory=dict)
    """The key of the stream on which an event was recorded."""
    links_free: dict[tuple[int, int], float] = field(default_factory=dict)
    ends: dict[str, tuple[float, tuple[int, int], int]] = field(default_factory=dict)
    """When the last collective under a key ends, its group, and its line."""
    started: float = 0.0
    """Seconds of the collectives next to which the program computes."""
    started_bytes: float = 0.0
    """Their bytes that arrive at this rank."""
    started_exposed: float = 0.0
    rank: int = 0
    meetings: Meetings | None = None
    """None: other ranks are always ready."""
    shared: dict[int, str] = field(default_factory=dict)
    """Names of the groups, by index, whose collectives start when other ranks are ready."""
    met: Counter[int] = field(default_factory=Counter)
    """Collectives of the shared groups so far."""
    open: dict[str, Meeting] = field(default_factory=dict)
    """Meetings whose end is not known, by their first name."""
    ready: dict[str, tuple[float, int]] = field(default_factory=dict)
    """When all ranks of the last meeting under a key are ready, and its line."""
    communicators: dict[str, float] = field(default_factory=dict)
    """When the last meeting of each communicator ends."""
    waits_at: int = 0
    """The line of the meeting that was looked at last."""

    @cached_property
    def kernels(self) -> Kernels:
        return Kernels(self.cluster.gpu, Layout(seq_len=1, global_batch=1), self.constants)

    @cached_property
    def links(self) -> Links:
        return self.cluster.links(self.constants)

    def play(self, facts: dict[str, Any], num_gpus: int) -> ProgramTime:
        """Return the time of a recorded step."""
        self.play_rows(facts["rows"])
        return self.finish(num_gpus)

    def play_rows(self, rows: Iterable[list[Any]]) -> None:
        """Advance the clocks by these rows."""
        for row in rows:
            self.play_row(row)

    def play_row(self, row: list[Any]) -> None:
        """Advance the clocks by one row. Raises NotYet if another rank is missing; then the row can be played again."""
        getattr(self, f"_{row[0]}")(*row[1:])

    def finish(self, num_gpus: int) -> ProgramTime:
        """Return the time of the step that ends here, and begin a new one."""
        self._wait_for_all()
        result = self.result
        lost = self.kernels.lost_beside(self.started, self.started_bytes)
        result.slowed = max(0.0, lost - self.started_exposed)
        doublings = log2(max(1.0, num_gpus / self.cluster.gpus_per_node))
        result.other = self.constants.step_s
        result.other += float((result.total - result.other) * self.constants.jitter * doublings)
        self.gpu += result.slowed + result.other
        self.result, self.started, self.started_bytes, self.started_exposed = ProgramTime(), 0.0, 0.0, 0.0
        return result

    def _launched(self, passed: str, seconds: float, line: int, cause: str) -> None:
        """Launch an operation; C++ launches those of the backward pass twice as fast as Python.

        On a stream of its own, it takes the GPU's time only if the default stream computes meanwhile.
        """
        self.python += self.constants.launch_s * (0.5 if passed == "backward" else 1.0)
        if self.stream:
            start = max(self.python, self.streams.get(self.stream, 0.0))
            self.streams[self.stream] = start + seconds
            if start >= self.gpu:
                return
        setattr(self.result, cause, getattr(self.result, cause) + seconds)
        if self.stream:
            self.result.by_line[line] += seconds
            self.gpu += seconds
            self.result.trace.compute(passed, self.gpu - seconds, self.gpu)
            return
        idle = max(0.0, self.python - self.gpu)
        self.result.launch += idle
        self.result.by_line[line] += idle + seconds
        self.gpu += idle + seconds
        self.result.trace.compute(passed, self.gpu - seconds, self.gpu)

    def _product(
        self,
        line: int,
        passed: str,
        num: int,
        rows: int,
        inner: int,
        columns: int,
        itemsize: int,
        loaded: int,
        name: str,
    ) -> None:
        kernels, gpu = self.kernels, self.cluster.gpu
        rate = kernels.product_rate
        if itemsize >= 4:
            rate /= 2
            self.result.num_float32 += 1
        elif itemsize == 1 and gpu.sustained_fp8:
            rate = gpu.sustained_fp8 * self.constants.product_fp8
        aligned = loaded / LOAD_BYTES if itemsize == 2 else 1.0
        seconds = kernels.product(rows, inner, columns, num, rate=rate, output_bytes=max(2, itemsize), aligned=aligned)
        if passed in _MODEL_PASSES:
            self.result.model_flops += 2.0 * num * rows * inner * columns
        self._launched(passed, seconds, line, "products")

    def _attention(
        self,
        line: int,
        passed: str,
        batch_heads: int,
        queries: int,
        keys: int,
        width: int,
        value_width: int,
        is_causal: bool,
        is_backward: bool,
        name: str,
    ) -> None:
        times = self.kernels.attention(batch_heads, queries, keys, (width, value_width))
        seconds = times[is_backward] * (1.0 if is_causal else 2 * keys / (keys + BLOCK))
        if passed in _MODEL_PASSES:
            flops = 2.0 * batch_heads * queries * keys * (width + value_width)
            self.result.model_flops += flops * (0.5 if is_causal else 1.0) * (2 if is_backward else 1)
        self._launched(passed, seconds, line, "attention")

    def _memory(self, line: int, passed: str, num_bytes: int, name: str) -> None:
        seconds = self.kernels.moves(num_bytes)
        self._launched(passed, seconds, line, "memory")

    def _collective(
        self,
        line: int,
        passed: str,
        kind: str,
        num_bytes: int,
        num_ranks: int,
        stride: int,
        mode: str,
        key: str,
        group_index: int = -1,
    ) -> None:
        where = num_ranks, stride
        seconds = self._seconds(kind, num_bytes, Group(num_ranks, stride))
        if group_index in self.shared:
            name = f"{self.shared[group_index]} {self.met[group_index]}"
            if self._meet(
                Meeting(key or name, line, where, 0.0, seconds, self.shared[group_index], [name], kind, num_bytes)
            ):
                self._note(where, kind, num_bytes, seconds)
            if mode != "started":
                self._wait(name)
            self.met[group_index] += 1
            return
        self._note(where, kind, num_bytes, seconds)
        self.python += self.constants.launch_s
        needs = 0.0 if key.startswith("unshard") else self.gpu  # parameters are there; gradients are computed first
        if self.stream:
            needs, mode, key = self.streams.get(self.stream, 0.0), "started", f"stream {self.stream}"
        start = max(self.python, needs, self.links_free.get(where, 0.0))
        end = self.links_free[where] = start + seconds
        self.result.trace.calls.append(Call(kind, f"{num_ranks} ranks with rank {self.rank}", num_bytes, start, end))
        if self.stream:
            self.streams[self.stream] = end
        if mode == "started":
            self.ends[key] = end, where, line
            self.started += seconds
            self.started_bytes += wire_bytes(
                "all_reduce" if kind == "all_reduce" else "all_gather", num_bytes, num_ranks
            )
            return
        self._until(end, where, line)

    def _seconds(self, kind: str, num_bytes: float, group: Group) -> float:
        """Return the seconds of a collective; those that have one sender or receiver count as a ring's passage."""
        if group.size < 2:
            return 0.0
        if kind == "all_reduce":
            return float(self.links.all_reduce(num_bytes, group))
        if kind == "all_to_all":
            return self.links.all_to_all(num_bytes, group)
        return float(self.links.gather(num_bytes, group))

    def _note(self, where: tuple[int, int], kind: str, num_bytes: float, seconds: float) -> None:
        group = self.result.groups.setdefault(where, GroupTime())
        group.kinds[kind] += 1
        group.num_bytes += num_bytes
        group.seconds += seconds

    def _until(self, end: float, where: tuple[int, int], line: int) -> None:
        exposed = max(0.0, end - self.gpu)
        self.result.trace.wait(end, exposed)
        self.result.communication += exposed
        self.result.groups[where].exposed += exposed
        self.result.by_line[line] += exposed
        self.gpu += exposed

    def _wait(self, key: str) -> None:
        for name in [name for name, meeting in self.open.items() if meeting.key == key]:
            self._end(name)
        is_meeting = key in self.ready
        self.result.trace.is_cut |= key.startswith("messages")
        if is_meeting:
            ready, line = self.ready[key]
            if self.stream == 0:
                waits = max(0.0, ready - self.gpu)
                self.result.trace.wait(self.ends[key][0], waits)
                self.result.waiting += waits
                self.result.by_line[line] += waits
                self.gpu += waits
            del self.ready[key]
        if key in self.ends and self.stream and key.startswith("messages"):
            end, _, _ = self.ends.pop(key)
            self.streams[self.stream] = max(end, self.streams.get(self.stream, 0.0))
        if key in self.ends:
            before = self.gpu
            self._until(*self.ends.pop(key))
            self.started_exposed += 0.0 if is_meeting else self.gpu - before

    def _wait_for_all(self) -> None:
        for key in [*(meeting.key for meeting in self.open.values()), *self.ends]:
            self._wait(key)

    # ---- what other ranks take part in -------------------------------------------------------------------------------

    def _messages(
        self, line: int, passed: str, key: str, communicator: str, messages: list[tuple[str, int, int, str]]
    ) -> None:
        """Start a batch of messages: one kernel, in which those of both directions run at once."""
        where = 2, abs(messages[0][2] - self.rank)
        seconds = {"send": 0.0, "recv": 0.0}
        passages = [self._passage(num_bytes, peer) for _, num_bytes, peer, _ in messages]
        for (kind, _, _, _), passage in zip(messages, passages, strict=True):
            seconds[kind] += passage
        names = [name for _, _, _, name in messages]
        op = "send_recv" if all(seconds.values()) else messages[0][0]
        most = max(num_bytes for _, num_bytes, _, _ in messages)
        self._meet(Meeting(key, line, where, 0.0, max(seconds.values()), communicator, names, op, most))
        self.result.trace.is_cut = True
        for (kind, num_bytes, peer, _), passage in zip(messages, passages, strict=True):
            self._note((2, abs(peer - self.rank)), kind, num_bytes, passage)

    def _passage(self, num_bytes: int, peer: int) -> float:
        """Return the seconds of a message between this rank and a peer."""
        links = self.links
        if self.rank // links.domain == peer // links.domain:
            return float(links.send_inside(num_bytes))
        return float(links.send_outside(num_bytes, links.route(Group(2, abs(peer - self.rank)))))

    def _meet(self, meeting: Meeting) -> bool:
        """Start a meeting after those of its communicator; False if it has started before. Raises NotYet."""
        if meeting.names[0] in self.open:
            return False
        for name in [name for name, other in self.open.items() if other.communicator == meeting.communicator]:
            self._end(name)
        self.python += self.constants.launch_s
        now = self.streams.get(self.stream, 0.0) if self.stream else self.gpu
        meeting.start = max(self.python, now, self.communicators.get(meeting.communicator, 0.0))
        for name in meeting.names:
            if self.meetings is not None:
                self.meetings.arrive(name, self.rank, meeting.start)
        self.open[meeting.names[0]] = meeting
        return True

    def _end(self, name: str) -> None:
        """Compute when a meeting ends. Raises NotYet."""
        meeting = self.open[name]
        self.waits_at = meeting.line
        others = (
            [self.meetings.ready(name, meeting.line) for name in meeting.names] if self.meetings is not None else []
        )
        ready = max([meeting.start, *others])
        del self.open[name]
        end = ready + meeting.seconds
        self.communicators[meeting.communicator] = end
        self.ready[meeting.key] = ready, meeting.line
        self.ends[meeting.key] = end, meeting.where, meeting.line
        self.result.trace.calls.append(Call(meeting.op, "pp", meeting.num_bytes, meeting.start, end))

    def _sync(self, line: int) -> None:
        self.python = self.gpu = max(self.python, self.gpu)

    # ---- streams and events ------------------------------------------------------------------------------------------

    def _stream(self, stream: int) -> None:
        self.stream = stream

    def _reached(self, stream: int) -> float:
        """Return when the work of a stream ends."""
        return max(self.python, self.streams.get(stream, 0.0) if stream else self.gpu)

    def _join(self, stream: int, other: int) -> None:
        until = self._reached(other) if other == 0 else self.streams.get(other, 0.0)
        self._wait_until(stream, until, f"stream {other}")

    def _record(self, event: int, stream: int) -> None:
        self.events[event] = self._reached(stream)
        self.recorded_on[event] = f"stream {stream}"

    def _wait_event(self, stream: int, event: int) -> None:
        if event in self.events:
            self._wait_until(stream, self.events[event], self.recorded_on[event])

    def _wait_until(self, stream: int, until: float, key: str) -> None:
        """Let a stream wait; the default one waits for the last collective of the other."""
        if stream:
            self.streams[stream] = max(until, self.streams.get(stream, 0.0))
        elif key in self.ends:
            _, where, line = self.ends[key]
            before = self.gpu
            self._until(until, where, line)
            self.started_exposed += self.gpu - before
        else:
            self.result.launch += max(0.0, until - self.gpu)
            self.gpu = max(self.gpu, until)

    def _sync_event(self, event: int) -> None:
        self.python = max(self.python, self.events.get(event, 0.0))
