"""progress.json: a learner's progress, in one readable file in the course folder.

Every update is a function from the old progress to the new one. It runs under a lock on the file's current content, so
two concurrent `frog learn` processes lose nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
from msgspec.structs import replace

from frog import __version__
from frog.core.errors import UsageError
from frog.core.files import open_lock
from frog.core.schema import Digest, FileName, Name, Natural, Typed, read_typed, write_typed
from frog.core.units import time_text
from frog.learn.grader.verdict import Verdict
from frog.learn.journal import Detail, Journal, What, entry_after, head_of

NAME = "progress.json"

_LOCK = ".progress.lock"
_MOST_HINTS = 3
_HINT = f"restore {NAME} from a copy, or move it away and start again with `frog learn init .`"


class Passed(Typed, kw_only=True, frozen=True):
    """The first check in which an exercise passed."""

    at: Name
    """Time in UTC, like all times in this file."""
    by: Name
    """The version of Frog that judged the solution."""
    seed: int
    """`frog learn check EXERCISE --seed` repeats it."""


class Rejected(Typed, kw_only=True, frozen=True):
    """The number of checks that found one misconception."""

    times: Natural
    last: Name


class Work(Typed, kw_only=True, frozen=True):
    """A learner's work on one exercise."""

    shipped: dict[FileName, Digest] = msgspec.field(default_factory=dict)
    """SHA-256 of each course file as copied into the course folder."""
    checks: Natural = 0
    passed: Passed | None = None
    rejected: dict[Name, Rejected] = msgspec.field(default_factory=dict)
    """Rejections by misconception id."""
    hints: Annotated[int, msgspec.Meta(ge=0, le=_MOST_HINTS)] = 0
    """Number of hints taken, at most three."""
    gave_up: Name | None = None
    """Time at which the learner took the solution before passing."""


class Guess(Typed, kw_only=True, frozen=True):
    """A prediction and the number measured after it."""

    exercise: Name
    id: Name
    value: float
    """The value in the unit of the exercise's manifest."""
    unit: Name
    text: Name
    """The learner's input as typed."""
    at: Name
    measured: float | None = None
    measured_at: Name | None = None


class QuizResult(Typed, kw_only=True, frozen=True):
    """One round of `frog quiz`."""

    lab: Natural | None
    """The lab's number; None for a quiz of all labs."""
    at: Name
    seed: int
    asked: Natural
    right: Natural
    beliefs: tuple[str, ...] = ()
    """Misconceptions behind the wrong answers."""


class DrillResult(Typed, kw_only=True, frozen=True):
    """One `frog drill`."""

    at: Name
    seed: int
    fault: Name
    """The injected fault, in the syntax of `frog chaos`."""
    right: Annotated[int, msgspec.Meta(ge=0, le=3)]
    """Number of right answers among rank, step and phase."""


class Progress(Typed, kw_only=True, frozen=True):
    """Everything that Frog knows about a learner."""

    KIND: ClassVar[str] = "a learner's progress"
    FORMAT: ClassVar[int | None] = 1

    learner: Name
    """The original name, which the journal's first hash covers."""
    named: Name | None = None
    """The name that the learner chose later, if any."""
    began: Name
    current: Name | None = None
    """The exercise that the learner worked on last."""
    exercises: dict[Name, Work] = msgspec.field(default_factory=dict)
    pages: dict[Name, Digest] = msgspec.field(default_factory=dict)
    """SHA-256 of each documentation page as copied into the course folder."""
    programs: dict[Name, Digest] = msgspec.field(default_factory=dict)
    """SHA-256 of each file of config/ and scripts/, and of train.py, as copied into the course folder."""
    predictions: tuple[Guess, ...] = ()
    """Predictions in chronological order."""
    quizzes: tuple[QuizResult, ...] = ()
    drills: tuple[DrillResult, ...] = ()
    records: dict[Name, Digest] = msgspec.field(default_factory=dict)
    """SHA-256 of each run's record.json at the last export, by the run folder's path relative to the course folder."""
    journal: Journal = ()
    """The events that the other fields summarize, in chronological order."""

    @property
    def name(self) -> str:
        """The learner's current name."""
        return self.named or self.learner

    @property
    def head(self) -> str:
        """The journal's latest hash, which covers all earlier entries."""
        return head_of(self.journal, self.learner, self.began)

    def work(self, exercise: str) -> Work:
        return self.exercises.get(exercise, Work())

    def with_work(self, exercise: str, work: Work) -> Progress:
        return replace(self, exercises={**self.exercises, exercise: work})

    def last_guess(self, exercise: str, prediction: str) -> Guess | None:
        matching = (g for g in reversed(self.predictions) if (g.exercise, g.id) == (exercise, prediction))
        return next(matching, None)


def find_folder(start: Path) -> Path | None:
    """Return the course folder that contains `start`, or None."""
    return next((folder for folder in (start, *start.parents) if is_folder(folder)), None)


def is_folder(folder: Path) -> bool:
    """Return True if this is a course folder."""
    return (folder / NAME).is_file() and (folder / "exercises").is_dir()


def read_progress(folder: Path) -> Progress:
    """Read progress.json.

    Raises:  UsageError that names the invalid place in the file.
    """
    try:
        return read_typed(folder / NAME, Progress, _HINT, UsageError)
    except FileNotFoundError:
        raise UsageError(f"{folder / NAME}: is missing", _HINT) from None


def update_progress(folder: Path, change: Callable[[Progress], Progress]) -> Progress:
    """Apply `change` to the content of progress.json under a lock. Return the new progress."""
    with _locked(folder):
        before = read_progress(folder)
        after = change(before)
        if after != before:
            write_typed(folder / NAME, after)
        return after


def begin_progress(folder: Path, learner: str) -> Progress:
    """Write a folder's first progress.json, unless another process has just written it."""
    with _locked(folder):
        if not (folder / NAME).exists():
            write_typed(folder / NAME, Progress(learner=learner, began=time_text()))
        return read_progress(folder)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        descriptor = open_lock(folder / _LOCK, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
    except OSError as problem:
        raise UsageError(
            f"{folder / NAME}: cannot write: {problem.strerror}",
            "free some space there, or take ownership of the folder's files (chown)",
        ) from None


def with_verdict(progress: Progress, verdict: Verdict) -> Progress:
    """Record a check. A passing check also stores its measurements in the learner's open predictions."""
    if verdict.status == "broken":
        return progress
    now, detail = time_text(), Detail()
    if verdict.status == "passed":
        detail = {"by": f"frog {__version__}", "seed": verdict.seed}
    if verdict.status == "rejected":
        detail = {"misconception": verdict.misconception or "unknown"}
    progress = _with(progress, now, verdict.status, verdict.exercise, detail)
    open_guesses = {g.id for g in progress.predictions if g.exercise == verdict.exercise and g.measured is None}
    for name, value in verdict.predicted.items() if verdict.status == "passed" else ():
        if name in open_guesses and math.isfinite(value):
            progress = _with(progress, now, "measured", verdict.exercise, {"id": name, "value": float(value)})
    return progress


def with_hint(progress: Progress, exercise: str) -> Progress:
    """Record one more hint, at most three."""
    if progress.work(exercise).hints >= _MOST_HINTS:
        return replace(progress, current=exercise)
    return _with(progress, time_text(), "hint", exercise, {})


def with_solution(progress: Progress, exercise: str) -> Progress:
    """Record that the learner took the solution, if the exercise has not passed yet."""
    work = progress.work(exercise)
    if work.passed or work.gave_up:
        return progress
    return _with(progress, time_text(), "solution", exercise, {})


def with_guess(progress: Progress, guess: Guess) -> Progress:
    detail: Detail = {"id": guess.id, "value": float(guess.value), "unit": guess.unit, "text": guess.text}
    return _with(progress, guess.at, "guess", guess.exercise, detail)


def with_quiz(progress: Progress, result: QuizResult) -> Progress:
    """Record a round of `frog quiz`."""
    detail = {name: getattr(result, name) for name in ("lab", "seed", "asked", "right", "beliefs")}
    return _with(progress, result.at, "quiz", None, detail)


def with_drill(progress: Progress, result: DrillResult) -> Progress:
    """Record a `frog drill`."""
    detail: Detail = {"seed": result.seed, "fault": result.fault, "right": result.right}
    return _with(progress, result.at, "drill", None, detail)


def with_name(progress: Progress, name: str) -> Progress:
    """Record the learner's new name."""
    return progress if name == progress.name else _with(progress, time_text(), "name", None, {"name": name})


def with_records(progress: Progress, hashes: dict[str, str]) -> Progress:
    """Record the hashes of runs that are new or changed since the last export."""
    for run, digest in hashes.items():
        if progress.records.get(run) != digest:
            progress = _with(progress, time_text(), "record", None, {"run": run, "sha256": digest})
    return progress


def replay(progress: Progress) -> Progress:
    """Rebuild the progress from its journal alone: an unedited progress equals the result.

    Raises:  LookupError, TypeError or msgspec.ValidationError for an entry that Frog does not write.
    """
    replayed = Progress(learner=progress.learner, began=progress.began)
    for entry in progress.journal:
        replayed = _done(replayed, entry.at, entry.what, entry.exercise or "", entry.detail)
    return replayed


def _with(progress: Progress, at: str, what: What, exercise: str | None, detail: Detail) -> Progress:
    """Record an action in the journal and in the fields that summarize it."""
    if not progress.journal and _has_begun(progress):
        progress = _noted(progress, at, "before", None, {})
    return _done(_noted(progress, at, what, exercise, detail), at, what, exercise or "", detail)


def _has_begun(progress: Progress) -> bool:
    works = any(work != Work(shipped=work.shipped) for work in progress.exercises.values())
    return works or bool(progress.predictions or progress.quizzes)


def _noted(progress: Progress, at: str, what: What, exercise: str | None, detail: Detail) -> Progress:
    return replace(progress, journal=(*progress.journal, entry_after(progress.head, at, what, exercise, detail)))


def _done(progress: Progress, at: str, what: What, exercise: str, detail: Detail) -> Progress:
    """Apply one journal entry to the fields that summarize the journal."""
    if what == "quiz":
        result = msgspec.convert({**detail, "at": at}, QuizResult)
        return replace(progress, quizzes=(*progress.quizzes, result))
    if what == "drill":
        drill = msgspec.convert({**detail, "at": at}, DrillResult)
        return replace(progress, drills=(*progress.drills, drill))
    if what == "name":
        return replace(progress, named=msgspec.convert(detail["name"], str))
    if what == "record":
        record = msgspec.convert({detail["run"]: detail["sha256"]}, dict[Name, Digest])
        return replace(progress, records={**progress.records, **record})
    if what == "guess":
        guess = msgspec.convert({**detail, "exercise": exercise, "at": at}, Guess)
        return replace(progress, predictions=(*progress.predictions, guess))
    if what == "measured":
        number = msgspec.convert(detail["value"], float)
        name, guesses = detail["id"], list(progress.predictions)
        for place, guess in enumerate(progress.predictions):
            if guess.id == name and guess.exercise == exercise and guess.measured is None:
                guesses[place] = replace(guess, measured=number, measured_at=at)
        return replace(progress, predictions=tuple(guesses))
    if what == "before":
        return progress
    after = progress.with_work(exercise, _worked(progress.work(exercise), at, what, detail))
    return after if what == "solution" else replace(after, current=exercise)


def _worked(work: Work, at: str, what: What, detail: Detail) -> Work:
    if what == "hint":
        return replace(work, hints=work.hints + 1)
    if what == "solution":
        return replace(work, gave_up=at)
    work = replace(work, checks=work.checks + 1)
    if what == "passed" and work.passed is None:
        return replace(work, passed=msgspec.convert({**detail, "at": at}, Passed))
    if what == "rejected":
        name = msgspec.convert(detail["misconception"], str)
        times = work.rejected[name].times if name in work.rejected else 0
        return replace(work, rejected={**work.rejected, name: Rejected(times=times + 1, last=at)})
    return work
