"""Where the ranks of an observed program were over time: `observed/attempt_A/positions.jsonl`.

A rank's observer replaces its status twice a second. The launcher, which reads these files anyway, appends what has
changed, so that a run can be watched again later. A line has the ranks that changed. When the file has grown too large,
pairs of lines become one, and later lines come half as often: a run of any length keeps all of its time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from frog.core.files import write_atomic
from frog.core.runs.event_schema import Count
from frog.core.runs.observed import CodeLine, Status, observed_folder
from frog.core.runs.read import Lines, read_lines
from frog.core.schema import Typed

MOST_BYTES = 4 << 20
"""Size of the file from which on it is thinned."""
_LEAST_S = 2.0
"""Interval at which memory and processor time are recorded if nothing else changes."""


class Position(Typed, gc=False, frozen=True, kw_only=True):
    """What one rank did at one moment."""

    state: Literal["running", "ended", "failed"] = "running"
    line: CodeLine | None = None
    """Innermost line of the main thread in the user's code."""
    groups: list[tuple[str, Count, Count]] = msgspec.field(default_factory=list)
    """Name, enqueued and completed collectives of each process group."""
    in_message: bool = False
    cpu_s: float = 0.0
    rss_bytes: Count = 0

    @property
    def place(self) -> tuple[object, ...]:
        """Everything except what always changes: processor time and memory."""
        return self.state, self.line, self.groups, self.in_message


class Moment(Typed, gc=False, frozen=True, kw_only=True):
    """The ranks that changed since the moment before."""

    unix_ns: Count
    ranks: dict[int, Position]


def position_of(status: Status) -> Position:
    """Return the part of a status that is recorded over time."""
    return Position(
        state=status.state,
        line=status.line,
        groups=[(group.group, group.enqueued, group.completed) for group in status.groups],
        in_message=status.in_message,
        cpu_s=round(status.cpu_s, 2),
        rss_bytes=status.rss_bytes,
    )


class Changes:
    """Finds what changed between two looks at the ranks."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, Position]] = {}

    def look(self, statuses: Mapping[int, Status]) -> Moment | None:
        """Return the ranks that changed, at the time of the latest status among them; None if there are none."""
        changed: dict[int, Position] = {}
        at_ns = 0
        for rank, status in statuses.items():
            now, (before_ns, before) = position_of(status), self._last.get(rank, (0, None))
            if before is None or now.place != before.place or status.unix_ns - before_ns > _LEAST_S * 1e9:
                changed[rank] = now
                self._last[rank] = status.unix_ns, now
                at_ns = max(at_ns, status.unix_ns)
        return Moment(unix_ns=at_ns, ranks=changed) if changed else None


class PositionWriter:
    """Appends to the positions of one attempt. A disk that is full or read-only ends the recording, nothing else."""

    def __init__(self, run: Path, attempt: int, most_bytes: int = MOST_BYTES) -> None:
        self.path = positions_path(run, attempt)
        self._changes, self._most_bytes = Changes(), most_bytes
        self._next: Moment | None = None
        """What changed and is not yet in the file."""
        self._every, self._looks = 1, 0
        self._is_off = False

    def look(self, statuses: Mapping[int, Status]) -> None:
        """Write what changed since the last look."""
        moment = self._changes.look(statuses)
        self._looks += 1
        if moment is not None:
            self._next = _joined([self._next, moment]) if self._next is not None else moment
        if self._next is None or self._is_off or self._looks % self._every:
            return
        line, self._next = msgspec.json.encode(self._next) + b"\n", None
        try:
            with open(self.path, "ab") as file:
                file.write(line)
                size = file.tell()
            if size > self._most_bytes:
                thin_out(self.path)
                self._every *= 2
        except OSError:
            self._is_off = True


def thin_out(path: Path) -> None:
    """Make one line of every two: the later time, and what changed in both."""
    moments = read_lines(path, Moment).events
    pairs = [moments[at : at + 2] for at in range(0, len(moments), 2)]
    write_atomic(path, b"".join(msgspec.json.encode(_joined(pair)) + b"\n" for pair in pairs))


def _joined(moments: Iterable[Moment]) -> Moment:
    ranks: dict[int, Position] = {}
    unix_ns = 0
    for moment in moments:
        ranks |= moment.ranks
        unix_ns = moment.unix_ns
    return Moment(unix_ns=unix_ns, ranks=ranks)


def positions_path(run: Path, attempt: int) -> Path:
    """Return the file with the positions of an attempt."""
    return observed_folder(run) / f"attempt_{attempt}" / "positions.jsonl"


def read_positions(run: Path, attempt: int) -> Lines[Moment]:
    """Read the positions of an attempt; empty if none were recorded."""
    with contextlib.suppress(OSError):
        return read_lines(positions_path(run, attempt), Moment)
    return Lines()
