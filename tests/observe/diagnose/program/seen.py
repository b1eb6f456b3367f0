"""Evidence written by hand, in few words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.program.evidence import Call, Evidence, Group, RankEvidence, SeenError

SECOND = 10**9


def at(line: int, function: str = "main", file: str = "train.py") -> CodeLine:
    return CodeLine(file=file, line=line, function=function)


def evidence(*ranks: RankEvidence, hung: bool = True) -> Evidence:
    return Evidence("here", {rank.rank: rank for rank in ranks}, world_size=len(ranks), hung=hung)


def rank(number: int, *calls: tuple[str, int, int], world: int = 2, pending: int = 0, **fields: object) -> RankEvidence:
    """Return a rank with calls of its world: operation, elements and line; the last `pending` have not completed."""
    group = Group(tuple(range(world)), "0")
    made = [
        Call(
            group,
            seq,
            op,
            seq <= len(calls) - pending,
            ((size,),),
            ("Float",),
            created_ns=seq * SECOND,
            line=at(line) if line else None,
            source=f"rank_{number}",
        )
        for seq, (op, size, line) in enumerate(calls, 1)
    ]
    fields.setdefault("sources", [f"rank_{number}"])
    return RankEvidence(number, calls=made, has_calls=True, **fields)  # type: ignore[arg-type]


def changed(call: Call, **fields: Any) -> Call:
    return replace(call, **fields)


def failed(kind: str, message: str, line: int | None = None, second: int = 0) -> SeenError:
    return SeenError(kind, message, at(line) if line else None, unix_ns=second * SECOND or None, source="error.json")
