import heapq
import re


def _time(line):
    m = re.match(r"(-?\d+(?:\.\d+)?) ", line)
    return float(m[1]) if m else None


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
        *(_events(r, s, a) for r, (s, a) in enumerate(zip(streams, ahead_s))), key=lambda e: (round(e[0], 1), e[1])
    ):
        for line in lines:
            yield rank, line
