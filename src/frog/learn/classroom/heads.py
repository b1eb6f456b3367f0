"""Compare journals with heads that an instructor wrote down: entries before such a head cannot be rewritten."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from frog.core.errors import UsageError
from frog.core.schema import read_bounded
from frog.learn.classroom.reports import Report

_LINE = re.compile(r"([0-9a-f]{8,64})\s+(.+)")
_HINT = "one line per learner, as `frog learn export` prints it: 1f0c4a52b7de Ada"


def read_heads(path: Path) -> list[tuple[int, str, str]]:
    """Read line numbers, heads and names.

    Raises:  UsageError that names the first invalid line.
    """
    try:
        lines = read_bounded(path, UsageError, _HINT).decode(errors="replace").splitlines()
    except FileNotFoundError:
        raise UsageError(f"{path}: is missing", _HINT) from None
    heads = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        if (match := _LINE.fullmatch(line.strip())) is None:
            raise UsageError(f"{path}:{number}: found {line.strip()[:80]!r}, expected a head and a name", _HINT)
        heads.append((number, match[1], match[2]))
    return heads


def compare_with_heads(
    reports: Sequence[Report], heads: Sequence[tuple[int, str, str]], origin: str
) -> tuple[list[Report], list[str]]:
    """Return the reports, with an edit noted where a head is missing, and a message per head without a report."""
    names = {name for report in reports for name in report.names}
    unknown = [
        f"{origin}:{number}: no report belongs to {name}\n  try: use the name in the learner's export"
        for number, _, name in heads
        if name not in names
    ]
    missing = [(head, name) for _, head, name in heads if not any(_has(report, head, name) for report in reports)]
    return [_with_missing_heads(report, missing) for report in reports], unknown


def _has(report: Report, head: str, name: str) -> bool:
    return name in report.names and any(known.startswith(head) for known in report.hashes)


def _with_missing_heads(report: Report, missing: Sequence[tuple[str, str]]) -> Report:
    """Add an edit to the report for each head under its learner's name that no journal of that name contains."""
    edits = [
        f"head {head[:12]}, written down earlier, is not in this journal: the journal was rewritten"
        for head, name in missing
        if name in report.names
    ]
    return replace(report, edits=(*report.edits, *edits))
