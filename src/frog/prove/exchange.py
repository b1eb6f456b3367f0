"""What `frog prove` and the worlds that it starts leave for each other: cases, and what came out of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from frog.core.errors import LaunchError
from frog.core.schema import Amount, Name, Typed, read_typed

_AGAIN = "prove again"


class CaseFields(Typed, frozen=True):
    """One cell of the matrix."""

    name: Name
    config: dict[str, Any]
    frozen: bool
    uneven: bool


class ProofResult(Typed, frozen=True):
    """What came of one; the differences are None where it could not be, or where they are infinite."""

    name: Name
    equal: bool
    bitwise: bool | None = None
    loss: Amount | None = None
    norm: Amount | None = None
    gradient: Amount | None = None
    weight: Amount | None = None
    first: str | None = None
    """Where the first difference lies that is too large, or why the case could not be."""


def read_cases(path: Path) -> list[CaseFields]:
    """Cases. Raises LaunchError if the file holds none."""
    return read_typed(path, list[CaseFields], _AGAIN, LaunchError)


def read_results(path: Path) -> list[ProofResult]:
    """Results. Raises LaunchError if the file holds none, or the world ended before it wrote any."""
    try:
        return read_typed(path, list[ProofResult], _AGAIN, LaunchError)
    except FileNotFoundError:
        raise LaunchError(f"{path}: missing: the world ended before it wrote its results", _AGAIN) from None
