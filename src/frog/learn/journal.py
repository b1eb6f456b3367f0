"""What a learner did, in the order of time, each entry with a SHA-256 over the one before: an edit breaks the chain.

Whoever changes an entry and computes all hashes after it anew has a whole chain again. What that cannot change is a
hash that somebody else wrote down before: the head, the last entry's hash, stands for all that is before it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Literal

import msgspec

from frog.core.schema import Digest, Name, Typed

What = Literal[
    "before",
    "unsolved",
    "rejected",
    "passed",
    "measured",
    "hint",
    "solution",
    "guess",
    "quiz",
    "drill",
    "record",
    "name",
]
"""`before`: a folder that was begun before there was a journal; what it had is not in it."""

Detail = dict[Name, str | int | float | tuple[str, ...] | None]

SHORT = 12
"""Digits of a head that people write down."""


class Entry(Typed, kw_only=True, frozen=True):
    """One thing that was done."""

    at: Name
    """UTC."""
    what: What
    exercise: Name | None = None
    detail: Detail = msgspec.field(default_factory=dict)
    hash: Digest
    """Over the hash before and the fields above, as JSON with sorted keys and no spaces."""


Journal = tuple[Entry, ...]


def first_hash(learner: str, began: str) -> str:
    """What the first entry's hash is over: a journal belongs to one learner."""
    return _sha256("", {"learner": learner, "began": began})


def head_of(journal: Journal, learner: str, began: str) -> str:
    """The hash that stands for the whole journal."""
    return journal[-1].hash if journal else first_hash(learner, began)


def entry_after(head: str, at: str, what: What, exercise: str | None, detail: Detail) -> Entry:
    """An entry that follows the one whose hash is `head`."""
    return Entry(at=at, what=what, exercise=exercise, detail=detail, hash=_hash(head, at, what, exercise, detail))


def first_break(journal: Journal, learner: str, began: str) -> int | None:
    """The place, from 0, of the first entry whose hash is not the one over what is before and in it."""
    head = first_hash(learner, began)
    for place, entry in enumerate(journal):
        if entry.hash != _hash(head, entry.at, entry.what, entry.exercise, entry.detail):
            return place
        head = entry.hash
    return None


def _hash(head: str, at: str, what: What, exercise: str | None, detail: Detail) -> str:
    return _sha256(head, {"at": at, "what": what, "exercise": exercise, "detail": detail})


def _sha256(head: str, fields: object) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{head}{text}".encode()).hexdigest()
