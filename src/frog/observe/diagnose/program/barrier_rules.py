"""A rank that torch's monitored_barrier missed: its message names the rank, the code tells where it went instead."""

from __future__ import annotations

import re

from frog.core.runs.observed import CodeLine
from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.code_lines import is_user_file
from frog.observe.diagnose.program.code_partings import parting_of, stack_of
from frog.observe.diagnose.program.condition_sources import source_words, sources_of_loop
from frog.observe.diagnose.program.evidence import Evidence, RankEvidence, SeenError, at_place, place
from frog.observe.diagnose.program.parting_words import AGREE_FIRST, EVEN_ROUNDS, leaves_loop, passes_alone
from frog.observe.diagnose.program.rank_reports import describe_call, report_ranks, they_wait

_MISSED = re.compile(r"\bRanks? (\d{1,7}(?:, ?\d{1,7}){0,99}) failed to pass monitoredBarrier", re.IGNORECASE)
_NOT_THERE = {True: "busy", False: "blocked", None: "stuck"}
"""The fault of a rank that computes, waits, or of which that is not known."""
_BARRIER = re.compile(r"monitoredBarrier", re.IGNORECASE)


def missed_barrier(evidence: Evidence) -> Diagnosis | None:
    """Explain a monitored_barrier that timed out, by what the rank that it names did instead."""
    failed = {number: rank.error for number, rank in evidence.ranks.items() if rank.error is not None}
    waited = {number: error for number, error in failed.items() if _BARRIER.search(error.message)}
    named = {number for error in waited.values() for number in _missed_by(error)}
    missing = sorted(named & (evidence.ranks.keys() - waited.keys()))
    if not missing or named & waited.keys():  # numbers of a smaller group are not those of the world
        return None
    odd, stayed = missing[0], min(waited)
    rank, barrier = evidence.ranks[odd], _lines_of_error(waited[stayed])
    own, last = _lines(rank), [call for call in rank.calls if call.done]
    parting = parting_of(barrier, own, barrier) or parting_of(barrier, own, stack_of(last[-1]) if last else ())
    fault, words = "ended" if _has_ended(rank) else _NOT_THERE[None if rank.pending else rank.cpu_busy], ""
    advice = "find out what it did instead; if it only needs longer, raise the timeout of monitored_barrier"
    if parting is not None and parting.block.kind == "loop":
        fault, words, advice = "batches", leaves_loop(parting, odd, stayed, barrier, own), EVEN_ROUNDS
        words += sources_of_loop(parting, barrier)
    elif parting is not None:
        fault, words, advice = "branch", passes_alone(parting.block, stayed, odd, True), AGREE_FIRST
        words += source_words(parting.block)
    return Diagnosis(
        fault,
        f"{they_wait(sorted(waited))} in monitored_barrier{at_place(barrier[0] if barrier else None)} for "
        f"{span(missing)}: {_instead(evidence, rank, own)}{f': {words}' if words else ''}",
        rank=odd,
        node_rank=rank.node_rank,
        line=place(own[0]) if own else None,
        peer_line=place(barrier[0]) if barrier else None,
        certain=False,
        evidence=report_ranks(evidence, [*missing, *sorted(waited)]),
        advice=advice,
    )


def _missed_by(error: SeenError) -> list[int]:
    found = _MISSED.search(error.message)
    return [int(number) for number in found[1].split(",")] if found else []


def _lines_of_error(error: SeenError) -> tuple[CodeLine, ...]:
    """Return the lines of the user's code that led to an error, innermost first."""
    return tuple(frame for frame in reversed(error.frames) if is_user_file(frame.file))


def _lines(rank: RankEvidence) -> tuple[CodeLine, ...]:
    """Return the lines at which a rank was when the others gave up, innermost first."""
    if rank.pending:
        return stack_of(rank.pending[0])
    if _has_ended(rank):
        return ()
    if rank.error is not None and (lines := _lines_of_error(rank.error)):
        return lines
    frames = tuple(frame for frame in rank.stack if is_user_file(frame.file))
    return frames or ((rank.line,) if rank.line is not None else ())


def _instead(evidence: Evidence, rank: RankEvidence, lines: tuple[CodeLine, ...]) -> str:
    """Say what a rank did instead of the barrier."""
    if rank.pending:
        return f"rank {rank.rank} waits in {describe_call(evidence, rank.pending[0])}"
    if _has_ended(rank):
        return f"rank {rank.rank} had ended without an error"
    doing = {True: "computed", False: "waited", None: "was"}[rank.cpu_busy]
    return f"rank {rank.rank} {doing}{at_place(lines[0] if lines else None)}"


def _has_ended(rank: RankEvidence) -> bool:
    return rank.error is None and (rank.state == "ended" or rank.exit_code == 0)
