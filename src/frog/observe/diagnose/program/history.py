"""Compare a rank's collectives and messages with what the same rank did before, as the steps of a loop repeat."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import NamedTuple

from frog.core.runs.observed import Message
from frog.observe.diagnose.program.evidence import Call

_LEAST_TIMES = 2
"""How often a message must have followed another, and no other one, to be the usual one."""
_MOST_SINCE = 32
"""Most messages that a rank may have begun since it left their order: others accepted what is older."""


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


class Deviation(NamedTuple):
    """A place at which a rank began another message than each time before."""

    after: Message
    usual: Message
    message: Message


def deviation(messages: list[Message]) -> Deviation | None:
    """Return the last place at which a rank left the order of its messages; None if it did not, as far as known.

    What it did again later, such as to leave an inner loop, is part of its order. A rank that receives from any rank
    has none of its own.
    """
    found = None
    if any(message.peer is None for message in messages):
        return None
    pairs = [(message_form(one), message_form(other)) for one, other in itertools.pairwise(messages)]
    times = Counter(pairs)
    followers: dict[tuple[object, ...], list[Message]] = {}
    for number, (one, message) in enumerate(itertools.pairwise(messages), 2):
        last, this = pairs[number - 2]
        before = followers.setdefault(last, [])
        is_new = times[last, this] == 1 and number > len(messages) - _MOST_SINCE
        if is_new and len(before) >= _LEAST_TIMES and len({message_form(each) for each in before}) == 1:
            found = Deviation(one, before[-1], message)
        before.append(message)
    return found


def message_form(message: Message) -> tuple[object, ...]:
    """Return what the same message of another step has in common with this one."""
    line = (message.line.file, message.line.line) if message.line is not None else None
    return message.op, message.peer, message.tag, message.group, line
