"""Format numbers for the sentences of a verdict."""

from __future__ import annotations

from frog.core.units import count

__all__ = ["apart", "count", "distinct_texts"]

_MOST_DIGITS = 17
"""Number of significant digits that distinguishes any two floating-point numbers."""


def distinct_texts(found: float, expected: float, digits: int = 6) -> tuple[str, str]:
    """Format two numbers with enough significant digits to tell them apart, at least `digits`.

    Equal numbers give equal texts.
    """
    a, b = f"{found:.{digits}g}", f"{expected:.{digits}g}"
    while a == b and found != expected and digits < _MOST_DIGITS:
        digits += 1
        a, b = f"{found:.{digits}g}", f"{expected:.{digits}g}"
    return a, b


apart = distinct_texts
"""The name in exercises that were written for Frog 0.1."""
