"""The files that `frog prove` and its worlds exchange: cases, and their results."""

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
    """The result of one case; the differences are None if it is not possible, or if they are infinite."""

    name: Name
    equal: bool
    bitwise: bool | None = None
    loss: Amount | None = None
    norm: Amount | None = None
    gradient: Amount | None = None
    weight: Amount | None = None
    first: str | None = None
    """The first difference that is too large, or the reason why the case is not possible."""


def read_cases(path: Path) -> list[CaseFields]:
    """Read cases. Raises LaunchError if the file has none."""
    return read_typed(path, list[CaseFields], _AGAIN, LaunchError)


def read_results(path: Path) -> list[ProofResult]:
    """Read results. Raises LaunchError if the file has none, or the world ended before it wrote any."""
    try:
        return read_typed(path, list[ProofResult], _AGAIN, LaunchError)
    except FileNotFoundError:
        raise LaunchError(f"{path}: missing: the world ended before it wrote its results", _AGAIN) from None
