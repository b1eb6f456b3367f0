"""Logs drawn from the seed, merged by sorting whole events; how much is held at once."""

import heapq
import random
from collections.abc import Callable, Iterable
from typing import Any

from frog.grader.grade import Grade

Event = tuple[float, int, int, list[str]]
"""True time in milliseconds, rank, number in its log, lines."""
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
    cases, events = [], []
    for ranks in (1, 2, 3, 5, 2, 4):
        events.append(draw_events(draw, ranks, draw.choice([4, 12])))
        cases.append(write(events[-1], ranks, draw))
    events.append([])
    cases.append(([[], []], [0.0, 1.0]))
    events.append(draw_events(draw, 3, 300))
    cases.append(write(events[-1], 3, draw))
    found = grade.call({"merges": cases}).values[0]
    came = [[tuple(pair) for pair in run["came"]] for run in found]
    for case, truth, lines in zip(cases, events, came, strict=True):
        check_order(grade, case, truth, lines, list(zip(cases, events, came, strict=True)))
    most = max(len(lines) for _, _, _, lines in events[-1])
    total = sum(len(lines) for _, _, _, lines in events[-1])
    if found[-1]["held"] > 3 * (most + 2):
        grade.reject(
            "reads-it-all",
            f"3 logs with {total} lines: {found[-1]['held']} lines were held at once; an event has up to {most}.",
        )
    grade.measured("lines in the order of time", sum(len(run["came"]) for run in found))
    grade.measured(f"held at once, of 3 logs with {total} lines", f"{found[-1]['held']} lines")


def draw_events(draw: random.Random, ranks: int, count: int) -> list[Event]:
    """Events in the order of true time, with ties; times cross from one digit to two.

    All times and leads are eighths of a second, which floats hold exactly: a tie is a tie in anybody's arithmetic.
    """
    found: list[Event] = []
    for rank in range(ranks):
        now = 125 * draw.randint(64, 78)
        for number in range(count if draw.random() < 0.9 or count == 300 else 0):
            now += 125 * draw.choice([0, 0, 1, 1, 3, 6])
            tail = list(TAILS[: draw.choice([0, 0, 0, 1, 4])])
            word = draw.choice(["step", "loss 2.5", "allreduce", "error: connection lost", "2 of 4 came"])
            found.append((now, rank, number, [word, *tail]))
    return sorted(found, key=lambda event: event[:3])


def write(events: list[Event], ranks: int, draw: random.Random) -> Case:
    """What each rank wrote, by its own clock."""
    ahead = [draw.choice([-3000, -500, 0, 250, 2000, 4000]) for _ in range(ranks)]
    if ranks > 1:
        ahead[0], ahead[1] = 0, draw.choice([2000, -2500])
    logs: list[list[str]] = [[] for _ in range(ranks)]
    for now, rank, _, lines in sorted(events, key=lambda event: event[1:3]):
        logs[rank] += [f"{(now + ahead[rank]) / 1000:.3f} {lines[0]}", *lines[1:]]
    return logs, [lead / 1000 for lead in ahead]


Lines = list[tuple[int, str]]


def check_order(grade: Grade, case: Case, events: list[Event], came: Lines, runs: list[tuple[Any, ...]]) -> None:
    """Compare with the events as they happened."""
    logs, ahead_s = case
    expected = in_order(case, events, lambda event, lead: event[:3])
    if came == expected:
        return
    leads = ", ".join(f"{lead:g} s" for lead in ahead_s)
    observed = f"{len(logs)} logs with {len(expected)} lines, clocks ahead by {leads}"
    if sorted(came) != sorted(expected):
        lost = next((pair for pair in expected if pair not in came), None)
        if len(came) < len(expected) and lost is not None:
            grade.reject("lines-lost", f"{observed}: {len(came)} came out. Lost: {lost[0]} | {lost[1]}")
        grade.reject("unknown", f"{observed}: {len(came)} came out, and not the same.")
    place = next(n for n, (a, b) in enumerate(zip(came, expected, strict=True)) if a != b)
    (rank, line), (right_rank, right_line) = came[place], expected[place]
    observed += f": line {place + 1} is '{rank} | {line}', and should be '{right_rank} | {right_line}'."
    for id, key in BELIEFS:
        for way in (in_order, as_merged):
            if all(lines == way(case, events, key) for case, events, lines in runs):
                grade.reject(id, observed)
    if torn(came):
        grade.reject("events-torn-apart", observed)
    times = {(rank, head(case, rank, number)): now for now, rank, number, _ in events}
    moments = [times[pair] for pair in came if pair in times]
    grade.reject("ties-by-text" if moments == sorted(moments) else "unknown", observed)


BELIEFS: list[tuple[str, Callable[[Event, int], Any]]] = [
    ("one-after-the-other", lambda event, lead: event[1:3]),
    ("clocks-agree", lambda event, lead: (event[0] + lead, *event[1:3])),
    ("offset-added", lambda event, lead: (event[0] + 2 * lead, *event[1:3])),
    ("compared-as-text", lambda event, lead: (f"{event[0] / 1000:.3f}", *event[1:3])),
    ("compared-as-text", lambda event, lead: (f"{(event[0] + lead) / 1000:.3f}", *event[1:3])),
    ("compared-as-text", lambda event, lead: (str(event[0] / 1000), *event[1:3])),
]
"""By what one sorts who believes that; `lead` is that of the event's clock, in milliseconds."""


def in_order(case: Case, events: list[Event], key: Callable[[Event, int], Any]) -> Lines:
    """The lines, event by event, in some order."""
    return written(case, sorted(events, key=lambda event: key(event, lead_of(case, event))))


def as_merged(case: Case, events: list[Event], key: Callable[[Event, int], Any]) -> Lines:
    """The same, but only the next events of the logs are compared."""
    ranks = range(len(case[0]))
    logs = [sorted((event for event in events if event[1] == rank), key=lambda event: event[2]) for rank in ranks]
    return written(case, heapq.merge(*logs, key=lambda event: key(event, lead_of(case, event))))


def lead_of(case: Case, event: Event) -> int:
    return round(case[1][event[1]] * 1000)


def written(case: Case, events: Iterable[Event]) -> Lines:
    """The lines of events, as their ranks wrote them."""
    found = []
    for _, rank, number, lines in events:
        found += [(rank, head(case, rank, number)), *((rank, line) for line in lines[1:])]
    return found


def head(case: Case, rank: int, number: int) -> str:
    """The first line of a rank's event."""
    return [line for line in case[0][rank] if line not in TAILS][number]


def torn(came: Lines) -> bool:
    """Whether a line without a time stands behind one of another rank, or out of its turn."""
    before = (-1, "")
    for rank, line in came:
        at = TAILS.index(line) if line in TAILS else 0
        if line in TAILS and (before[0] != rank or (before[1] in TAILS) != (at > 0)):
            return True
        before = (rank, line)
    return False
