"""Lanes of an observed program: at which line each rank was, in which collective, and for whom it waited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from frog.core.runs.observed import CodeLine, CollectiveEntry, Observed
from frog.core.runs.positions import Moment, Position
from frog.core.units import span
from frog.observe.watch.film import FilmEvent, Kind, Lane, Words
from frog.observe.watch.trained_lanes import Row, flat

_LONG_NS = 2_000_000_000
"""A rank that waits for longer is worth a look."""


def shown_place(line: CodeLine | None, folder: str) -> str:
    """Return a line as `my.py:14 (main)`, relative to the program's folder if it is below it."""
    if line is None:
        return ""
    file = line.file.replace("\\", "/")
    base = folder.rstrip("/") + "/"
    shown = file.removeprefix(base) if folder and file.startswith(base) else PurePosixPath(file).name or file
    function = f" ({line.function})" if line.function not in ("", "<module>") else ""
    return f"{shown}:{line.line}{function}"


def awaited(rank: int, positions: Mapping[int, Position]) -> tuple[str, int, list[int]] | None:
    """Return the group and the number of the collective in which a rank waits, and the ranks that it waits for.

    These have the group but have not called the collective. None if the rank is in no collective.
    """
    own = positions[rank]
    for name, enqueued, completed in own.groups:
        if enqueued > completed:
            number = completed + 1
            return name, number, sorted(r for r, seen in positions.items() if _has_not_called(seen, name, number))
    return None


def _has_not_called(position: Position, group: str, number: int) -> bool:
    return any(name == group and enqueued < number for name, enqueued, _ in position.groups)


class ProgramLane:
    """One rank's bars and use so far."""

    def __init__(self, rank: int, most_bars: int) -> None:
        self.rank, self._most = rank, max(50, most_bars)
        self.bars: list[Row] = []
        self.use: list[tuple[int, int, int]] = []
        """Unix ns, MiB and percent of one core."""
        self._open: tuple[int, int, int] | None = None
        """Since when, which word, which number."""
        self._last_cpu: tuple[int, float] | None = None

    def now(self, unix_ns: int, word: int, number: int) -> None:
        """Record what the rank does from a moment on."""
        if self._open is not None and self._open[1:] == (word, number):
            return
        self.close(unix_ns)
        self._open = (unix_ns, word, number)

    def close(self, unix_ns: int) -> None:
        """End the open bar."""
        if self._open is not None:
            since, word, number = self._open
            self.bars.append((since, max(since, unix_ns), word, number))
            self._open = None
            if len(self.bars) > self._most:
                self._thin_out()

    def _thin_out(self) -> None:
        """Join the older half of the bars in pairs, each with what took longer."""
        half = len(self.bars) // 2 // 2 * 2
        pairs = zip(self.bars[:half:2], self.bars[1:half:2], strict=True)
        joined = [(a[0], b[1], *(a if a[1] - a[0] >= b[1] - b[0] else b)[2:]) for a, b in pairs]
        self.bars = [*joined, *self.bars[half:]]

    def measure(self, unix_ns: int, position: Position) -> None:
        """Record memory and processor time."""
        percent = -1
        if self._last_cpu is not None:
            if unix_ns - self._last_cpu[0] < 400_000_000:
                return
            passed_s = (unix_ns - self._last_cpu[0]) / 1e9
            percent = max(0, round(100 * (position.cpu_s - self._last_cpu[1]) / passed_s))
        self._last_cpu = (unix_ns, position.cpu_s)
        self.use.append((unix_ns, position.rss_bytes >> 20, percent))
        if len(self.use) > 400:
            self.use = [*self.use[:200:2], *self.use[200:]]

    def rows(self, until_ns: int) -> list[Row]:
        """Return all bars; the open one lasts until a moment."""
        if self._open is None:
            return self.bars
        since, word, number = self._open
        return [*self.bars, (since, max(since, until_ns), word, number)]


class ProgramLanes:
    """All ranks of one attempt, moment by moment."""

    def __init__(self, words: Words, folder: str, most_bars: int) -> None:
        self.words, self._folder, self._most_bars = words, folder, most_bars
        self.positions: dict[int, Position] = {}
        self.lanes: dict[int, ProgramLane] = {}
        self.first_ns = self.last_ns = 0
        self.still_since_ns = 0
        """Since when no rank has finished or begun a collective, or changed its line."""

    def add(self, moment: Moment) -> None:
        """Take the ranks that changed."""
        at = moment.unix_ns
        self.first_ns = min(self.first_ns or at, at)
        self.last_ns = max(self.last_ns, at)
        for rank, position in moment.ranks.items():
            before = self.positions.get(rank)
            if before is None or before.place != position.place:
                self.still_since_ns = at
            self.positions[rank] = position
            self.lanes.setdefault(rank, ProgramLane(rank, self._most_bars)).measure(at, position)
        for rank, position in self.positions.items():
            is_pending = any(enqueued > completed for _, enqueued, completed in position.groups)
            if rank in moment.ranks or is_pending:
                self.lanes[rank].now(at, *self._shown(rank, position))

    def rows(self, rank: int, until_ns: int) -> list[Row]:
        """Return the bars of a rank. A short wait, as in every step, has the color of a collective."""
        shown = []
        for begin, end, word, number in self.lanes[rank].rows(until_ns):
            kind, text = self.words.rows[word]
            is_short = kind == "waits" and end - begin < _LONG_NS
            shown.append((begin, end, self.words.of("collective", text) if is_short else word, number))
        return shown

    @property
    def is_waiting(self) -> bool:
        """True if a rank is in a collective or waits for a message."""
        return any(
            position.in_message or any(enqueued > completed for _, enqueued, completed in position.groups)
            for position in self.positions.values()
            if position.state == "running"
        )

    def _shown(self, rank: int, position: Position) -> tuple[int, int]:
        """Return the word and the number for what a rank does."""
        place = shown_place(position.line, self._folder)
        at = f" at {place}" if place else ""
        if position.state != "running":
            kind: Kind = "ended" if position.state == "ended" else "failed"
            text = "reached its end" if kind == "ended" else f"failed{at}"
            return self.words.of(kind, text), 0
        wait = awaited(rank, self.positions)
        if wait is not None:
            group, number, ranks = wait
            groups = {name for other in self.positions.values() for name, _, _ in other.groups}
            of_group = f" of group {group}" if group and len(groups) > 1 else ""
            what = f"in a collective{of_group}{at}"
            if ranks:
                return self.words.of("waits", f"{what}, waits for {span(ranks)}"), number
            return self.words.of("collective", what), number
        if position.in_message:
            return self.words.of("waits", f"waits for a message{at}"), 0
        return self.words.of("line", place) if place else self.words.of("start", "starting"), 0


def recorded_calls(own: Observed, words: Words, folder: str, until_ns: int, most: int) -> list[Row]:
    """Return the last collectives of a rank. One whose end is unknown, as with gloo, has no duration."""
    if own.collectives is None:
        return []
    until_ns = max(until_ns, own.collectives.unix_ns)
    entries = own.collectives.entries[-most:]
    return [_call_row(entry, words, folder, until_ns) for entry in entries if entry.created_unix_ns]


def _call_row(entry: CollectiveEntry, words: Words, folder: str, until_ns: int) -> Row:
    place = shown_place(entry.line or next(iter(entry.stack), None), folder)
    text = entry.op
    if entry.sizes and entry.sizes[0]:
        text += f" of {'x'.join(map(str, entry.sizes[0]))}"
        text += f" {entry.dtypes[0].lower()}" if entry.dtypes else ""
    if place:
        text += f" at {place}"
    end = until_ns if not entry.done else entry.completed_unix_ns or entry.created_unix_ns
    return entry.created_unix_ns, end, words.of("collective", text), entry.seq


def lane_of_last(own: Observed, words: Words, folder: str, start_ns: int) -> Lane:
    """Return the lane of a rank of which only the last status is known."""
    lane, status = Lane(own.rank), own.status
    if status is not None:
        place = shown_place(status.line, folder)
        word = words.of("line", f"last seen at {place}") if place else words.of("start", "running")
        lane.bars = flat([(status.started_unix_ns, status.unix_ns, word, 0)], start_ns)
    return lane


def describe_observed(lane: Lane, own: Observed) -> None:
    """Add what the observer says of a rank to its lane."""
    status = own.status
    if status is not None:
        lane.node, lane.host, lane.pid = status.node_rank, status.host, status.pid
        lane.state = {"ended": "reached its end", "failed": "failed"}.get(status.state, "running")
    if own.error is not None and own.error.thread == "MainThread":
        lane.state = f"failed with {own.error.type}"


def observed_errors(observed: Iterable[Observed], start_ns: int) -> list[FilmEvent]:
    """Return the exceptions of the ranks as events."""
    return [
        FilmEvent(
            (own.error.unix_ns - start_ns) // 1000, own.rank, "failure", f"{own.error.type}: {own.error.message}"[:300]
        )
        for own in observed
        if own.error is not None
    ]


def program_folder(command: Iterable[str], cwd: str) -> str:
    """Return the folder of a program's script, or the one that it ran in."""
    script = next((word for word in command if word.endswith(".py")), None)
    return str((Path(cwd) / script).parent) if script is not None else cwd
