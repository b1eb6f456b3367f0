"""Learn merges from each text, and encode other texts with them."""

from collections.abc import Iterable
from types import ModuleType
from typing import Any


def listed(value: Any) -> Any:
    """Return an iterable as a list; return other values, and a single bytes object, as printed."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, (bytes, str)) else repr(value)


def plain(pair: Any) -> Any:
    """Return a pair as a list; return another value unchanged, or as printed."""
    if isinstance(pair, (tuple, list)) and all(isinstance(part, (bytes, bytearray, str, int)) for part in pair):
        return list(pair)
    return pair if isinstance(pair, (bytes, str, int)) else repr(pair)


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    found = []
    for one in case["cases"]:
        try:
            merges = listed(learner.learn_merges(one["text"], one["num_merges"]))
        except (ValueError, IndexError, KeyError) as error:
            if not one["ends early"]:
                raise
            return [*found, f"{type(error).__name__}: {error}"]
        given = [(bytes(a), bytes(b)) for a, b in one["merges"]]
        result = {
            "merges": merges if isinstance(merges, str) else [plain(pair) for pair in merges],
            "tokens": [],
            "ratios": [],
        }
        for text in one["others"]:
            result["tokens"].append(listed(learner.encode(text, list(given))))
            result["ratios"].append(learner.bytes_per_token(text, list(given)))
        found.append(result)
    return found
