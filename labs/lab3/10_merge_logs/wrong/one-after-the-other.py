"""Merge the logs of many ranks into one, in the order of time."""

from collections.abc import Iterable, Iterator


def merge(streams: list[Iterable[str]], ahead_s: list[float]) -> Iterator[tuple[int, str]]:
    """Yield (rank, line) for every line of every rank, in the order of true time.

    streams[r] are the lines of rank r, without line ends; ahead_s[r] says how many seconds its clock is ahead of true
    time (negative: behind). A line "12.345 text" begins an event at 12.345 of that clock; lines that do not begin with
    a number and a space belong to the event before them and must follow it. Each stream begins with such a time.

    Events at the same true time come in the order of their ranks, and those of one rank in the order of its log. Hold
    at most one event, and the line after it, of each stream in memory.
    """
    for rank, lines in enumerate(streams):
        for line in lines:
            yield rank, line
