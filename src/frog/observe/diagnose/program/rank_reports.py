"""Lines of evidence about one rank, for people."""

from __future__ import annotations

import re

from frog.core.errors import describe_exit
from frog.core.units import span
from frog.observe.diagnose.diagnosis import note
from frog.observe.diagnose.program.evidence import Call, Evidence, RankEvidence, at_place, place, same_line
from frog.observe.diagnose.program.peer_errors import is_victim

RECORD_COLLECTIVES = "TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1"
"""Variables with which torch's flight recorder writes a dump of every rank when a collective times out."""
_MOST_RANKS = 8
_CPP_PLACE = re.compile(r"^\[(enforce fail at )?/?\S*\.(cc|cpp|cu|h|hpp):\d+\] ?")


def they_wait(ranks: list[int]) -> str:
    """Return the subject and the verb of a sentence about ranks that wait."""
    return f"{span(ranks)} {'waits' if len(ranks) == 1 else 'wait'}"


def report_rank(evidence: Evidence, number: int, *, waits: bool = True) -> list[str]:
    """Return what is known about a rank: its error, its exit, the collective in which it waits, where it was."""
    rank = evidence.ranks.get(number)
    if rank is None or not (rank.sources or rank.exit_code is not None):
        return [
            note(None, f"rank {number}", "left no evidence: killed, on a lost host, or its files were not copied", "")
        ]
    wait = report_wait(evidence, rank) if waits else None
    lines = [report_error(rank), report_exit(rank), wait, report_position(rank)]
    return [line for line in lines if line]


def report_ranks(evidence: Evidence, first: list[int], *, waits: bool = True) -> tuple[str, ...]:
    """Return the evidence about some ranks in full, and the number of the others that are victims."""
    lines = [line for number in first[:_MOST_RANKS] for line in report_rank(evidence, number, waits=waits)]
    if len(first) > _MOST_RANKS:
        lines.append(f"{'':12}  and {len(first) - _MOST_RANKS} more ranks like these")
    victims = [number for number, rank in evidence.ranks.items() if number not in first and is_victim(rank)]
    if len(victims) > 2:
        lines.append(f"{'':12}  {len(victims)} more ranks only lost their connection, or were ended with the others")
    else:
        lines += [line for number in victims for line in report_rank(evidence, number)[:1]]
    return tuple(lines)


def report_error(rank: RankEvidence) -> str | None:
    if rank.error is None:
        return None
    at = f", at {place(rank.error.line)}" if rank.error.line else ""
    parameters = f" … {rank.error.parameters}" if rank.error.parameters else ""
    what = f"{rank.error.short_type}: {_CPP_PLACE.sub('', rank.error.first_line)}{parameters}{at}"
    return note(rank.error.unix_ns, f"rank {rank.rank}", what, rank.error.source)


def report_exit(rank: RankEvidence) -> str | None:
    if rank.exit_code is None:
        return None
    return note(rank.exited_ns, f"rank {rank.rank}", describe_exit(rank.exit_code), rank.exit_source)


def report_wait(evidence: Evidence, rank: RankEvidence) -> str | None:
    """Return the line about the oldest collective that a rank called and that never completed."""
    pending = [call for call in rank.pending if call.seq > rank.completed.get(call.group, 0)]
    if not pending or rank.state == "ended":
        return None
    call = pending[0]
    return note(call.created_ns, f"rank {rank.rank}", f"waits in {describe_call(evidence, call)}", call.source)


def report_position(rank: RankEvidence) -> str | None:
    """Return the line about where a rank was last seen."""
    files = [source for source in rank.sources if "st" in source.rpartition("/")[2][:2]] or rank.sources
    source = files[0] if files else ""
    if rank.state == "ended" and rank.error is None:
        return note(rank.seen_ns, f"rank {rank.rank}", "reached the end of the program", source)
    if rank.line is None:
        return None
    doing = {True: ", computing", False: ", waiting", None: ""}[rank.cpu_busy]
    return note(rank.seen_ns, f"rank {rank.rank}", f"was at {place(rank.line)}{doing}", source)


def survived_error(rank: RankEvidence) -> str | None:
    """Return the last error in a rank's log that did not end it, as text."""
    if rank.caught:
        error = rank.caught[-1]
        return f"{error.short_type}: {error.first_line}" + (f", at {place(error.line)}" if error.line else "")
    return f"“{rank.trouble[-1][:160]}”" if rank.trouble else None


def after_error(rank: RankEvidence) -> str:
    """Return the end of a sentence about a rank that skipped something after an error which it survived."""
    error = survived_error(rank)
    return f", after an error that its log shows: {error}" if error else ""


def led_by_error(rank: RankEvidence) -> str:
    """Return words about an error that a rank was handling when it made its last call; empty without one."""
    error = rank.handled
    if error is None:
        return ""
    message = f": {error.first_line}" if error.first_line else ""
    return (
        f"an error led rank {rank.rank} there, which it was handling: {error.short_type}{at_place(error.line)}{message}"
    )


def describe_call(evidence: Evidence, call: Call) -> str:
    """Return `all_reduce of 4x4 float (collective 12 of all ranks), called at train.py:14 (main)`."""
    at = f", called at {place(call.line)}" if call.line else ""
    return f"{call} (collective {call.seq} of {call.group.label(evidence.world)}){at}"


def describe_inside(rank: RankEvidence) -> str:
    """Return ` (in wait of threading.py:320)`, the innermost frame, if it is not the user's line; else empty."""
    if not rank.stack or same_line(rank.stack[0], rank.line):
        return ""
    return f" (in {rank.stack[0].function} of {place(rank.stack[0]).partition(' ')[0]})"
