"""Cells of a row of a table of runs, as numbers and words."""

from __future__ import annotations

import math
from collections.abc import Mapping

from frog.core.errors import ConfigError
from frog.core.schema import shortened

Row = Mapping[str, str]

_MOST = 10**12
"""Largest number in a cell: above it, a typing mistake."""


def read_real(row: Row, name: str) -> float:
    """Read a number; 0 if the cell is empty.

    Raises:  ConfigError if the cell contains something else, or a number that no run has.
    """
    text = row.get(name) or "0"
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{name}={shortened(text)!r}: must be a number")
    if not 0 <= number <= _MOST:
        raise ConfigError(f"{name}={shortened(text)}: must be between 0 and {_MOST:.0e}")
    return number


def read_number(row: Row, name: str, default: int = 0) -> int:
    """Read a whole number.

    Raises:  ConfigError if the cell contains something else, or a number that no run has.
    """
    if not row.get(name):
        return default
    number = read_real(row, name)
    if not number.is_integer():
        raise ConfigError(f"{name}={shortened(row[name])}: must be a whole number")
    return int(number)


def read_choice(row: Row, name: str) -> str:
    """Read a word in lower case."""
    return (row.get(name) or "").lower()


def read_yes(row: Row, name: str) -> bool:
    """Read yes or no; an empty cell is no.

    Raises:  ConfigError if the cell contains something else.
    """
    word = read_choice(row, name)
    if word not in ("", *_YES, *_NO):
        raise ConfigError(f"{name}={shortened(row[name])!r}: must be yes or no")
    return word in _YES


_YES, _NO = ("yes", "true"), ("no", "false")


def read_year(row: Row) -> int:
    return read_number(row, "year", 2024)
