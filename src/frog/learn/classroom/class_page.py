"""The class page: one self-contained file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from frog.core.errors import UsageError
from frog.core.files import write_atomic
from frog.core.runs.folder import check_output
from frog.core.units import time_text
from frog.learn.classroom import summary
from frog.learn.classroom.reports import Report, labels
from frog.learn.grader.exercise import find_exercises
from frog.learn.journal import SHORT


def write_page(reports: Sequence[Report], num_unread: int, path: Path, pseudonyms: bool) -> Path:
    """Write the page. Its totals exclude edited reports."""
    check_output(path)
    try:
        write_atomic(path, class_page(reports, num_unread, pseudonyms))
    except OSError as problem:
        raise UsageError(f"{path}: cannot write: {problem.strerror}", "name another file with --out") from None
    return path


def class_page(reports: Sequence[Report], num_unread: int, pseudonyms: bool) -> str:
    """Render the page as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("frog.learn", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    course, counted = find_exercises(), [report for report in reports if not report.edits]
    named = list(zip(labels(reports, pseudonyms), reports, strict=True))
    named.sort(key=lambda pair: pair[0].casefold())
    exercises = summary.columns(reports, course)
    html = environment.get_template("class.html.jinja").render(
        now=time_text()[:16],
        num_unread=num_unread,
        num_counted=len(counted),
        exercises=exercises,
        labs=summary.labs_of(exercises),
        learners=[_learner_row(name, report, exercises) for name, report in named],
        stops=summary.stops(counted, exercises),
        misconceptions=summary.misconceptions(counted, course),
        predictions=summary.predictions(counted, course),
        quizzes=summary.quizzes((name, report) for name, report in named if not report.edits),
        drills=summary.drills((name, report) for name, report in named if not report.edits),
        gained=summary.gained(counted),
        quiz_beliefs=summary.quiz_beliefs(counted),
    )
    return html + "\n"


def _learner_row(name: str, report: Report, exercises: Sequence[dict[str, Any]]) -> dict[str, Any]:
    works = [report.work(exercise["id"]) for exercise in exercises]
    journal = report.export.journal
    return {
        "name": name,
        "passed": sum(work.passed is not None for work in works),
        "cells": [summary.cell(work) for work in works],
        "hints": sum(work.hints for work in works),
        "solutions": sum(work.gave_up is not None for work in works),
        "last": journal[-1].at[:16] if journal else "",
        "exported": report.export.exported[:16],
        "proof": report.proof,
        "edits": report.edits,
        "entries": len(journal),
        "runs": len(report.export.records),
        "head": report.head[:SHORT],
    }
