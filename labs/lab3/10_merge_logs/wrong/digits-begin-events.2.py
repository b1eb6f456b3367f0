import heapq
import re


def _time(line):
    try:
        return float(line.split()[0])
    except (ValueError, IndexError):
        return None


def _events(rank, lines, ahead):
    held = None
    for line in lines:
        t = _time(line)
        if t is not None:
            if held:
                yield held
            held = (t - ahead, rank, [line])
        else:
            held[2].append(line)
    if held:
        yield held


def merge(streams, ahead_s):

    for _, rank, lines in heapq.merge(
        *(_events(r, s, a) for r, (s, a) in enumerate(zip(streams, ahead_s))), key=lambda e: e[:2]
    ):
        for line in lines:
            yield rank, line
