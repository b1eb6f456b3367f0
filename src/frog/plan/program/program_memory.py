"""Memory of a recorded program: the peak of the planned step, by kind and by line."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from frog.plan.memory import ALLOCATOR_SHARE, CONTEXT_BYTES

HELD = ("parameters", "gradients", "optimizer state")
KINDS = (*HELD, "activations", "other")
"""`other`: tensors that a pass or the optimizer needs for a while, and that autograd does not keep."""


@dataclass(frozen=True)
class ProgramMemory:
    """The peak of a rank's allocated bytes during the planned step."""

    by_kind: dict[str, int]
    by_line: dict[tuple[int, str], int]
    """Bytes of each line and kind; the line is an index."""

    @property
    def allocated(self) -> int:
        return sum(self.by_kind.values())

    @property
    def unused(self) -> float:
        """The estimated rest: CUDA, NCCL, and blocks that the allocator keeps without using them."""
        varying = sum(size for kind, size in self.by_kind.items() if kind not in HELD)
        return CONTEXT_BYTES + ALLOCATOR_SHARE * varying

    @property
    def total(self) -> float:
        return self.allocated + self.unused


def memory_of(facts: dict[str, Any]) -> ProgramMemory:
    """Replay the allocations, and return the first moment of the planned step with most bytes."""
    storages, log = facts["storages"], facts["memory"]
    now = most = 0
    at = facts["step_memory"]
    for position, event in enumerate(log):
        size = storages[abs(event) - 1][0]
        now += size if event > 0 else -size
        if position >= facts["step_memory"] and now > most:
            most, at = now, position
    live: set[int] = set()
    for event in log[: at + 1]:
        if event > 0:
            live.add(event)
        else:
            live.discard(-event)
    by_kind: Counter[str] = Counter()
    by_line: Counter[tuple[int, str]] = Counter()
    for index in live:
        size, line, kind = storages[index - 1]
        kind = kind if kind in KINDS else "other"
        by_kind[kind] += size
        by_line[line, kind] += size
    return ProgramMemory(dict(by_kind), dict(by_line))
