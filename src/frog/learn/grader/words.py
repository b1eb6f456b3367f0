"""Format numbers for the sentences of a verdict."""

from __future__ import annotations

_MOST_DIGITS = 17
"""Number of significant digits that distinguishes any two floating-point numbers."""


def count(number: int, noun: str, nouns: str | None = None) -> str:
    """Format a count: 1, "byte" -> "1 byte"; 2048, "byte" -> "2,048 bytes"; 0, "batch", "batches" -> "0 batches"."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def apart(found: float, expected: float, digits: int = 6) -> tuple[str, str]:
    """Format two numbers with enough significant digits to tell them apart, at least `digits`.

    Equal numbers give equal texts.
    """
    a, b = f"{found:.{digits}g}", f"{expected:.{digits}g}"
    while a == b and found != expected and digits < _MOST_DIGITS:
        digits += 1
        a, b = f"{found:.{digits}g}", f"{expected:.{digits}g}"
    return a, b
