"""Write a CSV file for a learning-management system: one line per learner, the same columns for every class."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from frog.core.errors import UsageError
from frog.core.files import write_atomic
from frog.core.runs.folder import check_output
from frog.learn.classroom.reports import Report, labels
from frog.learn.grader.exercise import Exercise, find_exercises
from frog.learn.journal import SHORT
from frog.learn.progress import QuizResult

_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # noqa: RUF001
"""A spreadsheet evaluates a cell that begins with one of these, including the full-width East Asian variants."""

Cell = str | int


def write_table(reports: Sequence[Report], path: Path, pseudonyms: bool) -> Path:
    """Write the file atomically."""
    check_output(path)
    try:
        write_atomic(path, table_text(reports, pseudonyms))
    except OSError as problem:
        raise UsageError(f"{path}: cannot write: {problem.strerror}", "name another file with --csv") from None
    return path


def table_text(reports: Sequence[Report], pseudonyms: bool) -> str:
    """Return the table in RFC 4180 format: a header, then one line per learner, each ending in CR LF."""
    course = find_exercises()
    rows = [dict(_row(name, report, course)) for name, report in zip(labels(reports, pseudonyms), reports, strict=True)]
    rows.sort(key=lambda row: str(row["name"]).casefold())
    text = io.StringIO()
    writer = csv.writer(text)  # default dialect, "excel": commas, CR LF, quotes where a cell needs them
    writer.writerow(rows[0])
    writer.writerows([_safe(cell) for cell in row.values()] for row in rows)
    return text.getvalue()


def _row(name: str, report: Report, course: Sequence[Exercise]) -> Iterator[tuple[str, Cell]]:
    """Yield one learner's columns, in order."""
    passed = {item.id for item in course if report.work(item.id).passed}
    labs = {lab: [item.id for item in course if _lab(item) == lab] for lab in dict.fromkeys(map(_lab, course))}
    works = [record.work for record in report.export.exercises]
    yield "name", name
    yield "labs_passed", sum(passed.issuperset(ids) for ids in labs.values())
    yield "exercises_passed", len(passed)
    yield "exercises", len(course)
    for lab, ids in labs.items():
        yield f"{lab}_exercises_passed", len(passed.intersection(ids))
    for lab in labs:
        yield from _quiz(lab, [item for item in report.export.quizzes if f"lab{item.lab}" == lab])
    yield from _quiz("mixed", [item for item in report.export.quizzes if item.lab is None])
    yield "drills", len(report.export.drills)
    yield "best_drill_right_of_3", max((drill.right for drill in report.export.drills), default="")
    yield "hints", sum(work.hints for work in works)
    yield "solutions", sum(work.gave_up is not None for work in works)
    yield "journal", report.proof
    yield "head", report.head[:SHORT]
    yield "exported_utc", report.export.exported[:16]


def _quiz(about: str, rounds: Sequence[QuizResult]) -> Iterator[tuple[str, Cell]]:
    """Yield the share of right answers in the first and the last round; empty without a round."""
    for which, place in (("first", 0), ("last", -1)):
        share = round(100 * rounds[place].right / max(1, rounds[place].asked)) if rounds else ""
        yield f"{about}_quiz_{which}_percent", share


def _lab(exercise: Exercise) -> str:
    return exercise.id.partition("/")[0]


def _safe(cell: Cell) -> Cell:
    """Return a one-line text that a spreadsheet shows and does not evaluate."""
    if isinstance(cell, int):
        return cell
    text = " ".join("".join(mark if mark.isprintable() else " " for mark in cell).split())
    return f"'{text}" if text.startswith(_FORMULA) else text
