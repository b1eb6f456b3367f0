"""Logs drawn from the seed, merged by sorting whole events; how much is held at once."""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from frog.grader.grade import Grade

Event = tuple[float, int, int, list[str]]
"""True time in milliseconds, rank, number in its log, lines as written."""
Case = tuple[list[list[str]], list[float]]
TAILS = (
    "Traceback (most recent call last):",
    '  File "train.py", line 7',
    "    loss.backward()",
    "RuntimeError: 7 lost",
)


def check(grade: Grade) -> None:
    """Short logs of all kinds, then long ones of which little may be held."""
    draw = random.Random(grade.seed)
    drawn = [draw_case(draw, ranks, draw.choice([4, 12])) for ranks in (1, 2, 3, 5, 2, 4)]
    drawn += [(([[], []], [0.0, 1.0]), []), draw_case(draw, 3, 300)]
    cases, events = zip(*drawn, strict=True)
    found = grade.call({"merges": list(cases)}).values[0]
    came = [[pair_of(grade, pair) for pair in run["came"]] for run in found]
    runs = list(zip(cases, events, came, strict=True))
    check_whole(grade, runs)
    check_order(grade, runs)
    most = max(len(lines) for _, _, _, lines in events[-1])
    total = sum(len(lines) for _, _, _, lines in events[-1])
    if found[-1]["held"] > 3 * (most + 2):
        grade.reject(
            "reads-it-all",
            f"3 logs with {total} lines: {found[-1]['held']} lines were held at once; an event has up to {most}.",
        )
    grade.measured("lines in the order of time", sum(len(run["came"]) for run in found))
    grade.measured(f"held at once, of 3 logs with {total} lines", f"{found[-1]['held']} lines")


def draw_case(draw: random.Random, ranks: int, count: int) -> tuple[Case, list[Event]]:
    """What each rank wrote, by its own clock, with ties; times cross from one digit to two.

    All times and leads are eighths of a second, which floats hold exactly: a tie is a tie in anybody's arithmetic.
    No two events of a rank begin with the same line.
    """
    ahead = [draw.choice([-3000, -500, 0, 250, 2000, 4000]) for _ in range(ranks)]
    if ranks > 1:
        ahead[0], ahead[1] = 0, draw.choice([2000, -2500])
    events: list[Event] = []
    for rank in range(ranks):
        now = 125 * draw.randint(64, 78)
        for number in range(count if draw.random() < 0.9 or count == 300 else 0):
            now += 125 * draw.choice([0, 0, 1, 1, 3, 6])
            word = draw.choice(["step", "loss 2.5 in", "allreduce", "error: connection lost in", "2 of 4 came to"])
            head = f"{(now + ahead[rank]) / 1000:.3f} {word} {number}"
            events.append((now, rank, number, [head, *TAILS[: draw.choice([0, 0, 0, 1, 4])]]))
    logs = [[line for event in events if event[1] == rank for line in event[3]] for rank in range(ranks)]
    return (logs, [lead / 1000 for lead in ahead]), events


Lines = list[tuple[int, str]]
Run = tuple[Case, list[Event], Lines]
"""A case, its events as they happened, and what came out."""


def pair_of(grade: Grade, found: Any) -> tuple[int, str]:
    """What was yielded, if it is what the docstring says."""
    if not isinstance(found, list) or [type(each) for each in found] != [int, str] or "\n" in found[1]:
        shown = repr(found) if len(repr(found)) < 100 else f"{repr(found)[:97]}..."
        grade.reject("not-pairs", f"merge yielded {shown}; expected pairs of a rank and a line: (0, '9.500 step').")
    return found[0], found[1]


def check_whole(grade: Grade, runs: list[Run]) -> None:
    """Every line of every run came, once."""
    for case, events, came in runs:
        written, left = Counter(expect(case, events)), Counter(came)
        for rank, line in left - written:
            seen = f"written {written[rank, line]} x, and came {left[rank, line]} x: {rank} | {line}"
            missing = f"Of what was written {sum((written - left).values())} lines did not come."
            id = "came-twice" if written[rank, line] else "lines-changed"
            grade.reject(id, f"{about(case)}: {seen}. {missing}")
        for rank, line in written - left:
            grade.reject("lines-lost", f"{about(case)}: {len(came)} came out. Lost: {rank} | {line}")


def check_order(grade: Grade, runs: list[Run]) -> None:
    """By what would give all of it; then whether events came whole in any run; only then the order of whole events."""
    wrong = [run for run in runs if run[2] != expect(*run[:2])]
    if not wrong:
        return
    for id, key in BELIEFS:
        for way in (in_order, as_merged):
            if all(came == way(case, events, key) for case, events, came in runs):
                grade.reject(id, differs(*wrong[0]))
    for case, events, came in wrong:
        if (place := tear(events, came)) is not None:
            grade.reject("events-torn-apart", f"{about(case)}: {stands(came, place)}")
    early = [run for run in wrong if times_back(run)]
    if not early:
        grade.reject("ties-by-text", differs(*wrong[0]))
    behind = sum(map(times_back, early))
    grade.reject("not-the-earliest", f"{differs(*early[0])} In all runs {behind} events came behind a later one.")


def expect(case: Case, events: list[Event]) -> Lines:
    """What should come."""
    return in_order(case, events, lambda event, lead: event[:3])


def about(case: Case) -> str:
    logs, ahead_s = case
    leads = ", ".join(f"{lead:g} s" for lead in ahead_s)
    clocks = "its clock" if len(logs) == 1 else "clocks"
    return f"{len(logs)} log{'s' * (len(logs) > 1)} with {sum(map(len, logs))} lines, {clocks} ahead by {leads}"


def differs(case: Case, events: list[Event], came: Lines) -> str:
    """Where a run first differs from what should come."""
    pairs = zip(came, expect(case, events), strict=True)
    place, (found, right) = next((n, pair) for n, pair in enumerate(pairs, 1) if pair[0] != pair[1])
    line = f"line {place} is '{found[0]} | {found[1]}', and should be '{right[0]} | {right[1]}'."
    return f"{about(case)}: {line}"


BELIEFS: list[tuple[str, Callable[[Event, int], Any]]] = [
    ("one-after-the-other", lambda event, lead: event[1:3]),
    ("clocks-agree", lambda event, lead: (event[0] + lead, *event[1:3])),
    ("offset-added", lambda event, lead: (event[0] + 2 * lead, *event[1:3])),
    ("compared-as-text", lambda event, lead: (f"{event[0] / 1000:.3f}", *event[1:3])),
    ("compared-as-text", lambda event, lead: (f"{(event[0] + lead) / 1000:.3f}", *event[1:3])),
    ("compared-as-text", lambda event, lead: (str(event[0] / 1000), *event[1:3])),
    ("whole-seconds", lambda event, lead: (event[0] // 1000, *event[1:3])),
    ("whole-seconds", lambda event, lead: ((event[0] + lead) // 1000 - lead / 1000, *event[1:3])),
    ("one-from-each", lambda event, lead: (event[2], event[1])),
]
"""By what one sorts who believes that; `lead` is that of the event's clock, in milliseconds."""


def in_order(case: Case, events: list[Event], key: Callable[[Event, int], Any]) -> Lines:
    """The lines, event by event, in some order."""
    return written(sorted(events, key=lambda event: key(event, lead_of(case, event))))


def as_merged(case: Case, events: list[Event], key: Callable[[Event, int], Any]) -> Lines:
    """The same, but only the next events of the logs are compared."""
    ranks = range(len(case[0]))
    logs = [sorted((event for event in events if event[1] == rank), key=lambda event: event[2]) for rank in ranks]
    return written(heapq.merge(*logs, key=lambda event: key(event, lead_of(case, event))))


def lead_of(case: Case, event: Event) -> int:
    return round(case[1][event[1]] * 1000)


def written(events: Iterable[Event]) -> Lines:
    """The lines of events, as their ranks wrote them."""
    return [(rank, line) for _, rank, _, lines in events for line in lines]


def tear(events: list[Event], came: Lines) -> int | None:
    """The place of the first line that is not in one piece with the event before it, and begins none."""
    blocks = {(rank, lines[0]): lines for _, rank, _, lines in events}
    tail: Lines = []
    for place, pair in enumerate(came):
        if pair in blocks and not tail:
            tail = [(pair[0], line) for line in blocks[pair][1:]]
        elif not tail or pair != tail.pop(0):
            return place
    return None


def stands(came: Lines, place: int) -> str:
    """What is torn off there."""
    before = "the first that came" if place == 0 else f"behind '{came[place - 1][0]} | {came[place - 1][1]}'"
    return f"line {place + 1} is '{came[place][0]} | {came[place][1]}', {before}."


def times_back(run: Run) -> int:
    """How many events came right behind one that was later."""
    times = {(rank, lines[0]): now for now, rank, _, lines in run[1]}
    moments = [times[pair] for pair in run[2] if pair in times]
    return sum(later < earlier for earlier, later in pairwise(moments))
