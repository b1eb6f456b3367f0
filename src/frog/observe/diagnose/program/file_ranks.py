"""The rank that a file's name tells."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

_MOST_RANK = 2**20
_NAMED = re.compile(r"(?:rank|task|proc)[_.-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_OF_A_NODE = re.compile(r"(?:node|host|machine|server)s?[_.-]?$", re.IGNORECASE)
_LAST = re.compile(r"^(.*?)(\d{1,7})(\D*)$")


def rank_in_name(path: str) -> int | None:
    """Return the rank in `nccl_trace_rank_3`, `rank_3/train.log`, or torchrun's `attempt_0/3/stderr.log`."""
    parts = PurePath(path).parts[-3:]
    for part in reversed(parts[-2:]):
        found = _NAMED.search(part)
        if found and int(found[1]) < _MOST_RANK:
            return int(found[1])
    if len(parts) == 3 and re.fullmatch(r"attempt_\d{1,7}", parts[0]) and re.fullmatch(r"\d{1,6}", parts[1]):
        return int(parts[1])
    return None


def number_at_end(path: str) -> int | None:
    """Return the last number in a file's name, for a kind of file that has one per rank."""
    found = _LAST.match(PurePath(path).name)
    return int(found[2]) if found and int(found[2]) < _MOST_RANK else None


def ranks_by_number(paths: Iterable[str]) -> dict[str, int]:
    """Return the ranks of files whose names differ only in a number, if the numbers are 0, 1, 2 and so on.

    The output of a node's launcher, such as `job-node0.out`, is of several ranks.
    """
    sets: dict[tuple[str, str, str], dict[str, int]] = {}
    for path in paths:
        pure = PurePath(path)
        if (found := _LAST.match(pure.name)) and not _OF_A_NODE.search(found[1]):
            sets.setdefault((str(pure.parent), found[1], found[3]), {})[path] = int(found[2])
    numbered: dict[str, int] = {}
    for found_ranks in sets.values():
        if len(found_ranks) > 1 and sorted(found_ranks.values()) == list(range(len(found_ranks))):
            numbered.update(found_ranks)
    return numbered
