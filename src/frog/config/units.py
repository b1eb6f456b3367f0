"""The unit of a number in a run file, written with its field: `steps: Annotated[int, Unit("steps")] = 200`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """The unit of a field that is a number; `Unit()` for a number without one. The site's reference shows it."""

    name: str = ""
