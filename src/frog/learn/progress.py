"""progress.json: what a learner has done, in one readable file in the learner's folder.

Whatever changes it is a function from the old to the new, which runs under a lock on the file as it is by then: two
`frog learn` at once lose nothing.
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
    """The first check that an exercise passed."""

    at: Name
    """UTC, as all times here."""
    by: Name
    """Who judged: a version of Frog."""
    seed: int
    """`frog learn check EXERCISE --seed` repeats it."""


class Rejected(Typed, kw_only=True, frozen=True):
    """How often checks found one misconception."""

    times: Natural
    last: Name


class Work(Typed, kw_only=True, frozen=True):
    """What a learner has done on one exercise."""

    shipped: dict[FileName, Digest] = msgspec.field(default_factory=dict)
    """The course's files as the learner's folder got them, by SHA-256."""
    checks: Natural = 0
    passed: Passed | None = None
    rejected: dict[Name, Rejected] = msgspec.field(default_factory=dict)
    """By the id of the misconception."""
    hints: Annotated[int, msgspec.Meta(ge=0, le=_MOST_HINTS)] = 0
    """How many of the three were taken."""
    gave_up: Name | None = None
    """When the solution was taken before a pass."""


class Guess(Typed, kw_only=True, frozen=True):
    """A prediction, and what was measured after it."""

    exercise: Name
    id: Name
    value: float
    """In the unit of the exercise's manifest."""
    unit: Name
    text: Name
    """As the learner typed it."""
    at: Name
    measured: float | None = None
    measured_at: Name | None = None


class QuizResult(Typed, kw_only=True, frozen=True):
    """One round of `frog quiz`."""

    lab: Natural | None
    """None: mixed from all labs."""
    at: Name
    seed: int
    asked: Natural
    right: Natural
    beliefs: tuple[str, ...] = ()
    """Of the wrong answers."""


class DrillResult(Typed, kw_only=True, frozen=True):
    """One `frog drill`."""

    at: Name
    seed: int
    fault: Name
    """What went wrong, in the words of `frog chaos`."""
    right: Annotated[int, msgspec.Meta(ge=0, le=3)]
    """Of rank, step and phase, how many were found."""


class Progress(Typed, kw_only=True, frozen=True):
    """Everything that is known of a learner."""

    KIND: ClassVar[str] = "a learner's progress"
    FORMAT: ClassVar[int | None] = 1

    learner: Name
    """The name at the beginning: the journal's first hash is over it."""
    named: Name | None = None
    """The name that the learner chose later."""
    began: Name
    current: Name | None = None
    """The exercise that was worked on last."""
    exercises: dict[Name, Work] = msgspec.field(default_factory=dict)
    pages: dict[Name, Digest] = msgspec.field(default_factory=dict)
    """The labs' pages as shipped, by SHA-256."""
    predictions: tuple[Guess, ...] = ()
    """In the order of time."""
    quizzes: tuple[QuizResult, ...] = ()
    drills: tuple[DrillResult, ...] = ()
    records: dict[Name, Digest] = msgspec.field(default_factory=dict)
    """Of runs, by their folders as seen from here: SHA-256 of record.json when it was exported."""
    journal: Journal = ()
    """All of this again, as it came: what was passed, rejected, taken, predicted, asked, found and run."""

    @property
    def name(self) -> str:
        """What the learner is called now."""
        return self.named or self.learner

    @property
    def head(self) -> str:
        """The hash that stands for all that was done until now."""
        return head_of(self.journal, self.learner, self.began)

    def work(self, exercise: str) -> Work:
        return self.exercises.get(exercise, Work())

    def with_work(self, exercise: str, work: Work) -> Progress:
        return replace(self, exercises={**self.exercises, exercise: work})

    def last_guess(self, exercise: str, prediction: str) -> Guess | None:
        matching = (g for g in reversed(self.predictions) if (g.exercise, g.id) == (exercise, prediction))
        return next(matching, None)


def find_folder(start: Path) -> Path | None:
    """The learner's folder that holds `start`, if one does."""
    return next((folder for folder in (start, *start.parents) if is_folder(folder)), None)


def is_folder(folder: Path) -> bool:
    """Whether this is a learner's folder."""
    return (folder / NAME).is_file() and (folder / "exercises").is_dir()


def read_progress(folder: Path) -> Progress:
    """Raises:  UsageError that names the place in the file that cannot be."""
    try:
        return read_typed(folder / NAME, Progress, _HINT, UsageError)
    except FileNotFoundError:
        raise UsageError(f"{folder / NAME}: is missing", _HINT) from None


def update_progress(folder: Path, change: Callable[[Progress], Progress]) -> Progress:
    """Replace what progress.json holds by what `change` makes of it; nobody else writes meanwhile."""
    with _locked(folder):
        before = read_progress(folder)
        after = change(before)
        if after != before:
            write_typed(folder / NAME, after)
        return after


def begin_progress(folder: Path, learner: str) -> Progress:
    """Write the first progress.json of a folder, unless another process just did."""
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
            "free some space there, or become the owner of the folder's files (chown)",
        ) from None


def with_verdict(progress: Progress, verdict: Verdict) -> Progress:
    """A check was made. What a passed one measured closes the predictions that were made before it."""
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
    """One more hint was taken."""
    if progress.work(exercise).hints >= _MOST_HINTS:
        return replace(progress, current=exercise)
    return _with(progress, time_text(), "hint", exercise, {})


def with_solution(progress: Progress, exercise: str) -> Progress:
    """The solution was taken; before a pass that is noted."""
    work = progress.work(exercise)
    if work.passed or work.gave_up:
        return progress
    return _with(progress, time_text(), "solution", exercise, {})


def with_guess(progress: Progress, guess: Guess) -> Progress:
    detail: Detail = {"id": guess.id, "value": float(guess.value), "unit": guess.unit, "text": guess.text}
    return _with(progress, guess.at, "guess", guess.exercise, detail)


def with_quiz(progress: Progress, result: QuizResult) -> Progress:
    """For `frog quiz`: a round was taken."""
    detail = {name: getattr(result, name) for name in ("lab", "seed", "asked", "right", "beliefs")}
    return _with(progress, result.at, "quiz", None, detail)


def with_drill(progress: Progress, result: DrillResult) -> Progress:
    """For `frog drill`: a fault was looked for."""
    detail: Detail = {"seed": result.seed, "fault": result.fault, "right": result.right}
    return _with(progress, result.at, "drill", None, detail)


def with_name(progress: Progress, name: str) -> Progress:
    """The learner has another name now."""
    return progress if name == progress.name else _with(progress, time_text(), "name", None, {"name": name})


def with_records(progress: Progress, hashes: dict[str, str]) -> Progress:
    """Runs were made, or went on, since the last export."""
    for run, digest in hashes.items():
        if progress.records.get(run) != digest:
            progress = _with(progress, time_text(), "record", None, {"run": run, "sha256": digest})
    return progress


def replay(progress: Progress) -> Progress:
    """What the journal alone says was done: equal to the rest of a progress that nobody edited.

    Raises:  LookupError, TypeError or msgspec.ValidationError for an entry that Frog does not write.
    """
    found = Progress(learner=progress.learner, began=progress.began)
    for entry in progress.journal:
        found = _done(found, entry.at, entry.what, entry.exercise or "", entry.detail)
    return found


def _with(progress: Progress, at: str, what: What, exercise: str | None, detail: Detail) -> Progress:
    """Note what was done, in the journal and in the fields that sum it up."""
    if not progress.journal and _has_begun(progress):
        progress = _noted(progress, at, "before", None, {})
    return _done(_noted(progress, at, what, exercise, detail), at, what, exercise or "", detail)


def _has_begun(progress: Progress) -> bool:
    works = any(work != Work(shipped=work.shipped) for work in progress.exercises.values())
    return works or bool(progress.predictions or progress.quizzes)


def _noted(progress: Progress, at: str, what: What, exercise: str | None, detail: Detail) -> Progress:
    return replace(progress, journal=(*progress.journal, entry_after(progress.head, at, what, exercise, detail)))


def _done(progress: Progress, at: str, what: What, exercise: str, detail: Detail) -> Progress:
    """The fields that sum up the journal, after one entry more."""
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
