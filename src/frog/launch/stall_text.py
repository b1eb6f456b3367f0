"""A world without progress in words: what each rank does, in which line, and in which collective it waits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from frog.core.runs.observed import CodeLine, CollectiveEntry, Observed
from frog.core.runs.outcome import name_ranks
from frog.core.units import count
from frog.launch.program_watch import Finding, Kind, Role

_MOST_GROUPS = 12
"""Most lines about different ranks; the rest is in the run folder."""


def describe_stall(finding: Finding, evidence: Mapping[int, Observed]) -> str:
    """Describe a finding: a heading, and a line for each group of ranks that do the same."""
    by_text: dict[str, list[int]] = {}
    for rank, role in finding.roles.items():
        by_text.setdefault(_describe_rank(role, evidence.get(rank)), []).append(rank)
    lines = [f"  {name_ranks(ranks)}: {_plural(text) if ranks[1:] else text}" for text, ranks in by_text.items()]
    more = [f"  and {count(len(lines) - _MOST_GROUPS, 'more group')} of ranks"] if len(lines) > _MOST_GROUPS else []
    return "\n".join([_heading(finding), *lines[:_MOST_GROUPS], *more])


def _plural(text: str) -> str:
    """Put what one rank does into the plural."""
    verb, _, rest = text.partition(" ")
    plural = {"is": "are", "has": "have", "waits": "wait", "computes": "compute"}.get(verb, verb)
    return f"{plural} {rest.replace('but its process has', 'but their processes have')}".rstrip()


def _heading(finding: Finding) -> str:
    still = f"{finding.still_s:.0f} s"
    if finding.kind is Kind.HANG:
        return f"hang: no rank has finished a collective or computed anything for {still}"
    if finding.kind is Kind.LEFT:
        left = name_ranks([rank for rank, role in finding.roles.items() if role in (Role.ENDED, Role.FAILED)])
        return f"hang: the other ranks have waited for {left} for {still}"
    busy = name_ranks([rank for rank, role in finding.roles.items() if role is Role.COMPUTES])
    return f"{busy} computed for {still} while other ranks wait in a collective"


def _describe_rank(role: Role, own: Observed | None) -> str:
    if own is None or own.status is None:
        return role.value
    done = f"after {count(own.num_completed, 'collective')}"
    if role is Role.FAILED:
        error = own.error
        what = f" with {error.type}{_at(error.line)}" if error is not None else ""
        return f"failed{what}, but its process has not ended"
    if role is Role.ENDED:
        return f"has ended, {done}"
    if role is Role.WAITS:
        return _describe_wait(own)
    verb = {Role.STOPPED: "is stopped", Role.COMPUTES: "computes", Role.IDLE: "waits outside torch.distributed"}[role]
    return f"{verb}{_at(own.status.line)}{_code(own)}, {done}"


def _describe_wait(own: Observed) -> str:
    entry = _oldest_pending(own)
    status = own.status
    assert status is not None
    if entry is not None:
        sizes = ", ".join(f"{dtype} {size}" for dtype, size in zip(entry.dtypes, entry.sizes, strict=False))
        what = f"{entry.op} number {entry.seq} of group {entry.group}" + (f" ({sizes})" if sizes else "")
        return f"waits in {what}{_at(entry.line or status.line)}"
    pending = next((group for group in status.groups if group.pending), None)
    if pending is not None:
        return f"waits in collective number {pending.completed + 1} of group {pending.group}{_at(status.line)}"
    if status.in_message:
        return f"waits for a message{_at(status.line)}{_code(own)}"
    function = status.inside.function if status.inside is not None else "torch.distributed"
    return f"waits in {function}{_at(status.line)}"


def _oldest_pending(own: Observed) -> CollectiveEntry | None:
    entries = own.collectives.entries if own.collectives is not None else []
    return next((entry for entry in entries if not entry.done), None)


def _at(line: CodeLine | None) -> str:
    """Return a line as ` at my.py:8 in main`, relative to the current directory if it is inside."""
    if line is None:
        return ""
    path = Path(line.file)
    inside = path.is_absolute() and path.is_relative_to(Path.cwd())
    shown = os.path.relpath(path) if inside else line.file
    return f" at {shown}:{line.line}" + (f" in {line.function}" if line.function not in ("", "<module>") else "")


def _code(own: Observed) -> str:
    """Return the text of the line in which the main thread is, if the rank wrote it."""
    main = next((thread for thread in own.stacks.threads if thread.is_main), None) if own.stacks else None
    line = own.status.line if own.status else None
    frames = main.frames if main is not None else []
    code = next((f.code for f in reversed(frames) if line and (f.file, f.line) == (line.file, line.line)), "")
    return f" ({code})" if code else ""
