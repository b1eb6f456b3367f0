"""Draw logs from the seed, merge them by sorting whole events, and check the number of lines held in memory."""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

Event = tuple[int, int, int, list[str]]
"""An event: true time in ticks, rank, number in its log, lines as written."""
TICKS = 64
"""Ticks per second. Floats represent such times exactly, so ties are ties in any arithmetic."""
Case = tuple[list[list[str]], list[float]]
TAILS = (
    "Traceback (most recent call last):",
    '  File "train.py", line 7',
    "    loss.backward()",
    "RuntimeError: 7 lost",
)
ODD_LINES = (
    "",
    "404: not found",
    "3.25",
    "    5 | x = 1.5",
    "  2.5 GB are free",
    "1.2.3 is the version",
    "10.0.0.4:29500 refused it",
    "7/8 ranks are left",
    "12.5\tms",
    "5% done",
    "it took 3.5 s",
)
"""Lines that do not begin with a number and a space."""


def check(grade: Grade) -> None:
    """Check short logs of all kinds, then long ones, of which merge may hold only a few lines."""
    draw = random.Random(grade.seed)
    drawn = [draw_case(draw, ranks, draw.choice([4, 12])) for ranks in (1, 2, 3, 5, 2, 4)]
    drawn += [draw_case(draw, 12, 12)]
    drawn += [(([[], []], [0.0, 1.0]), []), draw_case(draw, 3, 300)]
    cases, events = zip(*drawn, strict=True)
    found = grade.call({"merges": list(cases)}).values[0]
    came = [[pair_of(grade, pair) for pair in run["came"]] for run in found]
    runs = list(zip(cases, events, came, strict=True))
    check_whole(grade, runs)
    check_order(grade, runs, [run["taken"] for run in found])
    most = max(len(lines) for _, _, _, lines in events[-1])
    total = sum(len(lines) for _, _, _, lines in events[-1])
    if found[-1]["held"] > 3 * (most + 2):
        grade.reject(
            "reads-it-all",
            f"3 logs with {total} lines: merge held {found[-1]['held']} lines in memory; an event has up to {most}.",
        )
    grade.measured("lines in chronological order", sum(len(run["came"]) for run in found))
    grade.measured(f"most lines held in memory, from 3 logs with {total} lines", f"{found[-1]['held']} lines")


def draw_case(draw: random.Random, ranks: int, num_events: int) -> tuple[Case, list[Event]]:
    """Draw what each rank wrote, by its own clock, with ties; times cross from one digit to two.

    No two events of a rank begin with the same line.
    """
    ahead = [draw.choice([-192, -32, 0, 16, 128, 256]) for _ in range(ranks)]
    if ranks > 1:
        ahead[0], ahead[1] = 0, draw.choice([128, -160])
    if ranks > 10:
        ahead[2] = 48  # two steps of these logs, so ranks 0 and 2 write equal times at different true times
    events: list[Event] = []
    for rank in range(ranks):
        now = 8 * (64 if ranks > 10 else draw.randint(64, 78))
        for number in range(num_events if draw.random() < 0.9 or num_events == 300 else 0):
            now += draw.choice([0, 24] if ranks > 10 else [0, 0, 1, 8, 24, 48])
            word = draw.choice(["step", "loss 2.5 in", "allreduce", "error: connection lost in", "2 of 4 came to"])
            written = (now + ahead[rank]) / TICKS
            head = f"{written:.6f} {word} {number}" if draw.random() < 0.7 else f"{written:.12g} {word} {number}"
            tail = draw.choice([(), (), TAILS[:1], TAILS, tuple(draw.sample(ODD_LINES, draw.randint(1, 4)))])
            events.append((now, rank, number, [head, *tail]))
    logs = [[line for event in events if event[1] == rank for line in event[3]] for rank in range(ranks)]
    return (logs, [lead / TICKS for lead in ahead]), events


Lines = list[tuple[int, str]]
Run = tuple[Case, list[Event], Lines]
"""A case: its events as they happened, and the merged lines."""


def pair_of(grade: Grade, found: Any) -> tuple[int, str]:
    """Return a yielded pair, after checking its types."""
    if not isinstance(found, list) or [type(each) for each in found] != [int, str] or "\n" in found[1]:
        shown = repr(found) if len(repr(found)) < 100 else f"{repr(found)[:97]}..."
        grade.reject("not-pairs", f"merge yielded {shown}; expected pairs of a rank and a line: (0, '9.500 step').")
    return found[0], found[1]


def check_whole(grade: Grade, runs: list[Run]) -> None:
    """Reject unless merge yielded every line of every run exactly once."""
    for case, events, came in runs:
        written, left = Counter(expect(case, events)), Counter(came)
        for rank, line in left - written:
            in_log, missing = written[rank, line], sum((written - left).values())
            text = f"{about(case)}: merge yielded ({rank}, '{line}')"
            if in_log:
                grade.reject(
                    "came-twice",
                    f"{text} {times(left[rank, line])}; the log of rank {rank} contains it {times(in_log)}.",
                )
            lost = f"it did not yield {count(missing, 'line')} of the logs"
            grade.reject("lines-changed", f"{text}, which is not a line of the log of rank {rank}; {lost}.")
    lossy = [run for run in runs if lost_lines(run)]
    if lossy:
        case, _, came = lossy[0]
        rank, line = lost_lines(lossy[0])[0]
        text = f"{about(case)}: merge yielded {count(len(came), 'line')}. Lost: '{line}' of rank {rank}."
        grade.reject(why_lost(lossy), text)


def lost_lines(run: Run) -> list[tuple[int, str]]:
    case, events, came = run
    return list(Counter(expect(case, events)) - Counter(came))


def why_lost(lossy: list[Run]) -> str:
    """Return the id of the misconception that all losses together show."""
    if all(not line.strip() for run in lossy for _, line in lost_lines(run)):
        return "blank-lines"
    lost = [set(lost_lines(run)) for run in lossy]
    times_lost = any(
        (rank, lines[0]) in gone for run, gone in zip(lossy, lost, strict=True) for _, rank, _, lines in run[1]
    )
    inside = any(gone & inner_tails(run) for run, gone in zip(lossy, lost, strict=True))
    return "times-only" if inside and not times_lost else "lines-lost"


def inner_tails(run: Run) -> set[tuple[int, str]]:
    """Return the lines without a time of all events but the last of each log."""
    last = {rank: number for _, rank, number, _ in run[1]}
    return {(rank, line) for _, rank, number, lines in run[1] if number < last[rank] for line in lines[1:]}


def times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def check_order(grade: Grade, runs: list[Run], taken: list[list[list[int]]]) -> None:
    """Explain a wrong order: by one misconception, then by events torn apart, then by the order of whole events."""
    wrong = [run for run in runs if run[2] != expect(*run[:2])]
    if not wrong:
        return
    for id, key in BELIEFS:
        for way in (in_order, as_merged):
            if all(came == way(case, events, key) for case, events, came in runs):
                grade.reject(id, differs(*wrong[0]))
    for case, events, came in wrong:
        if (place := tear(events, came)) is not None:
            torn = {line for run in wrong for line in displaced(*run)}
            by_digit = bool(torn) and all(line.strip()[:1].isdigit() for line in torn)
            id = "digits-begin-events" if by_digit else "events-torn-apart"
            grade.reject(id, f"{about(case)}: {stands(came, place)}")
    early = [(run, each) for run, each in zip(runs, taken, strict=True) if times_back(run)]
    if not early:
        grade.reject("ties-by-text" if all(map(ties_alone, wrong)) else "unknown", differs(*wrong[0]))
    behind = sum(times_back(run) for run, _ in early)
    id = "not-the-earliest" if any(was_unread(*each) for each in early) else "unknown"
    grade.reject(id, f"{differs(*early[0][0])} In all runs merge yielded {count(behind, 'event')} after a later one.")


def ties_alone(run: Run) -> bool:
    """True if the true times of the merged lines never go back."""
    return times_back(run) == 0


def was_unread(run: Run, taken: list[list[int]]) -> bool:
    """True if merge yielded a later event before it had read the log of an earlier one up to that event."""
    (logs, _), events, came = run
    times = {(rank, lines[0]): now for now, rank, _, lines in events}
    heads = [(place, pair) for place, pair in enumerate(came) if pair in times]
    return any(
        times[later] < times[earlier] and taken[place][later[0]] <= logs[later[0]].index(later[1])
        for (place, earlier), (_, later) in pairwise(heads)
    )


def expect(case: Case, events: list[Event]) -> Lines:
    """Return the right merged lines."""
    return in_order(case, events, lambda event, lead: event[:3])


def about(case: Case) -> str:
    logs, ahead_s = case
    leads = ", ".join(f"{lead:g} s" for lead in ahead_s)
    clocks = "its clock" if len(logs) == 1 else "clocks"
    return f"{count(len(logs), 'log')} with {count(sum(map(len, logs)), 'line')}, {clocks} ahead by {leads}"


def differs(case: Case, events: list[Event], came: Lines) -> str:
    """Describe the first line at which a run differs from the right order."""
    pairs = zip(came, expect(case, events), strict=True)
    place, (found, right) = next((n, pair) for n, pair in enumerate(pairs, 1) if pair[0] != pair[1])
    line = f"line {place} is '{found[0]} | {found[1]}', but should be '{right[0]} | {right[1]}'."
    return f"{about(case)}: {line}"


BELIEFS: list[tuple[str, Callable[[Event, int], Any]]] = [
    ("one-after-the-other", lambda event, lead: event[1:3]),
    ("clocks-agree", lambda event, lead: (event[0] + lead, *event[1:3])),
    ("offset-added", lambda event, lead: (event[0] + 2 * lead, *event[1:3])),
    ("lead-has-no-sign", lambda event, lead: (event[0] + lead - abs(lead), *event[1:3])),
    ("lead-in-another-unit", lambda event, lead: (event[0] + lead - lead / 1000, *event[1:3])),
    ("lead-in-another-unit", lambda event, lead: (event[0] + lead - lead * 1000, *event[1:3])),
    ("compared-as-text", lambda event, lead: (f"{event[0] / TICKS:.3f}", *event[1:3])),
    ("compared-as-text", lambda event, lead: (f"{event[0] / TICKS:.6f}", *event[1:3])),
    ("compared-as-text", lambda event, lead: (event[3][0].split(" ")[0], *event[1:3])),
    ("compared-as-text", lambda event, lead: (str(event[0] / TICKS), *event[1:3])),
    ("whole-seconds", lambda event, lead: (event[0] // TICKS, *event[1:3])),
    ("whole-seconds", lambda event, lead: ((event[0] + lead) // TICKS - lead / TICKS, *event[1:3])),
    ("rounded-times", lambda event, lead: (round(event[0] / TICKS, 1), *event[1:3])),
    ("rounded-times", lambda event, lead: (round(event[0] / TICKS), *event[1:3])),
    ("rounded-times", lambda event, lead: (round((event[0] + lead) / TICKS, 1) - lead / TICKS, *event[1:3])),
    ("rank-as-text", lambda event, lead: (event[0], str(event[1]), event[2])),
    ("one-from-each", lambda event, lead: (event[2], event[1])),
]
"""The sort key under each misconception; `lead` is that of the event's clock, in ticks."""


def in_order(case: Case, events: list[Event], key: Callable[[Event, int], Any]) -> Lines:
    """Return the lines, event by event, sorted by a key."""
    return written(sorted(events, key=lambda event: key(event, lead_of(case, event))))


def as_merged(case: Case, events: list[Event], key: Callable[[Event, int], Any]) -> Lines:
    """Return the same, but compare only the next event of each log."""
    ranks = range(len(case[0]))
    logs = [sorted((event for event in events if event[1] == rank), key=lambda event: event[2]) for rank in ranks]
    return written(heapq.merge(*logs, key=lambda event: key(event, lead_of(case, event))))


def lead_of(case: Case, event: Event) -> int:
    return round(case[1][event[1]] * TICKS)


def written(events: Iterable[Event]) -> Lines:
    """Return the lines of events, as their ranks wrote them."""
    return [(rank, line) for _, rank, _, lines in events for line in lines]


def tear(events: list[Event], came: Lines) -> int | None:
    """Return the index of the first line that is separated from its event, or None."""
    blocks = {(rank, lines[0]): lines for _, rank, _, lines in events}
    tail: Lines = []
    for place, pair in enumerate(came):
        if pair in blocks and not tail:
            tail = [(pair[0], line) for line in blocks[pair][1:]]
        elif not tail or pair != tail.pop(0):
            return place
    return None


def displaced(case: Case, events: list[Event], came: Lines) -> set[str]:
    """Return the lines without a time that follow a different line than in their log."""
    behind = {(rank, *pair) for rank, log in enumerate(case[0]) for pair in pairwise(log)}
    begins = {(rank, lines[0]) for _, rank, _, lines in events}
    moved = (after for before, after in pairwise(came) if before[0] != after[0] or (*before, after[1]) not in behind)
    return {line for rank, line in [*came[:1], *moved] if (rank, line) not in begins}


def stands(came: Lines, place: int) -> str:
    """Describe the line that is separated from its event."""
    line, *before = (f"'{rank} | {text}'" for rank, text in reversed(came[max(0, place - 1) : place + 1]))
    comes = f"directly follows {before[0]}" if before else "is the first line"
    return f"{line} {comes} (line {place + 1}): the lines of an event are separated."


def times_back(run: Run) -> int:
    """Count the events that follow directly after a later one."""
    times = {(rank, lines[0]): now for now, rank, _, lines in run[1]}
    moments = [times[pair] for pair in run[2] if pair in times]
    return sum(later < earlier for earlier, later in pairwise(moments))
