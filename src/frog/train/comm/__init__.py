"""A rank's world and its axes: joining, leaving, and the collectives over them.

`frog.train.comm.collectives` and the rules of `frog.train.comm.elastic` do not need torch: it is imported on the
first use of one of these names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from frog.core.processes import loading

if TYPE_CHECKING:
    from frog.train.comm.axis import Axis, Pending
    from frog.train.comm.world import World, join_world

__all__ = ["Axis", "Pending", "World", "join_world"]

_MODULES = {"Axis": "axis", "Pending": "axis", "World": "world", "join_world": "world"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with loading():
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
