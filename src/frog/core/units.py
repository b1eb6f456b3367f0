"""Numbers: with their units for people, the unit of a field in a run file, and whole numbers from texts."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_CHARACTERS = 30
"""Most characters of an integer of 64 bits, with separators and spaces."""


def format_bytes(num_bytes: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def count(number: int, noun: str, nouns: str | None = None) -> str:
    """Format a count: 1, "byte" -> "1 byte"; 2048, "byte" -> "2,048 bytes"; 0, "batch", "batches" -> "0 batches"."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def some_of(items: Sequence[object], most: int) -> str:
    """Format the first items, and how many more there are: `a, b and 3 more`."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def span(ranks: list[int]) -> str:
    """Format `rank 2`, `ranks 0, 1 and 3`, `ranks 0 to 7`."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 3 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def format_count(count: float) -> str:
    """1_234_567 -> '1.23 M'."""
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= limit:
            return f"{count / limit:.2f} {suffix}"
    return f"{count:.0f}"


def format_seconds(duration_s: float) -> str:
    """83.4 -> '1 min 23 s'."""
    if duration_s < 1:
        return f"{duration_s * 1e3:.0f} ms"
    if duration_s < 60:
        return f"{duration_s:.1f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def parse_whole(text: str) -> int | None:
    """Parse 0, 12 or 007, with at most 18 digits; None for anything else.

    Texts from outside are read with this and `parse_integer`: `int` fails above 4,300 digits, also where
    `text.isdecimal()`.
    """
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def parse_integer(text: str) -> int:
    """Parse 12, -3 or 1_000. Raises ValueError for anything else, and for a number of more than 64 bits."""
    if len(text) > _MOST_CHARACTERS or not -(2**63) <= (number := int(text)) < 2**63:
        raise ValueError("not a whole number of 64 bits")
    return number


def time_text() -> str:
    """Return the current UTC time to the millisecond, in a form that sorts as text."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")


def now_text() -> str:
    """Return the current UTC time to the second, as in run.json."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Unit:
    """The unit of a numeric field; `Unit()` for a number without a unit. The site's reference shows it."""

    name: str = ""
