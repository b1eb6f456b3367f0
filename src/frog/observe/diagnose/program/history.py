"""Compare a rank's collectives with what the same rank did before, as the steps of a loop repeat."""

from __future__ import annotations

import itertools

from frog.observe.diagnose.program.evidence import Call


def usual_after(before: list[Call]) -> list[Call]:
    """Return the calls that followed, earlier, a call like the last one; the latest of each form."""
    if not before:
        return []
    last = _form(before[-1])
    return list({_form(after): after for call, after in itertools.pairwise(before) if _form(call) == last}.values())


def is_unusual(before: list[Call], call: Call) -> bool | None:
    """True if a rank calls something else than each time before; None if this place is new."""
    usual = usual_after(before)
    return _form(call) not in {_form(each) for each in usual} if usual else None


def _form(call: Call) -> tuple[object, ...]:
    line = (call.line.file, call.line.line) if call.line is not None else None
    return call.op, call.elements, call.dtypes, line
