"""Reads event files and checks each line against its class. Counts torn and unknown lines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from frog.core.files import open_plain
from frog.core.runs.event_schema import CollectiveEvent, Event, EventOfStep, RankEvent, SpanEvent
from frog.core.runs.folder import RunFolder
from frog.core.runs.launcher_schema import AnyLauncherEvent
from frog.core.runs.vocabulary import ASIDE

T = TypeVar("T")
E = TypeVar("E", bound=Event)
S = TypeVar("S", bound=EventOfStep)

_BLOCK_BYTES = 16 << 20


@dataclass
class EventList(Generic[T]):
    """Events in file order."""

    events: list[T] = field(default_factory=list)

    def of(self, kind: type[E]) -> list[E]:
        """Return all events of one class."""
        return [event for event in self.events if isinstance(event, kind)]

    def last(self, kind: type[E]) -> E | None:
        """Return the last event of a class."""
        return next((event for event in reversed(self.events) if isinstance(event, kind)), None)

    def by_step(self, kind: type[S]) -> dict[int, S]:
        """Return the events of one class by step, in order; the last one for a repeated step."""
        events = {event.step: event for event in self.of(kind)}
        return dict(sorted(events.items()))


@dataclass
class Lines(EventList[T]):
    """The events of a file."""

    num_bad: int = 0
    """Number of invalid lines: cut off by a kill, or changed later."""
    problems: list[str] = field(default_factory=list)
    """Descriptions of unreadable content."""


def read_lines(path: Path, kind: Any) -> Lines[Any]:
    """Read the lines of type `kind`, a class or a union of classes. A missing file has no lines.

    Decodes a block of lines together, and line by line only if one is invalid.
    """
    lines_read: Lines[Any] = Lines()
    try:
        for block in _blocks(path) if path.is_file() else ():
            _read_block(block, _decoder(kind), lines_read)
    except OSError as error:
        return Lines(problems=[f"{path}: cannot be read: {error.strerror}"])
    if lines_read.num_bad:
        lines = f"line{'s' if lines_read.num_bad > 1 else ''}"
        said = f"{path}: {lines_read.num_bad} damaged or torn {lines} skipped (or from another version of Frog)"
        lines_read.problems.append(said)
    return lines_read


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield complete lines, some megabytes at a time. Truncates longer lines, which are not events."""
    rest = b""
    with open_plain(path) as file:
        while block := file.read(_BLOCK_BYTES):
            end = block.rfind(b"\n") + 1
            if end:
                yield rest + block[:end]
            rest = block[end:] if end else (rest + block)[:_BLOCK_BYTES]
    yield rest


def _read_block(block: bytes, decoder: msgspec.json.Decoder[Any], found: Lines[Any]) -> None:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found.events += decoder.decode_lines(block)
        return
    for line in block.split(b"\n"):
        try:
            if line.strip():
                found.events.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found.num_bad += 1


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


@dataclass
class RankEvents(Lines[RankEvent]):
    """The events of one rank in all attempts."""

    rank: int = 0


def read_rank(folder: RunFolder, rank: int) -> RankEvents:
    """Read one rank's events."""
    return RankEvents(**vars(read_lines(folder.rank_events(rank), RankEvent)), rank=rank)


def step_collectives(events: RankEvents, step: int) -> list[CollectiveEvent]:
    """Return the collectives of a training step, without those of an evaluation or a checkpoint after it."""
    spans = [span for span in events.of(SpanEvent) if span.step == step and span.phase not in ASIDE]
    if not spans:
        return []
    start_ns, end_ns = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
    return [
        event for event in events.of(CollectiveEvent) if event.step == step and start_ns <= event.start_ns <= end_ns
    ]


def read_launcher(folder: RunFolder) -> Lines[AnyLauncherEvent]:
    """Read the events of `frog run`."""
    return read_lines(folder.launcher_events, AnyLauncherEvent)
