"""Compare the findings with each lab's needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from frog.learn.doctor.needs import NEEDS, Need
from frog.learn.doctor.seen import Seen


@dataclass(frozen=True)
class LabVerdict:
    """The verdict on one lab on this machine."""

    lab: int
    instead: tuple[Need, ...]
    """Missing needs that have a substitute."""
    missing: tuple[Need, ...]
    unknown: tuple[Need, ...] = ()
    """Needs of which nothing is known, because their probes took too long."""

    @property
    def runs(self) -> bool:
        return not self.missing and not self.unknown


def judge(seen: Mapping[str, Seen], lab: int) -> LabVerdict:
    needed = [need for need in NEEDS if lab in need.labs]
    unknown = tuple(need for need in needed if not seen[need.name].answered)
    lacking = [need for need in needed if not seen[need.name].ok and need not in unknown]
    instead = tuple(need for need in lacking if need.without is not None)
    return LabVerdict(lab, instead, tuple(need for need in lacking if need.without is None), unknown)


def state_of(need: Need, seen: Seen) -> str:
    """Return `ok`, `unknown` (too slow), `optional` (no lab needs it), `instead` (it has a substitute) or `missing`."""
    if not seen.answered:
        return "unknown"
    if seen.ok:
        return "ok"
    if not need.labs:
        return "optional"
    return "missing" if need.without is None else "instead"
