"""The finding of a diagnosis, and its text."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from frog.core.terminal import printable

_MOST_LINES, _MOST_ALSO = 60, 20
"""Most lines of evidence, and most further findings, to show."""


@dataclass(frozen=True)
class Diagnosis:
    """The fault of a run, and the evidence."""

    fault: str
    """The name of a fault (core/config/fault_kinds.py), or usage, memory, crash, stuck, start, gone, interrupted,
    running, none or unknown; of a log, also the id of a known error."""
    finding: str
    """One-sentence summary."""
    rank: int | None = None
    node_rank: int | None = None
    step: int | None = None
    phase: str | None = None
    collective: str | None = None
    """The collective that failed or was never called by all: "all_reduce of 4096 bytes over dp"."""
    line: str | None = None
    """Of other programs than Frog's: the line of the user's code at which the rank was, such as "train.py:14 "
    "(main)"."""
    peer_line: str | None = None
    """The line at which the other ranks were."""
    certain: bool = True
    """False if another cause would leave the same traces; the finding then names both."""
    outcome: str = "failed"
    """State of the run: failed, recovered, completed, interrupted or running."""
    evidence: tuple[str, ...] = ()
    """Lines with time, source, observation and file."""
    advice: str = ""
    also: tuple[Diagnosis, ...] = field(default_factory=tuple)
    """Further problems of the run, or of its earlier starts."""
    known_error: str | None = None
    """The id of the known error that a log shows."""
    meaning: str = ""
    """What the known error means, in sentences."""
    confidence: str = ""
    """How sure the answer is, if `certain` does not say it all."""

    def with_more(self, *evidence: str, **changes: Any) -> Diagnosis:
        return replace(self, evidence=(*self.evidence, *evidence), **changes)

    def shortened(self) -> Diagnosis:
        """Return a diagnosis of readable length, for a run that was started thousands of times."""
        also = tuple(replace(other, evidence=_first(other.evidence, _MOST_LINES // 5)) for other in self.also)
        return replace(
            self,
            evidence=_first(self.evidence, _MOST_LINES),
            also=also[:_MOST_ALSO] + also[_MOST_ALSO:][-1:],  # the last start too
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def diagnosis_text(run: str, diagnosis: Diagnosis) -> str:
    """Format the diagnosis as text: the finding, the evidence line by line, the advice.

    Names in evidence, as of groups and files, may contain anything: a line break in one must not look like a line of
    Frog's.
    """
    lines = [f"{run}: {printable(diagnosis.finding)}", ""]
    if not diagnosis.certain and not diagnosis.confidence:
        lines += ["This is the most likely explanation of the evidence, not the only one.", ""]
    lines += ["Evidence", *(f"  {printable(line)}" for line in diagnosis.evidence), ""]
    if diagnosis.meaning:
        lines += ["What it means", *(f"  {line}" for line in diagnosis.meaning.splitlines()), ""]
    for other in diagnosis.also:
        lines += [f"Also: {printable(other.finding)}", *(f"  {printable(line)}" for line in other.evidence), ""]
    lines += ["What to do", *(f"  {line}" for line in diagnosis.advice.splitlines())]
    if diagnosis.confidence:
        lines += ["", "How sure", f"  {diagnosis.confidence}"]
    return "\n".join(lines)


def _first(lines: tuple[str, ...], most: int) -> tuple[str, ...]:
    """Return the first lines, and the number of omitted lines."""
    return lines if len(lines) <= most else (*lines[:most], f"... and {len(lines) - most} more lines")


def clock(unix_ns: int | None) -> str:
    """Format a time of day in UTC, to the millisecond, as the logs do."""
    if unix_ns is None:
        return " " * 12
    at = dt.datetime.fromtimestamp(unix_ns / 1e9, dt.UTC).replace(tzinfo=None)
    return at.isoformat(timespec="milliseconds").partition("T")[2]


def note(unix_ns: int | None, who: str, what: str, file: str) -> str:
    """Format a line of evidence: time, source, observation, file (empty: none)."""
    return f"{clock(unix_ns)}  {who:9} {what}" + (f"  [{file}]" if file else "")
