"""A learner's position in the course, and the next step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from frog.core.errors import UsageError
from frog.learn.folder import LearnerFolder
from frog.learn.grader.exercise import Exercise, find_pages
from frog.learn.progress import Progress, Work
from frog.learn.text import Style
from frog.learn.tour_record import is_finished

HERE = ">"
"""Marks the learner's current exercise in the list."""


@dataclass(frozen=True)
class Standing:
    """A learner's progress, matched with the course's exercises."""

    exercises: Sequence[Exercise]
    progress: Progress

    def work(self, exercise: Exercise) -> Work:
        return self.progress.work(exercise.id)

    def passed(self, exercises: Sequence[Exercise] | None = None) -> int:
        return sum(self.work(exercise).passed is not None for exercise in exercises or self.exercises)

    @property
    def current(self) -> Exercise:
        """The exercise that the learner worked on last, passed or not."""
        return next((e for e in self.exercises if e.id == self.progress.current), self.exercises[0])

    @property
    def next(self) -> Exercise | None:
        """The current exercise if it has not passed, else the next one that has not; None if all have passed."""
        offered = self._offered
        start = offered.index(self.current)
        in_turn = [*offered[start:], *offered[:start]]
        return next((exercise for exercise in in_turn if self.work(exercise).passed is None), None)

    def after(self, exercise: Exercise) -> Exercise:
        """Return the next exercise that has not passed, else the one that follows."""
        offered = self._offered
        start = offered.index(exercise) + 1
        in_turn = [*offered[start:], *offered[:start]]
        return next((other for other in in_turn if self.work(other).passed is None), in_turn[0])

    @property
    def _offered(self) -> list[Exercise]:
        """The exercises in the order in which they are offered: some come after those of a later lab."""
        return sorted(
            self.exercises, key=lambda e: (e.lab, False) if e.manifest.after is None else (e.manifest.after, True)
        )

    def due_quizzes(self) -> list[int]:
        """Return the labs whose exercises have passed, but those offered later, and whose quiz was not taken."""
        taken = {result.lab for result in self.progress.quizzes}
        own = {lab: [e for e in all_of_it if e.manifest.after is None] for lab, all_of_it in self.labs()}
        return [lab for lab, all_of_it in own.items() if self.passed(all_of_it) == len(all_of_it) and lab not in taken]

    def labs(self) -> Iterator[tuple[int, list[Exercise]]]:
        for lab, exercises in groupby(self.exercises, key=lambda exercise: exercise.lab):
            yield lab, list(exercises)


def standing_in(folder: LearnerFolder) -> Standing:
    """Return the learner's standing in a course folder.

    Raises:  UsageError if the course has no exercises.
    """
    exercises = folder.exercises()
    if not exercises:
        raise UsageError(f"{folder.labs}: contains no exercises", "install Frog again")
    return Standing(exercises, folder.progress())


def exercise_at(place: Path, folder: LearnerFolder, exercises: Sequence[Exercise]) -> Exercise | None:
    """Return the exercise whose folder, in the course folder, contains `place`."""
    return next((e for e in exercises if place.resolve().is_relative_to(folder.place(e).resolve())), None)


def summary_lines(standing: Standing, folder: LearnerFolder, style: Style) -> list[str]:
    """Summarize the learner's progress and name the next command, in five lines."""
    here, (num_passed, num_all) = standing.next, (standing.passed(), len(standing.exercises))
    first = style.spread(f"{style.bar(num_passed, num_all)} exercises passed", str(folder.path))
    if here is None:
        return [first, "You passed every exercise.", *_predicted(standing), "next: frog learn progress"]
    of_lab = next(exercises for lab, exercises in standing.labs() if lab == here.lab)
    return [
        first,
        f"lab {here.lab}: {standing.passed(of_lab)} of {len(of_lab)} passed{_page(here)}{_quiz(standing, here.lab)}",
        style.paint(f"exercise {here.number}: {title_of(here)} ({here.manifest.minutes} min)", "strong"),
        f"  {folder.shown(folder.place(here))}: {_done_on(standing.work(here))}",
        _next_command(folder, num_passed),
    ]


def _next_command(folder: LearnerFolder, num_passed: int) -> str:
    """Return the next command: at the beginning, the first ten minutes."""
    if num_passed == 0 and not is_finished(folder.path):
        return "next: frog learn start (ten minutes with two ranks); then: frog learn watch"
    return "next: frog learn watch"


def _page(exercise: Exercise) -> str:
    page = lab_page(exercise)
    return f"; page: {page}" if page else ""


def lab_page(exercise: Exercise) -> str | None:
    """Return the page of an exercise's lab, relative to the course folder; None if the lab has none."""
    name = f"labs/lab{exercise.lab}.md"
    return f"docs/{name}" if name in find_pages(exercise.folder.parents[1]) else None


def _quiz(standing: Standing, lab: int) -> str:
    """Return the lab's quiz score, or a reminder to take the quiz; the quiz of a passed lab comes first."""
    if due := standing.due_quizzes():
        return f"; you passed lab {due[-1]}, now: frog quiz {due[-1]}"
    results = [result for result in standing.progress.quizzes if result.lab == lab]
    return f"; quiz {results[-1].right} of {results[-1].asked}" if results else f"; quiz: frog quiz {lab}"


def quiz_lines(standing: Standing, lab: int) -> list[str]:
    """Return a reminder to take the lab's quiz, once its exercises have passed."""
    return [f"  You passed lab {lab}: frog quiz {lab}"] if lab in standing.due_quizzes() else []


def _done_on(work: Work) -> str:
    if not work.checks:
        return "not started"
    hints = f", {_count(work.hints, 'hint')}" if work.hints else ""
    return f"{_count(work.checks, 'check')}{hints}{', solution taken' if work.gave_up else ''}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _predicted(standing: Standing) -> list[str]:
    measured = [guess for guess in standing.progress.predictions if guess.measured is not None]
    return [f"{_count(len(measured), 'prediction')} measured."] if measured else []


def list_lines(standing: Standing, here: Exercise | None, style: Style) -> list[str]:
    """List all exercises by lab, with their states and the learner's position."""
    lines = []
    for lab, exercises in standing.labs():
        lines.append(style.paint(f"lab {lab}  {style.bar(standing.passed(exercises), len(exercises), 10)}", "strong"))
        lines += [_row(standing.work(exercise), exercise, exercise == here, style) for exercise in exercises]
    return lines


def fast_lines(standing: Standing, fast: Sequence[Exercise], style: Style) -> list[str]:
    """List the exercises of the fast path with their minutes and states, and name the next command."""
    if not fast:
        return ["This course has no fast path."]
    hours = sum(exercise.manifest.minutes for exercise in fast) / 60
    following = next((exercise for exercise in fast if standing.work(exercise).passed is None), None)
    bar = style.bar(standing.passed(fast), len(fast), 10)
    return [
        style.paint(f"the fast path, if you know training loops: about {hours:.0f} hours  {bar}", "strong"),
        *(_row(standing.work(exercise), exercise, exercise == following, style, minutes=True) for exercise in fast),
        f"next: frog learn watch {following.number}" if following else "You passed the fast path: frog learn list",
    ]


def row_of(standing: Standing, exercise: Exercise) -> int:
    """Return the index of an exercise's line in `list_lines`."""
    return standing.exercises.index(exercise) + sum(lab <= exercise.lab for lab, _ in standing.labs())


def _row(work: Work, exercise: Exercise, is_here: bool, style: Style, minutes: bool = False) -> str:
    mark, state = " ", f"{exercise.manifest.minutes} min" if minutes else ""
    if work.passed:
        mark, state = "✓", f"passed {work.passed.at[:10]}"
    elif work.checks:
        state = _done_on(work)
    if is_here:
        mark = HERE
    left = f"{mark} {exercise.number:<5} {title_of(exercise)}"
    row = style.spread(style.cut(left, style.columns - len(state) - 2), state)
    if work.passed:
        return style.paint(row, "good")
    return style.paint(row, "strong") if is_here else row


def title_of(exercise: Exercise) -> str:
    """Return the exercise's title; a challenge gets the prefix `challenge: ` once."""
    title = exercise.manifest.title.removeprefix("challenge: ")
    return f"challenge: {title}" if exercise.manifest.kind == "challenge" else title
