"""What `frog learn watch` knows, and what each event makes of it. Needs neither terminal nor clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Literal, Protocol

from msgspec.structs import replace

from frog.core.errors import FrogError, UsageError
from frog.core.units import time_text
from frog.course.folder import LearnerFolder
from frog.course.predictions import Asked, missing
from frog.course.progress import Progress, update_progress, with_guess, with_hint, with_verdict
from frog.course.standing import Standing, standing_in
from frog.course.terminal import Event
from frog.grader.exercise import Exercise, Prediction
from frog.grader.verdict import Verdict

ENTER, ESCAPE, BACKSPACE = ("\r", "\n"), "\x1b", ("\x7f", "\x08")


class Checks(Protocol):
    """What judges: frog.grader.client.Grader."""

    def check(self, exercise: Exercise, files: dict[str, bytes], seed: int | None = None) -> Verdict: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Checked:
    """A check has ended: with a verdict, or with a problem."""

    exercise: Exercise
    verdict: Verdict | None = None
    problem: str | None = None
    is_lost: bool = False
    """The grader is gone."""


class Session:
    """One `watch`: the exercise, its last verdict, and what the learner is looking at."""

    def __init__(
        self, folder: LearnerFolder, exercise: Exercise, make_grader: Callable[[], Checks], events: SimpleQueue[Event]
    ) -> None:
        self.folder, self.exercise = folder, exercise
        self.standing = standing_in(folder)
        self.verdict: Verdict | None = None
        self.problem: str | None = None
        self.said: str | None = None
        """One line on what a key did."""
        self.checked_at: str | None = None
        self.is_checking = False
        self.view: Literal["verdict", "list"] = "verdict"
        self.page = 0
        self.shows_hints = False
        self.asks: Literal["reset", "predict"] | None = None
        self.typed = ""
        self.is_over = False
        self._make_grader, self._grader, self._events = make_grader, make_grader(), events
        self._seen: dict[str, bytes] | str | None = None
        """The files that were checked last, or what was wrong with them."""
        self._is_stale = False

    def close(self) -> None:
        self._grader.close()

    def handle(self, event: Event) -> None:
        """Take in what happened."""
        what, about = event
        if what == "key":
            self._key(about)
        elif what == "look":
            self._look()
        elif what == "checked":
            self._checked(about)

    def _look(self) -> None:
        """Check if the files are not those that were checked last."""
        files = self._read()
        if files != self._seen:
            self._check(files)

    def _read(self) -> dict[str, bytes] | str:
        try:
            return self.folder.files(self.exercise)
        except UsageError as problem:
            return str(problem)

    def _check(self, files: dict[str, bytes] | str) -> None:
        """Start a check; while one is running, remember that another must follow."""
        if self.is_checking:
            self._is_stale = True
            return
        self._seen, self.said = files, None
        self.is_checking = True
        if isinstance(files, str):
            self._events.put(("checked", Checked(self.exercise, problem=files)))
            return
        about = (self._grader, self.exercise, files)
        threading.Thread(target=self._run_check, args=about, name="check", daemon=True).start()

    def _run_check(self, grader: Checks, exercise: Exercise, files: dict[str, bytes]) -> None:
        try:
            found = Checked(exercise, grader.check(exercise, files))
        except FrogError as problem:
            found = Checked(exercise, problem=str(problem), is_lost=True)
        self._events.put(("checked", found))

    def _checked(self, found: Checked) -> None:
        self.is_checking = False
        if found.is_lost:
            self._grader.close()
            self._grader = self._make_grader()
        if found.verdict is not None:
            verdict = found.verdict
            self._update(lambda progress: with_verdict(progress, verdict))
        if found.exercise == self.exercise:
            self.verdict, self.problem = found.verdict, found.problem
            self.checked_at, self.page = time_text(), 0
        if self._is_stale:
            self._is_stale = False
            self._check(self._read())

    def _update(self, change: Callable[[Progress], Progress]) -> None:
        self.standing = Standing(self.standing.exercises, update_progress(self.folder.path, change))

    def _key(self, key: str) -> None:
        if self.asks == "reset":
            self._answer_reset(key)
        elif self.asks == "predict":
            self._type(key)
        elif key in ENTER:
            self._check(self._read())
        elif action := self._actions().get(key.lower()):
            self.said = None
            action()

    def _actions(self) -> dict[str, Callable[[], None]]:
        return {
            "n": self._next,
            "h": self._hint,
            "l": self._list,
            "p": self._predict,
            "r": self._reset,
            " ": self._more,
            "q": self._quit,
        }

    def _next(self) -> None:
        self.exercise = self.standing.after(self.exercise)
        exercise = self.exercise.id
        self._update(lambda progress: replace(progress, current=exercise))
        self.verdict = self.problem = self._seen = self.checked_at = None
        self.view, self.page, self.shows_hints = "verdict", 0, False
        self._look()

    def _hint(self) -> None:
        exercise = self.exercise.id
        self._update(lambda progress: with_hint(progress, exercise))
        self.view, self.page, self.shows_hints = "verdict", 0, True

    def _list(self) -> None:
        self.view, self.page = "verdict" if self.view == "list" else "list", 0

    def _more(self) -> None:
        self.page += 1

    def _quit(self) -> None:
        self.is_over = True

    def _reset(self) -> None:
        self.asks = "reset"

    def _answer_reset(self, key: str) -> None:
        self.asks = None
        if key.lower() != "y":
            self.said = "nothing was reset"
            return
        kept = self.folder.reset(self.exercise)
        self._look()
        self.said = f"reset; yours is in {self.folder.shown(kept)}/" if kept else "it was as it was shipped"

    @property
    def asked(self) -> Prediction | None:
        """The number that is to be predicted now: the first that was not, else the first."""
        all_of_it = self.exercise.manifest.predict
        return next(iter(missing(self.exercise, self.standing.progress) or all_of_it), None)

    def _predict(self) -> None:
        if self.asked is None:
            self.said = "this exercise asks for no prediction"
        else:
            self.asks, self.typed = "predict", ""

    def _type(self, key: str) -> None:
        """A value is being typed: Enter ends it, Escape gives it up."""
        if key in ENTER:
            self._guess()
        elif key == ESCAPE:
            self.asks = None
        elif key in BACKSPACE:
            self.typed = self.typed[:-1]
        elif key.isprintable():
            self.typed += key

    def _guess(self) -> None:
        asked, typed = self.asked, self.typed
        self.asks, self.typed = None, ""
        if asked is None or not typed.strip():
            return
        try:
            guess = Asked(self.exercise, asked).guess(typed)
        except UsageError as problem:
            self.said = problem.what
            return
        self._update(lambda progress: with_guess(progress, guess))
        self._check(self._read())
