"""Lanes and curves from the events of Frog's trainer and of `frog.record`, read as they are written.

A long run has more phases than a page can hold. The last steps are kept whole. Earlier ones are joined in blocks of 2,
4, 8, ... steps: a block has the sum of each phase's time, in the order of a step.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from frog.core.files import open_plain
from frog.core.runs.event_schema import (
    Beat,
    CollectiveEvent,
    EndEvent,
    ErrorEvent,
    EvalEvent,
    MembershipEvent,
    RankEvent,
    SpanEvent,
    StartEvent,
    StepEvent,
)
from frog.core.runs.vocabulary import PHASES
from frog.core.schema import inspected
from frog.core.units import count, format_bytes
from frog.observe.watch.film import FilmEvent, Lane, Series, Words

MOST_ROWS = 90_000
"""Most bars and calls of all lanes together: 25 bytes of JSON each."""
_MOST_POINTS = 1_500
"""Most points of a curve."""
_BLOCK_BYTES = 8 << 20

Row = tuple[int, int, int, int]
"""Start and end in Unix ns, word, number."""


class Tail:
    """Reads the new whole lines of a growing file."""

    def __init__(self, path: Path, kind: Any) -> None:
        self.path, self.num_bad = path, 0
        self._decoder = msgspec.json.Decoder(inspected(kind))
        self._offset, self._rest = 0, b""

    def read(self) -> Iterable[Any]:
        """Yield the values that were written since the last call. Skips and counts damaged lines."""
        try:
            if not self.path.is_file():
                return
            with open_plain(self.path) as file:
                if file.seek(0, 2) < self._offset:  # the file was replaced
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                while data := file.read(_BLOCK_BYTES):
                    self._offset += len(data)
                    *lines, self._rest = (self._rest + data).split(b"\n")
                    self._rest = self._rest[:_BLOCK_BYTES]
                    yield from self._decoded(lines)
        except OSError:
            return

    def _decoded(self, lines: list[bytes]) -> Iterable[Any]:
        for line in lines:
            try:
                if line.strip():
                    yield self._decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self.num_bad += 1


@dataclass
class Block:
    """One step of a rank, or several joined ones."""

    key: tuple[int, int]
    """Segment and step of the first one."""
    num_steps: int = 1
    bars: list[Row] = field(default_factory=list)
    calls: list[Row] = field(default_factory=list)
    num_calls: int | None = None
    """Collectives of joined steps, which `calls` has as one; None if it has each."""

    @property
    def num_rows(self) -> int:
        return len(self.bars) + len(self.calls)

    def joined(self, other: Block, words: Words) -> Block:
        """Return both as one: the sums of equal bars, one after the other, and one bar for all calls."""
        bars, calls = [*self.bars, *other.bars], [*self.calls, *other.calls]
        start = min((bar[0] for bar in bars), default=0)
        sums: dict[int, int] = {}
        for begin, end, word, _ in bars:
            sums[word] = sums.get(word, 0) + end - begin
        block = Block(self.key, self.num_steps + other.num_steps)
        at = start
        order: dict[str, int] = {phase: index for index, phase in enumerate(PHASES)}
        for word, total in sorted(sums.items(), key=lambda item: order.get(words.rows[item[0]][0], len(order))):
            block.bars.append((at, at + total, word, self.key[1]))
            at += total
        if calls:
            block.num_calls = sum(len(b.calls) if b.num_calls is None else b.num_calls for b in (self, other))
            text = count(block.num_calls, "collective")
            spent = sum(end - begin for begin, end, _, _ in calls)
            block.calls = [(calls[0][0], calls[0][0] + spent, words.of("collective", text), calls[0][3])]
        return block


class RankBlocks:
    """The steps of one rank: whole ones at the end, joined ones before.

    most_rows: bars and calls to keep, at most about twice as many as are shown whole.
    """

    def __init__(self, words: Words, most_rows: int) -> None:
        self.words, self._half = words, max(40, most_rows // 2)
        self.old: list[Block] = []
        self.last: deque[Block] = deque()
        self._num_last = self._num_old = 0
        self.every = 1
        """Steps that one joined block stands for."""

    def add_bar(self, key: tuple[int, int], row: Row) -> None:
        """Add a phase to the step with a key, which is new if it has not begun."""
        self._block(key).bars.append(row)
        self._grow()

    def add_call(self, key: tuple[int, int], row: Row) -> None:
        """Add a collective."""
        self._block(key).calls.append(row)
        self._grow()

    def _block(self, key: tuple[int, int]) -> Block:
        """Return one of the last three steps, or a new one."""
        for block in itertools.islice(reversed(self.last), 3):
            if block.key == key:
                return block
        self.last.append(Block(key))
        return self.last[-1]

    def _grow(self) -> None:
        """Move whole steps to the joined ones, which are joined again when they have become too many."""
        self._num_last += 1
        while self._num_last > self._half and len(self.last) > 3:
            block = self.last.popleft()
            self._num_last -= block.num_rows
            self._join_or_add(block)
        while self._num_old > self._half and len(self.old) > 2:
            self.every *= 2
            blocks, self.old, self._num_old = self.old, [], 0
            for block in blocks:
                self._join_or_add(block)
            if len(self.old) == len(blocks):  # each is of another start of the run
                self.old = self.old[len(blocks) // 2 :]
                self._num_old = sum(block.num_rows for block in self.old)

    def _join_or_add(self, block: Block) -> None:
        before = self.old[-1] if self.old else None
        if before is None or before.num_steps + block.num_steps > self.every or before.key[0] != block.key[0]:
            self.old.append(block)
            self._num_old += block.num_rows
            return
        self.old[-1] = before.joined(block, self.words)
        self._num_old += self.old[-1].num_rows - before.num_rows

    def blocks(self) -> list[Block]:
        """Return all blocks in order of time."""
        return [*self.old, *self.last]


@dataclass
class Point:
    """A step's numbers, of one rank or of all."""

    step: int
    end_ns: int = 0
    loss_mean: float | None = None
    sum_loss: float = 0.0
    num_losses: int = 0
    tokens_per_s: float | None = None

    @property
    def loss(self) -> float | None:
        if self.loss_mean is not None:
            return self.loss_mean
        return self.sum_loss / self.num_losses if self.num_losses else None


class TrainedRank:
    """One rank's events so far."""

    def __init__(self, rank: int, path: Path, words: Words, most_rows: int) -> None:
        self.rank, self.words = rank, words
        self._tail = Tail(path, RankEvent)
        self.blocks = RankBlocks(words, most_rows)
        self.start: StartEvent | None = None
        self.segment = -1
        self.use: list[tuple[int, int, int]] = []
        """Unix ns, bytes of memory, percent of one core."""
        self._last_cpu: tuple[int, float] | None = None
        self.state = "running"
        self.last_ns = 0
        self.first_ns = 0
        self.errors: list[ErrorEvent] = []
        self.notes: list[tuple[int, str]] = []
        """Unix ns, and text: what is worth a mark."""
        self._phase_words = {phase: words.of(phase, phase) for phase in PHASES}
        self._call_words: dict[tuple[str, str, int], int] = {}
        self._offset_ns = 0

    @property
    def num_bad(self) -> int:
        """Number of damaged lines."""
        return self._tail.num_bad

    def read(self, points: dict[tuple[int, int], Point]) -> None:
        """Read what was written since the last call."""
        for event in self._tail.read():
            self.add(event, points)

    def unix_ns(self, mono_ns: int) -> int:
        """Convert a time of this rank's clock."""
        return mono_ns + self._offset_ns

    def add(self, event: Any, points: dict[tuple[int, int], Point]) -> None:
        """Take an event; its numbers go into the point of its step, by segment and step."""
        match event:
            case SpanEvent():
                start, end = self.unix_ns(event.start_ns), self.unix_ns(event.end_ns)
                row = (start, end, self._phase_words[event.phase], event.step)
                self.blocks.add_bar((self.segment, event.step), row)
                self.last_ns = max(self.last_ns, end)
            case CollectiveEvent():
                start, end = self.unix_ns(event.start_ns), self.unix_ns(event.end_ns)
                word = self.call_word(event.op, event.axis, event.payload_bytes)
                self.blocks.add_call((self.segment, event.step), (start, end, word, event.seq))
                self.last_ns = max(self.last_ns, end)
            case StepEvent():
                self._add_step(event, points)
            case StartEvent():
                self.start, self.state = event, "running"
                self.segment += 1
                self._offset_ns = event.unix_ns - event.mono_ns
                self.first_ns = self.first_ns or event.unix_ns
                self.last_ns = max(self.last_ns, event.unix_ns)
                if self.rank == 0 and self.segment:
                    self.notes.append((event.unix_ns, f"starts again after step {event.step}"))
            case ErrorEvent():
                self.errors.append(event)
            case EndEvent():
                self.state = event.status
            case EvalEvent() if event.loss is not None:
                self.notes.append((self.last_ns, f"held-out loss {event.loss:.4g} after step {event.step}"))
            case MembershipEvent() if self.rank == 0 and (event.lost or event.joined):
                members = count(len(event.members), "rank")
                self.notes.append((self.last_ns, f"the world changes to {members} after step {event.step}"))
            case _:
                return

    def _add_step(self, event: StepEvent, points: dict[tuple[int, int], Point]) -> None:
        end_ns = self.unix_ns(event.end_ns)
        self.last_ns = max(self.last_ns, end_ns)
        if self._last_cpu is None and (
            not self.use or end_ns - self.use[-1][0] > 1e9 or event.memory_bytes > 1.02 * self.use[-1][1]
        ):
            self._use(end_ns, event.memory_bytes, -1)
        point = points.setdefault((self.segment, event.step), Point(event.step))
        point.end_ns = max(point.end_ns, end_ns)
        if event.loss is not None:
            point.sum_loss += event.loss
            point.num_losses += 1
        point.loss_mean = event.loss_mean if event.loss_mean is not None else point.loss_mean
        point.tokens_per_s = event.tokens_per_s if event.tokens_per_s is not None else point.tokens_per_s

    def measure(self, unix_ns: int, cpu_s: float, rss_bytes: int) -> None:
        """Record what the process uses, as seen from outside."""
        if self._last_cpu is not None and unix_ns - self._last_cpu[0] < 900_000_000:
            return
        if self._last_cpu is not None:
            used = (cpu_s - self._last_cpu[1]) / ((unix_ns - self._last_cpu[0]) / 1e9)
            self._use(unix_ns, rss_bytes, max(0, round(100 * used)))
        self._last_cpu = (unix_ns, cpu_s)

    def _use(self, unix_ns: int, size: int, percent: int) -> None:
        self.use.append((unix_ns, size, percent))
        if len(self.use) > 400:
            self.use = [*self.use[:200:2], *self.use[200:]]

    def call_word(self, op: str, axis: str, payload_bytes: int) -> int:
        """Return the word of a collective."""
        key = (op, axis, payload_bytes)
        if key not in self._call_words:
            size = f" of {format_bytes(payload_bytes)}" if payload_bytes else ""
            text = f"{op}{size} over {axis}"
            self._call_words[key] = self.words.of("collective", text)
        return self._call_words[key]

    def lane(self, start_ns: int, beat: Beat | None, until_ns: int) -> Lane:
        """Return the rank's lane. beat: its heartbeat, which has what it does now; until_ns: the film's end."""
        lane = Lane(self.rank, state=self.state)
        said = self.start
        if said is not None:
            lane.node, lane.host, lane.pid = said.node_rank, said.host, said.pid
        for block in self.blocks.blocks():
            lane.bars += flat(block.bars, start_ns)
            lane.calls += flat(block.calls, start_ns)
        if beat is not None:
            self._add_now(lane, beat, start_ns, until_ns)
        lane.use = [value for at, size, used in self.use for value in ((at - start_ns) // 1000, size >> 20, used)]
        return lane

    def _add_now(self, lane: Lane, beat: Beat, start_ns: int, until_ns: int) -> None:
        """Add the phase and the collectives that have not ended."""
        offset_ns = beat.unix_ns - beat.beat_ns
        lane.node, lane.host, lane.pid = beat.node_rank, beat.host, beat.pid
        if beat.status != "running":
            lane.state = beat.status
            return
        if beat.phase is not None and (begun := beat.phase_ns + offset_ns) >= start_ns:
            lane.bars += flat([(begun, max(begun, until_ns), self._phase_words[beat.phase], beat.step)], start_ns)
        for call in beat.open:
            word = self.call_word(call.op, call.axis, call.payload_bytes)
            lane.calls += flat([(call.start_ns + offset_ns, until_ns, word, call.seq)], start_ns)


def flat(rows: Iterable[Row], start_ns: int) -> list[int]:
    """Return bars as the flat list of a lane, in us since the film's start."""
    return [
        value
        for begin, end, word, number in rows
        for value in ((begin - start_ns) // 1000, max(0, end - begin) // 1000, word, number)
    ]


# ---- curves and steps ------------------------------------------------------------------------------------------------


def curves(points: Iterable[Point], start_ns: int) -> list[Series]:
    """Return loss and throughput over time, each of at most some hundred points: means of neighbors."""
    ordered = sorted(points, key=lambda point: point.end_ns)
    size = max(1, math.ceil(len(ordered) / _MOST_POINTS))
    groups = [ordered[at : at + size] for at in range(0, len(ordered), size)]
    named: tuple[tuple[str, str, Callable[[Point], float | None]], ...] = (
        ("loss", "Loss", lambda point: point.loss),
        ("tokens_per_s", "Tokens per second", lambda point: point.tokens_per_s),
    )
    at = [(group[-1].end_ns - start_ns) // 1000 for group in groups]
    steps = [group[-1].step for group in groups]
    series = []
    for name, title, value in named:
        values = [_mean([value(point) for point in group]) for group in groups]
        if any(number is not None for number in values):
            series.append(Series(name, title, at, steps, values))
    return series


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return float(f"{sum(known) / len(known):.6g}") if known and len(known) == len(values) else None


def steps_of(points: Iterable[Point], start_ns: int, most: int = 6_000) -> list[int]:
    """Return the steps to stop at: all, or evenly spaced ones and the last 1000."""
    ordered = sorted(points, key=lambda point: point.end_ns)
    every = max(1, math.ceil(len(ordered) / most))
    kept = [point for index, point in enumerate(ordered) if index % every == 0 or index >= len(ordered) - 1000]
    return [value for point in kept for value in (point.step, (point.end_ns - start_ns) // 1000)]


def error_events(rank: TrainedRank, start_ns: int) -> list[FilmEvent]:
    """Return a rank's errors as events."""
    events = []
    for error in rank.errors:
        at_ns = error.unix_ns if error.unix_ns >= rank.first_ns else rank.last_ns
        text = f"{error.type}: {error.message}"[:300]
        events.append(FilmEvent((at_ns - start_ns) // 1000, rank.rank, "failure", text))
    return events
