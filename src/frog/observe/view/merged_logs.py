"""Merge the logs of all ranks and nodes into one stream, in chronological order.

A line of a rank's log is `2026-11-21 10:51:38.123 rank 2 | text`, one of a node's agent `2026-11-21 10:51:38.123 text`;
times are UTC. A line without such a prefix belongs to the entry before it: a traceback stays in one piece. Older logs,
whose lines have no date (`10:51:38 rank 2 | text`, local time), take the file's date; lines without any time, as the
tutorial scripts write them, keep their place after the previous entry.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from frog.core.errors import RunError, UsageError
from frog.core.runs import read_run
from frog.core.runs.folder import RunFolder
from frog.core.runs.run import is_active
from frog.core.schema import shortened
from frog.core.terminal import printable, wrapped

POLL_S = 0.2
_BLOCK_BYTES = 1 << 20
"""Most bytes to read in one block; longer lines are truncated."""

_TIME = r"(?:(?P<date>\d{4}-\d\d-\d\d)[ T])?(?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?(?:Z|\+00:00)?"
_HEADS = {
    "rank": re.compile(rf"(?:{_TIME} )?rank \d+ \| ?(?P<text>.*)", re.DOTALL),
    "node": re.compile(rf"{_TIME} (?:node\s?\d+ \| ?)?(?P<text>.*)", re.DOTALL),
}
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TRACEBACK = "Traceback (most recent call last):"
_COLORS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)
"""Terminal colors, by rank."""


@dataclass(frozen=True, order=True)
class Source:
    """The origin of a log: a node's agent or a rank."""

    kind: str
    number: int

    def path(self, folder: RunFolder) -> Path:
        return folder.rank_log(self.number) if self.kind == "rank" else folder.node_log(self.number)

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


@dataclass
class Entry:
    """A log message, in one or more lines."""

    source: Source
    time_s: float
    """Seconds since 1970; 0 if the log has no times."""
    order: int
    """Its index in its own log."""
    lines: list[str]

    @property
    def key(self) -> tuple[float, Source, int]:
        return self.time_s, self.source, self.order


@dataclass
class Choice:
    """A selection of entries. A rank's log is shown if the rank or its node is named, or neither is."""

    ranks: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    pattern: re.Pattern[str] | None = None
    since_s: float | None = None

    def has(self, entry: Entry) -> bool:
        if self.since_s is not None and entry.time_s < self.since_s:
            return False
        return self.pattern is None or any(self.pattern.search(line) for line in entry.lines)


class Tail:
    """A log file, read incrementally as it grows."""

    def __init__(self, source: Source, path: Path) -> None:
        self.source, self._path = source, path
        self._at, self._rest, self._count = 0, b"", 0
        self._time_s = 0.0
        self._open: Entry | None = None
        self._in_traceback = False

    def read(self) -> list[Entry]:
        """Return the complete entries. The last one is complete when another follows, or when no more lines arrive."""
        size = self._path.stat().st_size if self._path.is_file() else 0
        if size <= self._at:
            return self.close() if not self._rest else []
        entries: list[Entry] = []
        with open(self._path, "rb") as file:
            file.seek(self._at)
            while block := file.read(min(_BLOCK_BYTES, size - self._at)):
                self._at += len(block)
                first, *lines = block.split(b"\n")
                *lines, self._rest = [(self._rest + first)[:_BLOCK_BYTES], *lines]
                completed = [self._take(line.decode(errors="replace")) for line in lines]
                entries += [entry for entry in completed if entry is not None]
        return entries

    def close(self) -> list[Entry]:
        """Return the remaining entries at the end, including an incomplete line."""
        if self._rest:
            left, self._rest = self._rest, b""
            before = self._take(left.decode(errors="replace"))
            return [*([before] if before else []), *self.close()]
        entry, self._open = self._open, None
        return [entry] if entry else []

    def _take(self, line: str) -> Entry | None:
        """Begin an entry with this line or extend the open one; return the entry that is now complete."""
        line = line.rstrip("\r")
        match = _HEADS[self.source.kind].fullmatch(line)
        text = match["text"] if match else line
        if self._open is not None and (match is None or self._goes_on(text)):
            self._open.lines.append(text)
            return None
        before = self._open
        if match is not None and match["clock"]:
            # An entry is never before the one above it, even if the clock was changed.
            with contextlib.suppress(ValueError, OverflowError):  # an invalid day or hour
                self._time_s = max(self._time_s, self._time_of(match))
        self._in_traceback = text.startswith(_TRACEBACK)
        self._open = Entry(self.source, self._time_s, self._count, [text])
        self._count += 1
        return before

    def _goes_on(self, text: str) -> bool:
        """Handle an agent's line: each has a time, but lines of a traceback, and indented ones, belong together."""
        if self.source.kind != "node":
            return False
        if text.startswith((" ", "\t")):
            return True
        goes_on, self._in_traceback = self._in_traceback, False
        return goes_on

    def _time_of(self, match: re.Match[str]) -> float:
        part = float(f"0.{match['part']}") if match["part"] else 0.0
        if match["date"]:
            return dt.datetime.fromisoformat(f"{match['date']}T{match['clock']}+00:00").timestamp() + part
        if not self._time_s:  # its folder changed last when the log was created
            self._time_s = self._path.parent.stat().st_mtime
        at = dt.datetime.fromtimestamp(self._time_s).astimezone()
        hour, minute, second = map(int, match["clock"].split(":"))
        at = at.replace(hour=hour, minute=minute, second=second, microsecond=0)
        while at.timestamp() < self._time_s - 3600:  # past midnight
            at += dt.timedelta(days=1)
        return at.timestamp()


class Logs:
    """The logs of a run that a user selected, including future ones."""

    def __init__(self, folder: RunFolder, choice: Choice) -> None:
        self._folder, self._choice = folder, choice
        self._tails: dict[Source, Tail] = {}

    def read(self, close: bool = False) -> list[Entry]:
        """Return the new entries, in chronological order; all remaining ones if the run has ended."""
        for source in self._wanted():
            self._tails.setdefault(source, Tail(source, source.path(self._folder)))
        entries = [entry for tail in self._tails.values() for entry in tail.read()]
        if close:
            entries += [entry for tail in self._tails.values() for entry in tail.close()]
        return sorted((entry for entry in entries if self._choice.has(entry)), key=lambda entry: entry.key)

    def catch_up(self) -> list[Entry]:
        """Return all current entries, including the last entry of each log that is no longer growing."""
        return sorted([*self.read(), *self.read()], key=lambda entry: entry.key)

    @property
    def width(self) -> int:
        """Length of the longest name."""
        return max((len(str(source)) for source in self._tails), default=0)

    def _wanted(self) -> list[Source]:
        there = sources(self._folder)
        ranks, nodes = self._choice.ranks, self._choice.nodes
        if not ranks and not nodes:
            return there
        on_nodes = ranks_on(self._folder, nodes) if nodes else set()
        chosen = {Source("rank", rank) for rank in {*ranks, *on_nodes}} | {Source("node", node) for node in nodes}
        return [source for source in there if source in chosen]


def sources(folder: RunFolder) -> list[Source]:
    """Return the existing logs: nodes, then ranks, in order."""
    if not folder.logs.is_dir():
        return []
    names = (re.fullmatch(r"(rank|node)_(\d+)", entry.name) for entry in folder.logs.iterdir())
    named = (Source(match[1], int(match[2])) for match in names if match)
    return sorted(source for source in named if source.path(folder).is_file())


def ranks_on(folder: RunFolder, nodes: list[int]) -> set[int]:
    """Return the ranks that run on some nodes, or did in an earlier attempt of the run."""
    ranks = set[int]()
    for attempt in read_run(folder).attempts:
        if attempt.worlds:  # as the launcher reports it: its nodes keep their numbers when the world shrinks
            ranks |= {rank for world in attempt.worlds if world.node in nodes for rank in world.ranks}
        else:
            ranks |= {rank for rank in attempt.ranks if attempt.node_of(rank) in nodes}
    return ranks


def check_choice(folder: RunFolder, choice: Choice) -> None:
    """Raise UsageError if a selected rank or node has no log, RunError if there is no log at all."""
    there = sources(folder)
    if not there and read_run(folder).is_simulated:
        raise RunError(f"{folder.path}: a simulated run has no logs", f"frog diagnose {folder.path}")
    if not there:
        raise RunError(f"{folder.logs}: contains no logs", "-f waits for them during the run")
    for kind, numbers in (("rank", choice.ranks), ("node", choice.nodes)):
        known = [source.number for source in there if source.kind == kind]
        if kind == "node":
            known = sorted({*known, *(node for node in numbers if ranks_on(folder, [node]))})
        if absent := [number for number in numbers if number not in known]:
            names = ", ".join(map(str, known)) or "none"
            raise UsageError(f"--{kind} {absent[0]}: has no log in {folder.logs}; logs exist for {kind}s {names}")


def follow(folder: RunFolder, logs: Logs, wait: Callable[[float], None] = time.sleep) -> Iterator[list[Entry]]:
    """Yield new entries until the run ends."""
    while True:
        goes_on = is_active(folder)  # asked before reading, so that the last messages are read
        yield logs.read(close=not goes_on)
        if not goes_on:
            return
        wait(POLL_S)


_LEAST_ROOM = 20
"""Minimum width for the text, in a narrow terminal."""
_MOST_LINE = 8_000
"""Most characters of a line to show; the log file has all."""


def format_entry(entry: Entry, width: int, colour: bool, columns: int | None = None) -> str:
    """Format `2026-11-21 10:51:38.123 [rank 2] text`, a line for each of the entry's, the time on the first.

    In a terminal the text is wrapped to the columns after time and name.
    """
    time_text = " " * 23
    if entry.time_s:
        at = dt.datetime.fromtimestamp(entry.time_s, dt.UTC).replace(tzinfo=None)
        time_text = at.isoformat(sep=" ", timespec="milliseconds")
    name = f"[{entry.source}]".ljust(width + 2)
    if colour:
        number = _COLORS[entry.source.number % len(_COLORS)]
        style = "1" if entry.source.kind == "node" else str(number)
        name, time_text = f"\033[{style}m{name}\033[0m", f"\033[2m{time_text}\033[0m"
    head_columns = 23 + width + 4
    room = columns and max(columns - head_columns, _LEAST_ROOM)
    heads = [time_text, *[" " * 23] * (len(entry.lines) - 1)]
    lines = []
    for head, text in zip(heads, entry.lines, strict=True):
        first, *more = wrapped(shortened(printable(text), _MOST_LINE), room)
        lines += [f"{head} {name} {first}".rstrip(), *(" " * head_columns + line for line in more)]
    return "\n".join(lines)


def parse_since(text: str, now_s: float) -> float:
    """Parse `90s`, `10m`, `2h`, `1d` ago; or a time in UTC: `10:51`, `10:51:38`, `2026-11-21 10:51`.

    Raises:  UsageError for anything else.
    """
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        return now_s - float(match[1]) * _UNITS_S[match[2]]
    today = dt.datetime.fromtimestamp(now_s, dt.UTC).date().isoformat()
    try:
        at = dt.datetime.fromisoformat(f"{today} {text}" if re.match(r"\d\d:", text) else text)
    except ValueError:
        raise UsageError(
            f"--since {text}: expected a duration or a time", "--since 10m, --since 10:51, --since 2026-11-21T10:51"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=dt.UTC)).timestamp()
