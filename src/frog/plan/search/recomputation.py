"""Recomputation of some layers, for layouts that fit only if layers are computed again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from frog.plan.columns import Column
from frog.plan.search.grid import RECOMPUTE, Grid


def fewest_layers(grid: Grid, fits: Column, layers: int, fitting: Callable[[Grid], Column]) -> Grid:
    """Return the layouts that fit if all layers are computed again, but not if none are, with the fewest layers that
    must be computed again; not those that need all.

    A step takes longer and needs less memory, the more layers are computed again, so that bisection finds their number.

    fits: if each layout of the grid fits.
    layers: of the model.
    fitting: returns which layouts of a grid fit.
    """
    none, full = (np.flatnonzero(grid.recompute == RECOMPUTE.index(name)) for name in ("none", "full"))
    tight = grid[full[fits[full] & ~fits[none]]]  # a grid has both of each layout, in the same order
    stage = -(-layers // tight.pp)
    too_few, enough = np.zeros_like(stage), -(-stage // tight.virtual_stages)
    while (unknown := np.flatnonzero(enough - too_few > 1)).size:
        middle = (too_few[unknown] + enough[unknown]) // 2
        fit = fitting(replace(tight[unknown], recompute_layers=middle))
        enough[unknown] = np.where(fit, middle, enough[unknown])
        too_few[unknown] = np.where(fit, too_few[unknown], middle)
    some = enough * tight.virtual_stages < stage
    return replace(tight, recompute_layers=enough)[some]
