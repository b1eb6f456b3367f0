"""A run as a film: what each rank did at each moment, the numbers, the events and the diagnosis.

The page, the saved file and the text view draw a film and read nothing else. Times are microseconds since the film's
start, so that a browser keeps them exactly.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from frog.core.units import span
from frog.observe.view.report_diagnosis import ShownDiagnosis

Kind = Literal[
    "data",
    "forward",
    "backward",
    "reduce",
    "optimize",
    "zero",
    "evaluate",
    "checkpoint",
    "line",
    "collective",
    "waits",
    "start",
    "ended",
    "failed",
]
"""What a bar shows, and so its color: a phase of Frog's trainer, a line of a program, or how a rank waits or ended."""

BAR = 4
"""Numbers per bar and per call: start and duration in us, index into `Film.words`, step or number."""
USE = 3
"""Numbers per measurement of use: time in us, MiB of memory, percent of one core (-1: unknown)."""


class Words:
    """The texts of a film, each once."""

    def __init__(self) -> None:
        self.rows: list[tuple[Kind, str]] = []
        self._index: dict[tuple[Kind, str], int] = {}

    def of(self, kind: Kind, text: str) -> int:
        """Return the index of a text."""
        key = (kind, text)
        if key not in self._index:
            self._index[key] = len(self.rows)
            self.rows.append(key)
        return self._index[key]


@dataclass
class Lane:
    """One rank over time. The lists are flat, to be small as JSON."""

    rank: int
    node: int | None = None
    host: str = ""
    pid: int | None = None
    state: str = ""
    """How it is or ended: running, completed, failed with ValueError, killed by SIGKILL, ..."""
    bars: list[int] = field(default_factory=list)
    """What it did (BAR numbers each): phases, or lines of a program; the number is the step."""
    calls: list[int] = field(default_factory=list)
    """Its collectives (BAR numbers each); the number is the collective's."""
    use: list[int] = field(default_factory=list)
    """Its memory and processor time (USE numbers each)."""

    def at(self, time_us: int) -> tuple[int, int] | None:
        """Return the word and the number of the bar at a time; None between bars."""
        return _at(self.bars, time_us)

    def call_at(self, time_us: int) -> tuple[int, int] | None:
        """Return the word and the number of the collective at a time; None outside of all."""
        return _at(self.calls, time_us)

    def use_at(self, time_us: int) -> tuple[int, int] | None:
        """Return MiB of memory and percent of one core, as last measured before a time."""
        measured = [index for index in range(0, len(self.use), USE) if self.use[index] <= time_us]
        return (self.use[measured[-1] + 1], self.use[measured[-1] + 2]) if measured else None


def _at(rows: list[int], time_us: int) -> tuple[int, int] | None:
    for index in range(len(rows) - BAR, -1, -BAR):
        start, duration, word, number = rows[index : index + BAR]
        if start <= time_us <= start + duration + 5:  # both are rounded down
            return word, number
    return None


@dataclass
class Series:
    """A curve."""

    name: str
    title: str
    at: list[int]
    """Time of each point in us."""
    step: list[int]
    values: list[float | None]
    """None: not a finite number."""


@dataclass(frozen=True)
class FilmEvent:
    """Something that happened."""

    at: int
    rank: int | None
    kind: Literal["start", "note", "failure", "end"]
    text: str


@dataclass(frozen=True)
class FilmNode:
    """A node of the run."""

    node: int
    host: str
    ranks: list[int]


@dataclass
class Film:
    """A run from its start to now, or to its end."""

    name: str
    status: str
    """running, completed, failed, interrupted, died or ended."""
    command: str
    created: str
    start_unix_ns: int
    end: int
    """The last moment, in us."""
    is_live: bool
    still_s: float = 0.0
    """How long ranks have waited for others without any progress; 0 if none waits, or the run has ended."""
    words: list[tuple[Kind, str]] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """Flat: number and time in us of the end of each step that can be stepped to."""
    events: list[FilmEvent] = field(default_factory=list)
    failure: int | None = None
    """Time of the first failure in us."""
    diagnosis: ShownDiagnosis | None = None
    nodes: list[FilmNode] = field(default_factory=list)
    network: str = ""
    notes: list[str] = field(default_factory=list)
    """What the film does not show, and why."""

    @property
    def waiting(self) -> dict[int, str]:
        """For whom each rank waits, by the diagnosis: `waits for rank 0`."""
        groups = self.diagnosis.waits if self.diagnosis is not None else []
        return {
            rank: f"waits for {span(sorted(other for at in group.waits_for for other in groups[at].ranks))}"
            for group in groups
            for rank in group.ranks
            if group.waits_for
        }

    def as_json(self) -> dict[str, Any]:
        """Return the film for the page: of the diagnosis only for whom each rank waits, as the page gets it as HTML."""
        parts = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "diagnosis"}
        for name in ("lanes", "series", "events", "nodes"):
            parts[name] = [asdict(row) for row in parts[name]]
        parts["words"] = list(self.words)
        parts["waiting"] = self.waiting
        return parts


def first_failure(events: list[FilmEvent]) -> int | None:
    """Return the time of the first event that is a failure; None if there is none."""
    return min((event.at for event in events if event.kind == "failure"), default=None)
