"""Text charts of several ranks' times: one line per rank, and a table of which rank waited for which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frog.core.units import format_seconds

_WIDTH = 56


@dataclass(frozen=True)
class Bar:
    """One rank's line: its activities over time, each drawn with a character, and a remark."""

    label: str
    spans: Sequence[tuple[str, int, int]]
    """Consecutive spans: character, start and end in nanoseconds."""
    words: str


def span_text(ns: int) -> str:
    """Format a duration; below 10 ms, to a tenth of a millisecond."""
    return f"{ns / 1e6:.1f} ms" if ns < 10_000_000 else format_seconds(ns / 1e9)


def chart(bars: Sequence[Bar]) -> str:
    """Draw the bars on a common time scale, from the first start to the last end."""
    first = min(span[1] for bar in bars for span in bar.spans)
    last = max(span[2] for bar in bars for span in bar.spans)
    label_width = max(len(bar.label) for bar in bars)

    def column(ns: int) -> int:
        return round((ns - first) * _WIDTH / max(1, last - first))

    lines = []
    for bar in bars:
        line = " " * column(bar.spans[0][1])
        for sign, _, end_ns in bar.spans:
            line += sign * (column(end_ns) - len(line))
        lines.append(f"{bar.label:{label_width}}  {line:{_WIDTH}}  {bar.words}".rstrip())
    end = format_seconds((last - first) / 1e9)
    lines.append(f"{'':{label_width}}  0{end:>{_WIDTH - 1}}")
    return "\n".join(lines)


def waits(came_ns: Sequence[int]) -> str:
    """Return a table: for each rank (row), how much later each other rank (column) arrived."""
    size = len(came_ns)
    rows = [["waited for", *(f"rank {rank}" for rank in range(size))]]
    for rank in range(size):
        later_ns = [came - came_ns[rank] for came in came_ns]
        rows.append([f"rank {rank}", *(span_text(ns) if ns > 0 else "-" for ns in later_ns)])
    widths = [max(len(row[column]) for row in rows) for column in range(size + 1)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
