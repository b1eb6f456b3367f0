"""Writes a rank's events file, one line per event.

Spans and collectives occur several times per step, so they are formatted without a JSON encoder, which would take four
times as long; their fields are numbers and plain words.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from frog.core.runs.event_schema import FIELDS
from frog.core.runs.heartbeat import Heartbeat
from frog.core.runs.observer import OBSERVERS
from frog.core.runs.vocabulary import Phase


def _plain(value: Any) -> Any:
    """Convert a numpy number to Python."""
    return value.item()


_encode = msgspec.json.Encoder(enc_hook=_plain).encode


class EventWriter:
    """Appends events to one file. Each line goes to the operating system immediately, so a killed rank loses none.

    The heartbeat, if any, records starts of operations; the events record their ends.
    """

    def __init__(self, path: Path, heartbeat: Heartbeat | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._end_torn_line(path)
        self._seq = 0
        self._heartbeat = heartbeat
        self.step = 0
        self.phase: Phase | None = None

    def emit(self, event: str, **fields: Any) -> None:
        """Write one event. Raises ValueError if its fields differ from the schema."""
        if fields.keys() != FIELDS[event]:
            raise ValueError(f"event {event}: fields {sorted(fields)}, the schema has {sorted(FIELDS[event])}")
        self._write(_encode({"event": event, **fields}))
        if event == "end" and self._heartbeat is not None:
            self._heartbeat.close(fields["status"])
        if OBSERVERS:
            for observer in OBSERVERS:
                observer.event_written(event, fields)

    @contextmanager
    def span(self, phase: Phase, micro: int = 0) -> Iterator[None]:
        """Time a phase of the current step. A phase that raises writes no span, and `phase` still names it."""
        self.phase = phase
        if self._heartbeat is not None:
            self._heartbeat.enter(self.step, phase, micro)
        start_ns = time.monotonic_ns()
        if OBSERVERS:
            for observer in OBSERVERS:
                observer.phase_begins(self.step, phase, micro)
        yield
        if OBSERVERS:
            for observer in OBSERVERS:
                observer.phase_ends(self.step, phase, micro)
        self._write_line(
            f'{{"event":"span","step":{self.step},"phase":"{phase}","micro":{micro},'
            f'"start_ns":{start_ns},"end_ns":{time.monotonic_ns()}}}'
        )
        self.phase = None
        if self._heartbeat is not None:
            self._heartbeat.enter(self.step, None)

    def collective(self, op: str, axis: str, payload_bytes: int) -> CollectiveNote:
        """Start a collective of the current step; call `done` of the returned note to write it."""
        self._seq += 1
        note = CollectiveNote(self, op, axis, payload_bytes, self._seq - 1)
        if self._heartbeat is not None:
            self._heartbeat.begin(note.seq, op, axis, payload_bytes, note.start_ns)
        return note

    def write_collective(self, note: CollectiveNote, end_ns: int, wait_ns: int) -> None:
        self._write_line(
            f'{{"event":"collective","step":{note.step},"op":"{note.op}","axis":"{note.axis}",'
            f'"payload_bytes":{note.payload_bytes},"seq":{note.seq},"start_ns":{note.start_ns},"end_ns":{end_ns},'
            f'"wait_ns":{wait_ns}}}'
        )
        if self._heartbeat is not None:
            self._heartbeat.end(note.seq)

    def close(self) -> None:
        """Close the file and stop the heartbeat; later events are dropped."""
        if self._heartbeat is not None:
            self._heartbeat.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _end_torn_line(self, path: Path) -> None:
        """Terminate the incomplete line of a killed rank, so that it does not corrupt the next event."""
        if path.stat().st_size and self._descriptor is not None:
            with open(path, "rb") as file:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    os.write(self._descriptor, b"\n")

    def _write_line(self, line: str) -> None:
        self._write(line.encode())

    def _write(self, data: bytes) -> None:
        if self._descriptor is not None:
            data += b"\n"
            while data:  # a full disk first accepts a part of the data, then fails
                data = data[os.write(self._descriptor, data) :]


class CollectiveNote:
    """An active collective; it is written when it ends."""

    __slots__ = ("axis", "op", "payload_bytes", "seq", "start_ns", "step", "writer")

    def __init__(self, writer: EventWriter, op: str, axis: str, payload_bytes: int, seq: int) -> None:
        self.writer, self.op, self.axis, self.payload_bytes, self.seq = writer, op, axis, payload_bytes, seq
        self.step, self.start_ns = writer.step, time.monotonic_ns()

    def done(self, end_ns: int, wait_ns: int) -> None:
        """Write the collective: it ended at `end_ns` and blocked the rank's own thread for `wait_ns`."""
        self.writer.write_collective(self, end_ns, wait_ns)
