"""Export a learner's progress to one file for an instructor.

The file contains passed exercises (when, and by which version of Frog), hints and solutions taken, predictions,
quizzes, drills, hashes of run records, and the learner's files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import ClassVar

import msgspec

from frog import __version__
from frog.core.errors import UsageError
from frog.core.files import sha256_file
from frog.core.runs.folder import check_output
from frog.core.schema import Digest, Name, Positive, Typed, write_typed
from frog.core.units import time_text
from frog.learn.folder import MOST_BYTES, LearnerFolder
from frog.learn.grader.exercise import Exercise
from frog.learn.journal import Journal
from frog.learn.progress import DrillResult, Guess, QuizResult, Work
from frog.learn.standing import Standing


class ExerciseRecord(Typed, kw_only=True, frozen=True):
    """One exercise that the learner has started."""

    id: Name
    number: Name
    title: str
    minutes: Positive
    work: Work
    files: dict[str, str]
    """The learner's current files, so that `frog learn check` can judge them again. Omits files that are too large."""


class Export(Typed, kw_only=True, frozen=True):
    """The content of the file that `frog learn export` writes."""

    KIND: ClassVar[str] = "a learner's exported progress"
    FORMAT: ClassVar[int | None] = 1

    learner: Name
    named: Name | None = None
    """`learner` and `named` are those of `Progress`."""
    began: Name
    exported: Name
    frog: Name
    passed: int
    of: int
    exercises: tuple[ExerciseRecord, ...]
    predictions: tuple[Guess, ...]
    quizzes: tuple[QuizResult, ...]
    drills: tuple[DrillResult, ...] = ()
    records: dict[Name, Digest] = msgspec.field(default_factory=dict)
    """Hashes from `Progress`: an instructor can verify a run folder that a learner shows later."""
    journal: Journal = ()
    """The hash chain of events that the fields above summarize; `frog class` compares the two."""


def write_export(folder: LearnerFolder, standing: Standing, path: Path | None) -> Path:
    """Write the file; by default, in the current directory under the learner's name."""
    progress = standing.progress
    path = path or Path(f"frog-learn-{re.sub(r'[^a-z0-9]+', '-', progress.name.lower()).strip('-') or 'me'}.json")
    works = [(exercise, standing.work(exercise)) for exercise in standing.exercises]
    begun = [exercise for exercise, work in works if work.checks or work.hints or work.gave_up]
    export = Export(
        learner=progress.learner,
        named=progress.named,
        began=progress.began,
        exported=time_text(),
        frog=__version__,
        passed=standing.passed(),
        of=len(standing.exercises),
        exercises=tuple(_record(exercise, folder, standing) for exercise in begun),
        predictions=progress.predictions,
        quizzes=progress.quizzes,
        drills=progress.drills,
        records=progress.records,
        journal=progress.journal,
    )
    check_output(path)
    try:
        write_typed(path, export)
    except OSError as problem:
        raise UsageError(f"{path}: cannot write: {problem.strerror}", "name another file") from None
    return path


def record_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each run's record, in the course folder and in its parent, where the project may be."""
    places = (folder / "runs", folder.parent / "runs")
    records = [path for runs in places for path in sorted(runs.glob("*/record.json")) if path.is_file()]
    named = [path for path in records if path.parent.name.isprintable() and path.stat().st_size <= MOST_BYTES]
    return {os.path.relpath(path.parent, folder): sha256_file(path) for path in named}


def _record(exercise: Exercise, folder: LearnerFolder, standing: Standing) -> ExerciseRecord:
    manifest, place = exercise.manifest, folder.place(exercise)
    files = [place / name for name in exercise.file_names]
    there = [path for path in files if path.is_file() and path.stat().st_size <= MOST_BYTES]
    return ExerciseRecord(
        id=exercise.id,
        number=exercise.number,
        title=manifest.title,
        minutes=manifest.minutes,
        work=standing.work(exercise),
        files={path.name: path.read_text(errors="replace") for path in there},
    )
