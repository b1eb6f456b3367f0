"""Parse and format numbers with units, such as `5.3 MB`, `12 ms` and `33 %`."""

from __future__ import annotations

import math
import re

from frog.core.errors import UsageError
from frog.core.schema import shortened

_BYTES = {"B": 1.0, "byte": 1.0, "bytes": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BYTES |= {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_UNITS: dict[str, dict[str, float]] = {
    "B": _BYTES,
    "s": _SECONDS,
    "%": {"%": 1.0},
    "steps": {"steps": 1.0, "step": 1.0},
    "ranks": {"ranks": 1.0, "rank": 1.0},
    "": {},
}
"""Accepted units for each manifest unit, with their sizes. A number without a unit is in the manifest's unit."""

_NUMBER = r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)?(?:\.\d*)?(?:[eE][+-]?\d+)?"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*([^\d\s.,]*)\s*")
_LONGEST, _MOST = 80, 1e290
"""Limits: characters of input, and a value that stays finite in every unit."""
_BITS = re.compile(r"[kKMGT]?i?b|[kKMGT]?i?bits?")


def parse_quantity(text: str, unit: str) -> float:
    """Parse a quantity and convert it to a manifest's unit.

    Raises:  UsageError if the text is not a finite number or has a unit of another kind.
    """
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    try:
        value = float(match[1].replace(",", "").replace("_", "")) if match else math.nan
    except ValueError:
        value = math.nan
    if match is None or not abs(value) < _MOST:
        raise UsageError(f"{shortened(text)}: not a number", f"a number{_with_units(unit)}")
    if not match[2]:
        return value
    known = _UNITS[unit]
    if match[2] not in known:
        bits = "; a byte has 8 bits" if unit == "B" and _BITS.fullmatch(match[2]) else ""
        raise UsageError(
            f"{text}: found the unit {match[2]}, expected {_expected(unit)}{bits}", f"a number{_with_units(unit)}"
        )
    return value * known[match[2]]


def _expected(unit: str) -> str:
    return ", ".join(_UNITS[unit]) if unit else "none"


def _with_units(unit: str) -> str:
    examples = {"B": ", such as 5312, 5.3MB or 5MiB", "s": ", such as 0.012, 12ms or 3s", "%": ", such as 33 or 33%"}
    return examples.get(unit, ", such as 12")


def format_quantity(value: float, unit: str, digits: int = 3) -> str:
    """Format a quantity with a suitable prefix and this many significant digits."""
    if unit == "B":
        return _scaled(value, (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)), "B", digits)
    if unit == "s":
        return _scaled(value, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)), "s", digits)
    return f"{_digits(value, digits)} {unit}".rstrip()


def format_distinct(value: float, other: float, unit: str) -> tuple[str, str]:
    """Format two quantities with enough digits to tell them apart, at least three."""
    pair = "", ""
    for digits in range(3, 12):
        pair = format_quantity(value, unit, digits), format_quantity(other, unit, digits)
        if pair[0] != pair[1]:
            break
    return pair


def _scaled(value: float, units: tuple[tuple[str, float], ...], smallest: str, digits: int) -> str:
    for name, size in units:
        if abs(value) >= size:
            return f"{_digits(value / size, digits)} {name}"
    return f"{_digits(value, digits)} {smallest}"


def _digits(value: float, digits: int) -> str:
    """Format with this many significant digits; print whole numbers in full."""
    if value == round(value) and abs(value) < 1e7:
        return f"{value:.0f}"
    whole = len(f"{abs(value):.0f}") if abs(value) < 1e7 else 0
    return f"{value:.{max(digits, whole)}g}"


def relative_error(guess: float, measured: float) -> float | None:
    """Return a guess's error as a fraction of the measurement; None if only the measurement is 0."""
    if math.isclose(guess, measured, rel_tol=1e-9):
        return 0.0
    return abs(guess - measured) / abs(measured) if measured else None
