"""Nested tables of settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a nested table that is not itself a table, with its dotted key."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
