"""Names shared by events, faults, diagnoses and pages: the phases of a step, and point-to-point operations."""

from __future__ import annotations

from typing import Final, Literal, get_args

Phase = Literal["data", "forward", "backward", "reduce", "optimize", "zero", "evaluate", "checkpoint"]

PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
"""Phases in the order of a step; the last two follow only some steps."""

STEP_PHASES: Final = PHASES[:6]
ASIDE: Final = PHASES[6:]
"""Phases that are not part of a training step."""

BETWEEN_TWO: Final = ("send", "recv")
"""Operations between exactly two ranks, which differ on the two ranks."""

MESSAGES: Final = (*BETWEEN_TWO, "send_recv")
"""Operations between two ranks or around a ring; all others involve a whole axis."""
