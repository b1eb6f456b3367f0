"""Merge the logs of many ranks into one, in the order of time."""

import heapq
from collections.abc import Iterable, Iterator


def merge(streams: list[Iterable[str]], ahead_s: list[float]) -> Iterator[tuple[int, str]]:
    """Yield (rank, line) for every line of every rank, in the order of true time.

    streams[r] are the lines of rank r, without line ends; ahead_s[r] says how many seconds its clock is ahead of true
    time (negative: behind). A line "12.345 text" begins an event at 12.345 of that clock; lines that do not begin with
    a number and a space belong to the event before them and must follow it. Each stream begins with such a time.

    Events at the same true time come in the order of their ranks, and those of one rank in the order of its log. Hold
    at most one event, and the line after it, of each stream in memory.
    """
    def timed(rank: int, lines: Iterable[str]) -> Iterator[tuple[float, int, str]]:
        for line in lines:
            first = line.split(" ")[0]
            yield (round(float(first) - ahead_s[rank], 6) if is_number(first) else 1e9), rank, line

    lines = [line for rank, stream in enumerate(streams) for line in timed(rank, stream)]
    for _, rank, line in sorted(lines, key=lambda line: line[:2]):
        yield rank, line


def is_number(word: str) -> bool:
    try:
        float(word)
        return True
    except ValueError:
        return False
