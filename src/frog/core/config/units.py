"""The unit of a number in a run file, declared with its field: `steps: Annotated[int, Unit("steps")] = 200`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """The unit of a numeric field; `Unit()` for a number without a unit. The site's reference shows it."""

    name: str = ""
