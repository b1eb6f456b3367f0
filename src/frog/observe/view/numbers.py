"""Numbers in a report: two to four significant digits, and one row for ranks that agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any


def format_number(value: float | None, digits: int = 4) -> str:
    """Format significant digits, without an exponent for numbers of everyday size."""
    if value is None:
        return "–"  # noqa: RUF001
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        decimals = digits - 1 - (math.floor(math.log10(abs(value))) if value else 0)
        return f"{value:,.{max(0, decimals)}f}"
    return f"{value:.{digits - 1}e}"


def format_percent(fraction: float | None) -> str:
    """Format two or three digits: 0.4567 -> "46 %", 0.0123 -> "1.2 %", 0.0000086 -> "< 0.01 %"."""
    if fraction is None:
        return "–"  # noqa: RUF001
    percent = 100 * fraction
    for least, decimals in ((10, 0), (1, 1), (0.01, 2)):
        if percent >= least:
            return f"{percent:.{decimals}f} %"
    return "0 %" if percent == 0 else "< 0.01 %"


def format_ratio(value: float) -> str:
    """Format two decimals, as many as the formulas promise: 1.0003 -> "1.00"."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def together(rows: Iterable[Mapping[str, Any]], cells: Callable[[Any], Any]) -> list[tuple[str, Any]]:
    """Return the cells of each row once for all ranks whose cells read the same: [("0-3", cells)]."""
    alike: dict[Any, list[int]] = {}
    for row in rows:
        alike.setdefault(cells(row), []).append(row["rank"])
    return [(format_ranks(ranks), shown) for shown, ranks in alike.items()]


def format_ranks(ranks: Iterable[int]) -> str:
    """[0, 1, 2, 5] -> "0-2, 5"."""
    spans = []
    for _, run in groupby(enumerate(sorted(ranks)), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        spans.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ", ".join(spans)
