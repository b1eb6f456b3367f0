"""Pictures of a program's ranks, each with a sentence: processor time, who is waited for, collectives by line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from frog.core.runs.observed import CollectiveEntry, Observed
from frog.core.units import count, format_seconds
from frog.observe.view.numbers import format_percent, format_ranks

_EVEN = 0.2
"""Ranks whose processor times differ by less than this fraction are called even."""
_USUALLY = 0.5
_OFTEN = 1.5
"""Fraction of the collectives at which a rank must arrive last to be called the straggler, and how much more often than
if each came last equally often: of two ranks, one is last at half of them anyway."""
_FELT = 0.05
"""Fraction of the time of all collectives that the others must have waited for it."""
_FEWEST = 4
_MOST_LINES = 12


@dataclass(frozen=True)
class Picture:
    """Bars, one for each rank or line."""

    title: str
    sentence: str
    bars: list[tuple[str, float, str]]
    """What the bar is about, its length in percent of the longest, and its number with a unit."""


def program_pictures(cpu_s: Mapping[int, float], observed: Mapping[int, Observed], num_nodes: int) -> list[Picture]:
    """Return the pictures for which the observers wrote enough. cpu_s: processor time of each rank."""
    hosts = {own.status.host for own in observed.values() if own.status is not None}
    has_one_clock = num_nodes <= 1 and len(hosts) == 1
    waited_for = _waited_for(observed) if has_one_clock else None
    pictures = [_processor(cpu_s), waited_for, _lines(observed)]
    return [picture for picture in pictures if picture is not None]


def _processor(cpu_s: Mapping[int, float]) -> Picture | None:
    if len(cpu_s) < 2 or min(cpu_s.values()) <= 0:
        return None
    most, least = max(cpu_s, key=lambda rank: cpu_s[rank]), min(cpu_s, key=lambda rank: cpu_s[rank])
    excess = cpu_s[most] / cpu_s[least] - 1
    if excess > _EVEN:
        said = f"Rank {most} used {format_percent(excess)} more processor time than rank {least}: it computes more,"
        said += " or waits in a busy loop."
    else:
        said = f"All ranks used about the same processor time, within {format_percent(max(excess, 0.01))}."
    return Picture("Processor time", said, _bars({f"rank {rank}": own for rank, own in sorted(cpu_s.items())}, True))


def _waited_for(observed: Mapping[int, Observed]) -> Picture | None:
    """Draw how long the others waited for each rank: from the mean of their arrivals until it came last.

    The first collective of a group is left out: ranks reach it when they have started.
    """
    arrivals: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for rank, own in observed.items():
        for entry in own.collectives.entries if own.collectives is not None else ():
            if entry.seq > 1 and entry.created_unix_ns and not entry.p2p:
                arrivals[entry.group, entry.seq][rank] = entry.created_unix_ns
    whole = [came for came in arrivals.values() if len(came) == len(observed) > 1]
    if len(whole) < _FEWEST:
        return None
    waited_s, times_last = dict.fromkeys(sorted(observed), 0.0), Counter[int]()
    for came in whole:
        last = max(came, key=lambda rank: came[rank])
        others = [at for rank, at in came.items() if rank != last]
        waited_s[last] += (came[last] - sum(others) / len(others)) / 1e9
        times_last[last] += 1
    most = max(waited_s, key=lambda rank: waited_s[rank])
    said = f"Rank {most} came last to {times_last[most]} of {count(len(whole), 'collective')}"
    span_s = (max(map(max, map(dict.values, whole))) - min(map(min, map(dict.values, whole)))) / 1e9
    is_often = times_last[most] > max(_USUALLY, _OFTEN / len(observed)) * len(whole)
    if is_often and waited_s[most] > _FELT * span_s:
        said += f", and the others waited {format_seconds(waited_s[most])} for it: it is the straggler."
    else:
        said += ": no rank is usually last."
    bars = _bars({f"rank {rank}": own for rank, own in waited_s.items()}, True)
    return Picture("How long the others waited for a rank", said, bars)


def _lines(observed: Mapping[int, Observed]) -> Picture | None:
    by_line: dict[str, Counter[int]] = defaultdict(Counter)
    recorded = {rank: own.collectives.entries for rank, own in observed.items() if own.collectives is not None}
    in_all = _recorded_by_all(recorded)
    for rank, entries in recorded.items():
        for entry in entries:
            if entry.line is not None and entry.seq in in_all[entry.group, entry.p2p]:
                by_line[f"{entry.op} at {Path(entry.line.file).name}:{entry.line.line}"][rank] += 1
    if not by_line:
        return None
    uneven = [line for line, counts in by_line.items() if len({counts[rank] for rank in recorded}) > 1]
    if uneven:
        said = "; ".join(f"{line}: {_counts(by_line[line], sorted(recorded))}" for line in uneven[:3])
        said = f"Ranks differ. {said}."
    else:
        said = "Every rank called each line equally often."
    shown = dict(sorted(by_line.items(), key=lambda item: -item[1].total())[:_MOST_LINES])
    bars = _bars({line: float(counts.total()) for line, counts in shown.items()}, False)
    return Picture("Collectives by line, of the last that were recorded", said, bars)


def _recorded_by_all(recorded: Mapping[int, Sequence[CollectiveEntry]]) -> dict[tuple[str, bool], range]:
    """Return which numbers of a group's collectives, or of its messages, each rank with any of the group recorded."""
    numbers: dict[tuple[str, bool], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, entries in recorded.items():
        for entry in entries:
            numbers[entry.group, entry.p2p][rank].append(entry.seq)
    return {
        group: range(max(map(min, by_rank.values())), min(map(max, by_rank.values())) + 1)
        for group, by_rank in numbers.items()
    }


def _counts(counts: Mapping[int, int], ranks: Sequence[int]) -> str:
    """Say which ranks called a line how often: `12 on ranks 0-2, 11 on rank 3`."""
    groups: dict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        groups[counts[rank]].append(rank)
    return ", ".join(
        f"{number} on rank{'s' if len(own) > 1 else ''} {format_ranks(own)}" for number, own in sorted(groups.items())
    )


def _bars(values: Mapping[str, float], is_time: bool) -> list[tuple[str, float, str]]:
    largest = max(values.values(), default=0.0)
    bars = []
    for name, value in values.items():
        percent = 100 * value / largest if largest > 0 else 0.0
        bars.append((name, percent, format_seconds(value) if is_time else f"{value:,.0f}"))
    return bars
