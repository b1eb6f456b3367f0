"""Ask the learner's functions about every rank of every layout."""

from collections.abc import Callable
from types import ModuleType
from typing import Any


def work(learner: ModuleType, case: dict[str, Any]) -> list[Any]:
    """Return, for each layout: world size, global ranks, places, and the results for ranks that do not exist."""
    return [_layout(learner, sizes) for sizes in case["layouts"]]


def _layout(learner: ModuleType, sizes: list[int]) -> dict[str, Any]:
    there = [(node, local) for node, size in enumerate(sizes) for local in range(size)]
    return {
        "world": learner.world_size(list(sizes)),
        "ranks": [learner.global_rank(list(sizes), node, local) for node, local in there],
        "places": [answer(learner.place, sizes, rank) for rank in range(sum(sizes))],
        "outside": {str(rank): answer(learner.place, sizes, rank) for rank in outside(sizes)},
    }


def outside(sizes: list[int]) -> list[int]:
    """Return ranks that do not exist in such a world."""
    return [-1, -sum(sizes), sum(sizes), sum(sizes) + 7]


def answer(function: Callable[..., Any], sizes: list[int], rank: int) -> Any:
    """Return the function's result, or the word ValueError."""
    given = list(sizes)
    try:
        found = function(given, rank)
        answer = list(found) if isinstance(found, tuple | list) else found
    except ValueError:
        answer = "ValueError"
    return answer if given == sizes else "changed"
