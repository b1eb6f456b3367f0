"""Who waits for whom: the ranks of a run's last start, in groups that do the same, and which group waits for which."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from frog.core.errors import FrogError, describe_exit
from frog.core.runs import read_run
from frog.core.runs.folder import RunFolder
from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.case import Case
from frog.observe.diagnose.collectives import CollectiveCalls
from frog.observe.diagnose.find import is_own_run
from frog.observe.diagnose.program.compared_calls import members_of
from frog.observe.diagnose.program.evidence import Call, Evidence, Group, RankEvidence, place
from frog.observe.diagnose.program.gather import gather
from frog.observe.diagnose.program.run_folder_evidence import attempts_of

_MOST_RANKS = 1024


@dataclass(frozen=True)
class WaitingGroup:
    """Ranks that do the same at the same line."""

    ranks: tuple[int, ...]
    what: str
    """What they do, such as `in all_reduce of 4 float`."""
    place: str
    """Their line, such as `my.py:14 (main)`; empty if unknown."""
    waits_for: tuple[int, ...] = ()
    """Indices of the groups that they wait for."""


@dataclass(frozen=True)
class Seen:
    """What one rank does, and for whom it waits."""

    what: str
    place: str
    awaited: frozenset[int] = frozenset()


def waits_of(folder: RunFolder) -> list[WaitingGroup]:
    """Return who waits for whom; empty if no rank is known to wait for another."""
    try:
        seen = _of_own_run(folder) if is_own_run(folder) else _of_program(folder)
    except FrogError:  # damaged evidence
        return []
    return grouped(seen)


def grouped(seen: dict[int, Seen]) -> list[WaitingGroup]:
    """Join ranks that do the same and wait for the same ranks."""
    if not any(own.awaited & seen.keys() for own in seen.values()):
        return []
    by_look: dict[tuple[str, str, frozenset[int]], list[int]] = {}
    for rank, own in sorted(seen.items()):
        by_look.setdefault((own.what, own.place, own.awaited - {rank}), []).append(rank)
    index = {rank: at for at, ranks in enumerate(by_look.values()) for rank in ranks}
    groups = []
    for at, ((what, where, awaited), ranks) in enumerate(by_look.items()):
        others = sorted({index[rank] for rank in awaited if rank in index} - {at})
        groups.append(WaitingGroup(tuple(ranks), what, where, tuple(others)))
    return groups


# ---- programs that are not Frog's ------------------------------------------------------------------------------------


def _of_program(folder: RunFolder) -> dict[int, Seen]:
    evidence = gather(folder.path, attempts_of(folder.path)[-1])
    return look_at_ranks(evidence) if len(evidence.world) <= _MOST_RANKS else {}


def look_at_ranks(evidence: Evidence) -> dict[int, Seen]:
    """Return what each rank does, and for which ranks it waits."""
    return {
        number: _look(evidence, number, evidence.ranks[number]) for number in evidence.world if number in evidence.ranks
    }


def _look(evidence: Evidence, number: int, rank: RankEvidence) -> Seen:
    call = _pending(rank)
    if call is not None and rank.state != "ended":
        awaited = _missing(evidence, number, call)
        return Seen(f"in {call}", place(call.line or rank.line), frozenset(awaited))
    if rank.transfer is not None and rank.transfer.peer is not None:
        verb = "send to" if rank.transfer.is_send else "recv from"
        return Seen(f"in {verb} rank {rank.transfer.peer}", place(rank.line), frozenset([rank.transfer.peer]))
    counted = next((group for group, called in rank.enqueued.items() if called > rank.completed.get(group, 0)), None)
    if counted is not None and rank.state == "running" and rank.error is None:
        seq = rank.completed.get(counted, 0) + 1
        others = {other for other in evidence.ranks if _is_behind(evidence.ranks[other], counted, seq)}
        return Seen("in a collective", place(rank.line), frozenset(others - {number}))
    return Seen(_doing(rank), place(_last_line(rank)))


def _pending(rank: RankEvidence) -> Call | None:
    open_calls = (call for call in rank.pending if not call.p2p and call.seq > rank.completed.get(call.group, 0))
    return next(open_calls, None)


def _missing(evidence: Evidence, number: int, call: Call) -> Iterable[int]:
    """Yield the members that have not called a collective, or called another one in its place."""
    for other in members_of(evidence, call.group):
        rank = evidence.ranks.get(other)
        if other == number or rank is None:
            continue
        own = next(
            (collective for collective in rank.by_group().get(call.group, []) if collective.seq == call.seq), None
        )
        if own is None:
            differs = _is_behind(rank, call.group, call.seq)
        else:
            differs = (own.op, own.elements) != (call.op, call.elements)
        if differs:
            yield other


def _is_behind(rank: RankEvidence, group: Group, seq: int) -> bool:
    """True if a rank is known not to have called the collective with a number."""
    if group in rank.enqueued:
        return rank.enqueued[group] < seq
    return rank.has_calls


def _doing(rank: RankEvidence) -> str:
    error = rank.error or rank.thread_error
    if error is not None:
        return f"failed with {error.short_type}"
    if rank.state == "ended":
        return "reached the end of the program"
    if rank.exit_code is not None and rank.exit_code != -9:
        return describe_exit(rank.exit_code)
    if rank.stopped:
        return "is stopped"
    return {True: "computes", False: "waits outside of collectives", None: "is elsewhere"}[rank.cpu_busy]


def _last_line(rank: RankEvidence) -> CodeLine | None:
    if rank.error is not None:
        return rank.error.line
    return None if rank.state == "ended" else rank.line


# ---- runs of Frog's trainer ------------------------------------------------------------------------------------------


def _of_own_run(folder: RunFolder) -> dict[int, Seen]:
    run = read_run(folder)
    if run.last is None or len(run.last.ranks) > _MOST_RANKS:
        return {}
    case = Case(run, run.last)
    calls = CollectiveCalls(case)
    awaited: dict[int, set[int]] = {}
    if calls.mismatch is not None:
        odd, others = calls.mismatch.odd, set(calls.mismatch.others)
        awaited = {odd: others, **{other: {odd} for other in others}}
    elif calls.absence is not None:
        awaited = {rank: set(calls.absence.absent) for rank in calls.absence.waiting}
    lost = {rank for rank in case.ranks if case.error(rank) is not None or case.signal_of(rank)}
    lost = {rank for rank in lost if not case.lost_peers(rank)}
    if lost and not awaited:
        awaited = {rank: set(lost) for rank in case.ranks if rank not in lost and case.lost_peers(rank)}
    return {rank: _look_at_trained(case, calls, rank, awaited.get(rank, set())) for rank in case.ranks}


def _look_at_trained(case: Case, calls: CollectiveCalls, rank: int, awaited: set[int]) -> Seen:
    where = str(case.position(rank))
    last = next((call for call in reversed(calls.of(rank)) if not call.ended), None)
    error, signal = case.error(rank), case.signal_of(rank)
    if error is not None and not error.lost_peers:
        return Seen(f"failed with {error.kind}", where)
    if signal is not None and not case.lost_peers(rank):
        return Seen(f"was killed by {signal}", where)
    if awaited and last is not None:
        return Seen(f"in {last}", where, frozenset(awaited))
    if awaited:
        return Seen("in a collective", where, frozenset(awaited))
    return Seen("is there", where)
