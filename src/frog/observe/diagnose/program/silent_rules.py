"""Rules about faults that do not end a program: a slow rank, values that are not finite, `no_sync` without effect.

After an all-reduce, every rank has the NaN of one. The logs tell them apart if each rank writes its own loss: the first
NaN comes after fewer losses than that of the other ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import comb
from pathlib import PurePath

from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis, note
from frog.observe.diagnose.program.code_blocks import loop_over_a_set
from frog.observe.diagnose.program.compared_calls import members_of
from frog.observe.diagnose.program.evidence import Evidence, Group, at_place, place
from frog.observe.diagnose.program.mismatch_rules import passed
from frog.observe.diagnose.program.rank_reports import report_ranks

_LEAST_CALLS = 8
_LATE_NS = 20_000_000
"""A rank that comes last by less is not late."""
_LEAST_TIMES = 4
"""Fewest collectives to which a slow rank comes late. Their share does not matter: a step may have many collectives."""
_LOST, _MUCH_LOST, _SURELY_LOST = 0.15, 0.3, 0.4
"""Least parts of the time during which the others wait for it: to look at it, if it may be late by chance, and if that
is certain."""
_MORE = 4
"""How much more they wait for it than for any other rank."""
_CHANCE = 1e-4
"""Ranks on busy cores are late in turn. If chance makes a rank late so often with less than this probability, it is
slow."""


@dataclass(frozen=True)
class _Late:
    """The rank for which the other members of a group waited most."""

    rank: int
    group: Group
    hosts: int
    calls: int
    times: int
    """Calls to which it came late."""
    waited_ns: int
    lost: float
    """Part of the time during which the others waited for it."""
    chance: float
    """Probability that one of the ranks is late so often, if each late call is as likely to be any rank's."""

    @property
    def is_slow(self) -> bool:
        return self.times >= _LEAST_TIMES and (self.lost >= _MUCH_LOST or self.chance < _CHANCE)


def slow_rank(evidence: Evidence) -> Diagnosis | None:
    """Report the rank that the others wait for, if one is late again and again."""
    return next((_slow_diagnosis(evidence, late) for late in _late_ranks(evidence) if late.is_slow), None)


def perhaps_slow(evidence: Evidence) -> str:
    """Return words about a rank that was late, perhaps by chance; empty if none was."""
    late = next((late for late in _late_ranks(evidence) if not late.is_slow), None)
    if late is None:
        return ""
    return (
        f"rank {late.rank} came late to {late.times} of {late.calls} collectives, for which the others waited "
        f"{100 * late.lost:.0f} % of the time: it may be slow or have work of its own, or the cores were busy"
    )


def _late_ranks(evidence: Evidence) -> Iterator[_Late]:
    """Yield the rank of each group that is late again and again, if there is one."""
    for group in dict.fromkeys(call.group for rank in evidence.ranks.values() for call in rank.calls if not call.p2p):
        late = _in_group(evidence, group, _rows(evidence, group))
        if late is not None:
            yield late


def _rows(evidence: Evidence, group: Group) -> list[dict[int, int]]:
    """Return the times at which the members called each collective that all of them called, but the first.

    The ranks come to the first one when they have started, at different times.
    """
    members = [number for number in members_of(evidence, group) if number in evidence.ranks]
    times = {
        number: {call.seq: call.created_ns for call in evidence.ranks[number].calls if call.group == group}
        for number in members
    }
    common = sorted(set.intersection(*(set(found) for found in times.values()))) if len(members) > 1 else []
    rows = [{number: ns for number in members if (ns := times[number][seq])} for seq in common]
    return [row for row in rows if len(row) == len(members)][1:]


def _in_group(evidence: Evidence, group: Group, rows: list[dict[int, int]]) -> _Late | None:
    if len(rows) < _LEAST_CALLS - 1:
        return None
    late_ns = {number: _late_ns(rows, number) for number in rows[0]}
    slowest = max(late_ns, key=lambda number: sum(late_ns[number]))
    waited_ns, others_ns = sum(late_ns[slowest]), max(sum(late_ns[each]) for each in late_ns if each != slowest)
    lost = waited_ns / (max(rows[-1].values()) - min(rows[0].values()) + 1)
    times = len(late_ns[slowest])
    if lost < _LOST or waited_ns < _MORE * others_ns or (times < _LEAST_TIMES and lost < _MUCH_LOST):
        return None
    chance = _chance(times, sum(map(len, late_ns.values())), len(late_ns))
    hosts = len({evidence.ranks[number].host for number in late_ns})
    return _Late(slowest, group, hosts, len(rows), times, waited_ns, lost, chance)


def _chance(times: int, of: int, ranks: int) -> float:
    """Return the probability that one of the ranks is late at least so many times, if all are equally likely to be."""
    ways = sum(comb(of, each) * (ranks - 1) ** (of - each) for each in range(times, of + 1))
    return float(ranks * ways / ranks**of)


def _slow_diagnosis(evidence: Evidence, late: _Late) -> Diagnosis:
    rank = evidence.ranks[late.rank]
    line = next((call.line for call in reversed(rank.calls) if call.group == late.group), None)
    skewed = late.hosts > 1
    cause, times = slow_cause(evidence, late.rank)
    return Diagnosis(
        "slow",
        f"the others waited for rank {late.rank} during {100 * late.lost:.0f} % of the time: it came late to "
        f"{late.times} of {late.calls} collectives of {late.group.label(evidence.world)}, by "
        f"{late.waited_ns / 1e9 / late.times:.2f} s"
        + (f". It was most often seen at {rank.often}" if rank.often else "")
        + (f"; {cause.words.format(thread=rank.thread)} at {times} of {rank.num_beats} looks" if cause else ""),
        rank=late.rank,
        node_rank=rank.node_rank,
        line=rank.often or place(line) or None,
        certain=not skewed and late.lost >= _SURELY_LOST and late.chance < _CHANCE,
        outcome="completed" if rank.state == "ended" else "running" if evidence.active else "failed",
        evidence=report_ranks(evidence, [late.rank]),
        advice=(f"{cause.advice}\n" if cause else "")
        + "compare its host with the others: other processes, clocks of its CPU or GPU, a slow disk, more data, "
        "or work that only this rank does, such as saving\n"
        + (
            "the hosts' clocks may differ, which looks the same" if skewed else "`py-spy top --pid PID` shows its lines"
        ),
    )


@dataclass(frozen=True)
class Cause:
    """What takes a rank's time, as its observer saw."""

    words: str
    advice: str


CAUSES = {
    "compile": Cause(
        "torch.compile was compiling",
        "torch.compile compiles again for each new shape, dtype or number: TORCH_LOGS=recompiles shows why; pad to few "
        "shapes or mark them dynamic, and compile on all ranks before the first step",
    ),
    "loader": Cause(
        "it waited for its DataLoader",
        "the data come too slowly on this rank: more workers (num_workers), persistent_workers=True, a closer disk",
    ),
    "checkpoint": Cause(
        "it was saving a checkpoint",
        "save less often, or asynchronously (torch.distributed.checkpoint.async_save), or let each rank save its part",
    ),
    "gc": Cause(
        "Python's garbage collection took the time",
        "gc.disable() after the model is built, and gc.collect() on all ranks in the same step; gc.freeze() before it",
    ),
    "thread": Cause(
        "its thread {thread} computed, which can hold Python's lock (GIL),",
        "move the work of that thread to another process: threads of Python code take turns with the training loop",
    ),
    "gil": Cause(
        "none of its Python threads could run: a call kept Python's lock (GIL)",
        "look for a C extension that computes or waits without releasing the GIL",
    ),
}
_LEAST_BEATS, _LEAST_PART = 3, 0.2
"""Fewest beats, and least part of them, at which a cause was seen."""


def slow_cause(evidence: Evidence, number: int) -> tuple[Cause | None, int]:
    """Return what took a slow rank's time, and at how many beats; None if the other ranks have it as often."""
    rank = evidence.ranks[number]
    others = [other for other in evidence.ranks.values() if other.rank != number]
    for name, times in sorted(rank.causes.items(), key=lambda item: -item[1]):
        most = max((other.causes.get(name, 0) for other in others), default=0)
        if name in CAUSES and times >= max(_LEAST_BEATS, _LEAST_PART * rank.num_beats, 2 * most):
            return CAUSES[name], times
    return None, 0


# ---- memory that grows -----------------------------------------------------------------------------------------------

_LEAST_MOMENTS = 8
_NEAR_THE_END = 0.8
_LEAST_GROWTH_MIB, _LEAST_GROWTH = 64, 0.15


def growing_memory(evidence: Evidence) -> Diagnosis | None:
    """Report ranks whose host memory grows steadily from step to step."""
    grown = {number: moments for number, rank in evidence.ranks.items() if (moments := _growth(rank.memory))}
    if not grown:
        return None
    number, moments = max(grown.items(), key=lambda item: item[1][-1][1] - item[1][0][1])
    (first_call, first_mib), (last_call, last_mib) = moments[0], moments[-1]
    each = (last_mib - first_mib) / max(1, last_call - first_call)
    rank = evidence.ranks[number]
    return Diagnosis(
        "growth",
        f"the host memory of {span(sorted(grown))} grows steadily: on rank {number} from {first_mib} to {last_mib} MiB "
        f"between collectives {first_call} and {last_call}, {each:.2g} MiB each",
        rank=number if len(grown) == 1 else None,
        node_rank=rank.node_rank,
        certain=False,
        outcome=_outcome(evidence),
        evidence=tuple(
            note(None, f"rank {number}", f"{mib} MiB after {calls} collectives", "status.json")
            for calls, mib in moments[:: max(1, len(moments) // 5)]
        ),
        advice="look for what each step keeps: a list of losses (`loss.item()` or `loss.detach()` instead of `loss`), "
        "outputs for metrics, a cache without a limit, workers of a DataLoader that copy what they read\n"
        "tracemalloc shows the lines that allocate",
    )


def _growth(memory: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the moments after the start if the memory grows in each quarter of them, by a good part."""
    moments = [moment for moment in memory if moment[0]]
    moments = moments[len(moments) // 4 :]
    peak = max((mib for _, mib in moments), default=0)
    last = max((number for number, (_, mib) in enumerate(moments) if mib == peak), default=0)
    if last < _NEAR_THE_END * (len(moments) - 1):
        return []
    moments = moments[: last + 1]  # a program may free everything before it ends
    if len(moments) < _LEAST_MOMENTS:
        return []
    mib = [each for _, each in moments]
    total = mib[-1] - mib[0]
    marks = [mib[round(part * (len(mib) - 1) / 4)] for part in range(5)]
    steady = all(after - before >= total / 10 for before, after in itertools.pairwise(marks))
    return moments if total >= max(_LEAST_GROWTH_MIB, _LEAST_GROWTH * mib[0]) and steady else []


def _late_ns(rows: list[dict[int, int]], number: int) -> list[int]:
    """Return by how much a rank came after all others, for each collective to which it came late."""
    behind = [row[number] - max(ns for other, ns in row.items() if other != number) for row in rows]
    return [ns for ns in behind if ns > _LATE_NS]


# ---- values that are not finite --------------------------------------------------------------------------------------

_NAN_ADVICE = (
    "`frog.record(step, loss=loss)` with each rank's own loss shows which had the first NaN\n"
    "torch.autograd.set_detect_anomaly(True) shows where it arises"
)


def first_not_finite(evidence: Evidence) -> int | None:
    """Return the rank whose log has the first loss that is not finite; None if the logs do not tell."""
    ranks = {number: rank.num_losses for number, rank in evidence.ranks.items() if rank.nan_line}
    first = sorted(ranks, key=lambda number: ranks[number])[:2]
    if len(evidence.ranks) < 2 or not first:
        return None
    if len(first) == 1:
        others = [rank.num_losses for number, rank in evidence.ranks.items() if number != first[0]]
        return first[0] if any(others) else None  # often, only rank 0 writes the loss
    return first[0] if ranks[first[0]] < ranks[first[1]] else None


def not_finite_in_log(evidence: Evidence) -> Diagnosis | None:
    """Report a program that continued with a loss that is not finite."""
    ranks = sorted(number for number, rank in evidence.ranks.items() if rank.nan_line)
    what = "loss that is not finite" if ranks else "gradient norm that stays NaN"
    ranks = ranks or sorted(number for number, rank in evidence.ranks.items() if rank.norm_line)
    if not ranks:
        return None
    first = first_not_finite(evidence)
    others = f", first on rank {first}" if first is not None and len(ranks) > 1 else ""
    return Diagnosis(
        "nan",
        f"the log of {span(ranks)} shows a {what}{others}, and the program continued",
        rank=first,
        certain=False,
        outcome=_outcome(evidence),
        evidence=not_finite_lines(evidence, ranks),
        advice=_NAN_ADVICE,
    )


def not_finite_lines(evidence: Evidence, ranks: list[int]) -> tuple[str, ...]:
    """Return the lines of the logs."""
    seen = [evidence.ranks[number] for number in ranks[:8]]
    lines = [(rank, rank.nan_line or rank.norm_line) for rank in seen]
    return tuple(note(None, f"rank {rank.rank}", line, rank.sources[-1]) for rank, line in lines if line)


# ---- gradient accumulation that averages in each micro-batch ---------------------------------------------------------

_LEAST_WITHOUT_EFFECT = 2
"""Fewest contexts without effect to report."""


def no_sync_without_effect(evidence: Evidence) -> Diagnosis | None:
    """Report that the program entered `no_sync` only after the forward, which decides about the average."""
    by_rank = {
        number: rank.no_sync
        for number, rank in sorted(evidence.ranks.items())
        if rank.no_sync is not None and rank.no_sync.without_effect >= _LEAST_WITHOUT_EFFECT
    }
    if not by_rank:
        return None
    rank, seen = next(iter(by_rank.items()))
    lines = [
        note(
            None, f"rank {number}", f"{counts.without_effect} of {counts.entered} no_sync had no effect", "status.json"
        )
        for number, counts in list(by_rank.items())[:8]
    ]
    return Diagnosis(
        "no_sync",
        f"DDP's no_sync{at_place(seen.line)} had no effect in {seen.without_effect} of {seen.entered} micro-batches of "
        f"{span([*by_rank])}: the forward ran before it, so DDP averaged the gradients in each: the numbers are right, "
        "but more is sent than necessary",
        rank=rank,
        line=place(seen.line) or None,
        certain=False,
        outcome=_outcome(evidence),
        evidence=tuple(lines),
        advice="put the forward into the context too: `with model.no_sync(): loss = model(x); loss.backward()`",
    )


# ---- collectives in the order of a set -------------------------------------------------------------------------------


def order_of_a_set(evidence: Evidence) -> Diagnosis | None:
    """Report a loop over a set that calls collectives: text in a set has another order in each process."""
    lines = dict.fromkeys(call.line for rank in evidence.ranks.values() for call in rank.calls if call.line is not None)
    for line in lines:
        loop = loop_over_a_set(line)
        if loop is not None and len(evidence.ranks) > 1:
            return Diagnosis(
                "order",
                f"the loop {loop} calls a collective at {place(line)} in the order of a set, which differs between "
                "processes for text (PYTHONHASHSEED): calls of equal size meet, but belong to other tensors",
                line=place(line),
                certain=False,
                outcome=_outcome(evidence),
                evidence=(note(None, PurePath(loop.file).name, f"line {loop.line}: {loop.text}", ""),),
                advice="sort the set, or use a dict or a list, which have the same order on every rank",
            )
    return None


# ---- wrong numbers ---------------------------------------------------------------------------------------------------


def broken_rule(evidence: Evidence) -> Diagnosis | None:
    """Report the rules of `frog check` that the ranks' numbers break, certainly or likely."""
    if not any(answer.is_alarm for answer in evidence.answers):
        return None
    from frog.observe.check.answers import broken_rules

    alarms = [answer for answer in broken_rules(evidence.answers) if answer.is_alarm]
    first, *others = [
        Diagnosis(
            answer.rule.name,
            broken.finding,
            rank=broken.ranks[0] if len(broken.ranks) == 1 else None,
            step=broken.step,
            line=str(broken.line) if broken.line is not None else None,
            certain=broken.sure == "certain",
            outcome=_outcome(evidence),
            evidence=tuple(note(None, "check", line, "") for line in broken.evidence),
            advice=broken.advice,
        )
        for answer in alarms
        if (broken := answer.broken) is not None
    ]
    return first.with_more(also=tuple(others))


def _about_numbers(evidence: Evidence) -> str:
    """Return what is known about the numbers of a program of which no rule is broken."""
    held = [answer for answer in evidence.answers if answer.held]
    if not evidence.answers:
        return (
            "nothing about its end. Whether its numbers are right was not checked: `frog check -- PROGRAM` compares "
            "the ranks' samples, gradients and weights"
        )
    return (
        f"nothing about its end. {len(held)} of {len(evidence.answers)} rules on its numbers were checked and hold; "
        "`frog check --run` lists the others"
    )


def _outcome(evidence: Evidence) -> str:
    return "completed" if evidence.ended_code == 0 else "running" if evidence.active else "failed"


# ---- a program that does not fail ------------------------------------------------------------------------------------

_OF_HEALTHY: tuple[Callable[[Evidence], Diagnosis | None], ...] = (
    passed,
    broken_rule,
    not_finite_in_log,
    order_of_a_set,
    no_sync_without_effect,
    slow_rank,
    growing_memory,
)
"""What may be wrong with a program that does not fail."""


def healthy(evidence: Evidence) -> Diagnosis | None:
    """Find a program of which all ranks ended without an error."""
    if evidence.has_failed or not evidence.ranks:
        return None
    faults = [fault for fault in (rule(evidence) for rule in _OF_HEALTHY) if fault is not None]
    if faults:
        return faults[0].with_more(also=tuple(faults[1:]))
    ranks = evidence.ranks
    ended = all(rank.state == "ended" or rank.exit_code == 0 for rank in ranks.values())
    done = ended or evidence.ended_code == 0 or any(job.state == "COMPLETED" for job in evidence.jobs)
    if not done and not evidence.active:
        return None
    status = "completed" if done else "running"
    doubt = perhaps_slow(evidence)
    return Diagnosis(
        "none" if done else "running",
        f"{len(evidence.world)} ranks {'ended without an error' if done else 'run; nothing is wrong so far'}"
        + (f"; {doubt}" if doubt else ""),
        certain=not doubt,
        outcome=status,
        evidence=report_ranks(evidence, sorted(ranks)),
        advice="run it again on a quiet machine" if doubt else _about_numbers(evidence),
    )
