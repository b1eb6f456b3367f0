"""Colors that every view shares: the phases of FROG, and ranks. Each as (on a light page, on a dark page).

Forward and backward are two blues, since both are the F; reduce is orange, optimize green, zero the gradients pink.
The hues stay apart for the common kinds of color blindness (after Okabe and Ito 2008).
"""

from __future__ import annotations

from typing import Final

PHASE_COLORS: Final[dict[str, tuple[str, str]]] = {
    "data": ("#8d949c", "#858d96"),
    "forward": ("#5aa2e0", "#6db3f0"),
    "backward": ("#1f5fa8", "#3d7fd0"),
    "reduce": ("#ec8a1c", "#f09a3a"),
    "optimize": ("#1a9468", "#2fb585"),
    "zero": ("#c9549a", "#dd77b3"),
    "evaluate": ("#d8b400", "#e3c53a"),
    "checkpoint": ("#7b5638", "#a97c57"),
    "other": ("#dcdcd6", "#3a3e44"),
}

RANK_COLORS: Final[tuple[tuple[str, str], ...]] = (
    ("#0072b2", "#4ea8e0"),
    ("#d55e00", "#f08a45"),
    ("#009e73", "#3cc39b"),
    ("#b8559a", "#e08bc0"),
    ("#a67c00", "#e0b83c"),
    ("#5b4bb5", "#9f93ee"),
    ("#4b8f29", "#8bcf62"),
    ("#8a4b2a", "#c98a65"),
)
"""Repeated with dashed lines for ranks past the eighth."""
