"""Names that events, faults, diagnoses and pages share: the phases of a step, and operations that are messages."""

from __future__ import annotations

from typing import Final, Literal, get_args

Phase = Literal["data", "forward", "backward", "reduce", "optimize", "zero", "evaluate", "checkpoint"]

PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
"""In the order in which a step goes through them; the last two come after some steps."""

STEP_PHASES: Final = PHASES[:6]
ASIDE: Final = PHASES[6:]
"""Phases that are not part of a training step."""

BETWEEN_TWO: Final = ("send", "recv")
"""Operations that only two ranks take part in, each with its own."""

MESSAGES: Final = (*BETWEEN_TWO, "send_recv")
"""Operations between two ranks, or round a ring; all others are those of a whole axis."""
