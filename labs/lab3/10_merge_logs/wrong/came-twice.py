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
    logs = [events(rank, lines, ahead_s[rank]) for rank, lines in enumerate(streams)]
    for _, rank, lines in heapq.merge(*logs, key=lambda event: event[:2]):
        for line in lines:
            yield rank, line


def events(rank: int, lines: Iterable[str], ahead_s: float) -> Iterator[tuple[float, int, list[str]]]:
    """Yield (true time, rank, lines) of each event of a rank's log."""
    time_s, event = 0.0, []
    for line in lines:
        first, space, _ = line.partition(" ")
        if event and space and is_number(first):
            yield time_s, rank, event
            event = []
        if not event:
            time_s = round(float(first) - ahead_s, 6)
        event.append(line)
    yield time_s, rank, event
    if event:
        yield time_s, rank, event


def is_number(word: str) -> bool:
    try:
        float(word)
        return True
    except ValueError:
        return False
