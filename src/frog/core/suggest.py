"""Suggestions for mistyped words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word most similar to this one, or None. cutoff: from 0, any word, to 1, the same word."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `did you mean NAME?`, or, if no known word is similar, `valid: NAME, NAME, ...`."""
    names = list(known)
    near = nearest(word, names, cutoff)
    return f"did you mean {near}?" if near else f"valid: {', '.join(names)}"
