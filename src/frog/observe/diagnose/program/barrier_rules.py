"""A rank for which the others gave up to wait, and said so: in torch's monitored_barrier, or in an error of their own.

The message of monitored_barrier names the rank, and the code tells where it went instead.
"""

from __future__ import annotations

import ast
import re

from frog.core.runs.observed import CodeLine
from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.code_blocks import called_name, is_readable, parse_file
from frog.observe.diagnose.program.code_lines import is_user_file
from frog.observe.diagnose.program.code_partings import parting_of, stack_of
from frog.observe.diagnose.program.condition_sources import source_words, sources_of_loop
from frog.observe.diagnose.program.evidence import Evidence, RankEvidence, SeenError, at_place, place, same_line
from frog.observe.diagnose.program.parting_words import AGREE_FIRST, EVEN_ROUNDS, leaves_loop, passes_alone
from frog.observe.diagnose.program.peer_errors import own_error
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


_COLLECTIVE = re.compile(r"barrier|all_reduce|all_gather|broadcast|reduce_scatter|all_to_all")


def gave_up(evidence: Evidence) -> Diagnosis | None:
    """Explain an exception that ranks raised in the handler of a collective's error, by what the others did instead."""
    raised, waited = _raised_and_waited(evidence)
    there = [rank for number, rank in evidence.ranks.items() if number not in raised and rank.error is None]
    missing = [rank for rank in there if rank.line is not None and not _has_ended(rank) and not rank.stopped]
    if not missing or not waited or len(waited) < len(raised) or len(waited) < len(missing):
        return None
    stayed, odd = min(waited), min(missing, key=lambda rank: rank.rank)
    error, line, fault = raised[stayed], waited[stayed], _NOT_THERE[None if odd.pending else odd.cpu_busy]
    own = _lines(odd)
    same = [number for number, at in waited.items() if same_line(at, line)]
    return Diagnosis(
        fault,
        f"{they_wait(sorted(same))} at {place(line)}, whose error led {'it' if len(same) == 1 else 'them'} to raise "
        f"{error.short_type}{at_place(error.line)}: {error.first_line}; {_instead(evidence, odd, own)}",
        rank=odd.rank,
        node_rank=odd.node_rank,
        line=place(own[0]) if own else None,
        peer_line=place(line),
        certain=False,
        evidence=report_ranks(evidence, [*(rank.rank for rank in missing), *sorted(waited)]),
        advice="find out what it did instead; if it only needs longer, raise the timeout of the collective\n"
        "the error of the handler hides that of the collective: raise it `from error`",
    )


def raised_instead(evidence: Evidence, diagnosis: Diagnosis) -> str | None:
    """Return the exception that ranks raised when they gave up the wait of a diagnosis; None if they raised none."""
    raised, waited = _raised_and_waited(evidence)
    stayed = min(waited, default=None)
    if stayed is None or place(waited[stayed]) != diagnosis.peer_line:
        return None
    return raised[stayed].short_type


def _raised_and_waited(evidence: Evidence) -> tuple[dict[int, SeenError], dict[int, CodeLine]]:
    """Return the ranks' own exceptions, and for those raised in the handler of a collective's error that collective."""
    raised = {number: error for number, rank in evidence.ranks.items() if (error := own_error(rank)) is not None}
    return raised, {number: line for number, error in raised.items() if (line := _failed_before(error)) is not None}


def _failed_before(error: SeenError) -> CodeLine | None:
    """Return the collective in a `try` of which an exception's line is in the handler; None if it is in none."""
    lines = _lines_of_error(error)
    if not lines or not is_readable(lines[0]):
        return None
    parsed, at = parse_file(lines[0].file), lines[0].line
    tries = [node for node in ast.walk(parsed[0]) if isinstance(node, ast.Try)] if parsed is not None else []
    inner = [node for node in tries if any(each.lineno <= at <= (each.end_lineno or 0) for each in node.handlers)]
    calls = [call for node in inner[-1:] for child in node.body for call in ast.walk(child)]
    numbers = [call.lineno for call in calls if isinstance(call, ast.Call) and _COLLECTIVE.search(called_name(call))]
    return CodeLine(file=lines[0].file, line=numbers[-1], function=lines[0].function) if numbers else None


def _missed_by(error: SeenError) -> list[int]:
    match = _MISSED.search(error.message)
    return [int(number) for number in match[1].split(",")] if match else []


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
