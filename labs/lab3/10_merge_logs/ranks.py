"""Merge logs with tracebacks and different clocks, and record how far each is read for each merged line."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any


class Counted:
    """A log that counts the lines read from it."""

    def __init__(self, lines: list[str]) -> None:
        self._lines, self.taken = lines, 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self.taken >= len(self._lines):
            raise StopIteration
        self.taken += 1
        return self._lines[self.taken - 1]


def work(learner: ModuleType, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Run each merge of the case; return its lines, and the number of lines read from each log before each of them."""
    found = []
    for logs, ahead_s in case["merges"]:
        streams = [Counted(lines) for lines in logs]
        came, held, taken = [], 0, []
        for pair in learner.merge(list(streams), list(ahead_s)):
            came.append(list(pair) if isinstance(pair, tuple) else pair)
            held = max(held, sum(stream.taken for stream in streams) - len(came))
            taken.append([stream.taken for stream in streams])
        found.append({"came": came, "held": held, "taken": taken})
    return found
