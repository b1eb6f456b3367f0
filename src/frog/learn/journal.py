"""The journal: a learner's actions in chronological order, as a SHA-256 hash chain that breaks on any edit.

Anyone who changes an entry and recomputes all later hashes has a valid chain again. But that changes the head, the last
entry's hash, which covers all entries before it: an instructor who wrote down an earlier head notices.
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
"""`before`: the folder is older than the journal, which lacks everything done until then."""

Detail = dict[Name, str | int | float | tuple[str, ...] | None]

SHORT = 12
"""Number of a head's digits that people write down."""


class Entry(Typed, kw_only=True, frozen=True):
    """One action."""

    at: Name
    """Time in UTC."""
    what: What
    exercise: Name | None = None
    detail: Detail = msgspec.field(default_factory=dict)
    hash: Digest
    """SHA-256 of the previous hash and the fields above, as JSON with sorted keys and no spaces."""


Journal = tuple[Entry, ...]


def first_hash(learner: str, began: str) -> str:
    """Return the start of the hash chain, which ties a journal to one learner."""
    return _sha256("", {"learner": learner, "began": began})


def head_of(journal: Journal, learner: str, began: str) -> str:
    """Return the last hash, which covers the whole journal."""
    return journal[-1].hash if journal else first_hash(learner, began)


def entry_after(head: str, at: str, what: What, exercise: str | None, detail: Detail) -> Entry:
    """Return an entry to append after the one whose hash is `head`."""
    return Entry(at=at, what=what, exercise=exercise, detail=detail, hash=_hash(head, at, what, exercise, detail))


def first_break(journal: Journal, learner: str, began: str) -> int | None:
    """Return the index of the first entry whose hash does not match it and the entries before it, or None."""
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
