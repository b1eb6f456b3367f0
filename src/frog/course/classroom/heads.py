"""Heads of journals that an instructor wrote down: what was noted before such a head cannot be written anew."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from frog.core.errors import UsageError
from frog.core.schema import read_bounded
from frog.course.classroom.reports import Report

_LINE = re.compile(r"([0-9a-f]{8,64})\s+(.+)")
_HINT = "a line a learner, as `frog learn export` prints it: 1f0c4a52b7de Ada"


def read_heads(path: Path) -> list[tuple[int, str, str]]:
    """Line, head and name.

    Raises:  UsageError that names the line which is none.
    """
    try:
        lines = read_bounded(path, UsageError, _HINT).decode(errors="replace").splitlines()
    except FileNotFoundError:
        raise UsageError(f"{path}: is missing", _HINT) from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        if (match := _LINE.fullmatch(line.strip())) is None:
            raise UsageError(f"{path}:{number}: found {line.strip()[:80]!r}, expected a head and a name", _HINT)
        found.append((number, match[1], match[2]))
    return found


def hold_against_heads(
    reports: Sequence[Report], heads: Sequence[tuple[int, str, str]], origin: str
) -> tuple[list[Report], list[str]]:
    """Reports with those marked that lack a head of theirs, and lines about nobody."""
    names = {report.export.learner for report in reports}
    unknown = [
        f"{origin}:{number}: no report is {name}'s\n  try: the name as the learner's export has it"
        for number, _, name in heads
        if name not in names
    ]
    return [_held(report, heads) for report in reports], unknown


def _held(report: Report, heads: Sequence[tuple[int, str, str]]) -> Report:
    missing = [
        f"head {head[:12]}, written down before, is not in this journal: it was written anew"
        for _, head, name in heads
        if name == report.export.learner and not any(known.startswith(head) for known in report.hashes)
    ]
    return replace(report, edits=(*report.edits, *missing))
