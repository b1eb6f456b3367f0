"""The state of `frog learn watch` and its response to each event, independent of terminal and clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Literal, Protocol

from msgspec.structs import replace

from frog.core.errors import FrogError, UsageError
from frog.core.units import time_text
from frog.learn.empty import unsolved_if_empty
from frog.learn.folder import LearnerFolder
from frog.learn.grader.exercise import Exercise, Prediction
from frog.learn.grader.verdict import Verdict
from frog.learn.pane import Pane
from frog.learn.predictions import Asked, missing
from frog.learn.progress import Progress, update_progress, with_guess, with_hint, with_verdict
from frog.learn.standing import Standing, lab_page, standing_in
from frog.learn.terminal import Event

ENTER, ESCAPE, BACKSPACE = ("\r", "\n"), "\x1b", ("\x7f", "\x08")
_PAGE = 10
"""Number of lines that PageUp and PageDown scroll."""
_MOVES = {"up": -1, "down": 1, "pageup": -_PAGE, "pagedown": _PAGE, " ": _PAGE}
"""Movements in the list, by key."""


class Checks(Protocol):
    """The interface of frog.learn.grader.client.Grader that a session uses."""

    def check(self, exercise: Exercise, files: dict[str, bytes], seed: int | None = None) -> Verdict: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Checked:
    """A finished check, with a verdict or a problem."""

    exercise: Exercise
    verdict: Verdict | None = None
    problem: str | None = None
    is_lost: bool = False
    """True if the grader's process has ended."""


class Session:
    """One `frog learn watch`: the exercise, its last verdict, and the learner's view of them."""

    def __init__(
        self, folder: LearnerFolder, exercise: Exercise, make_grader: Callable[[], Checks], events: SimpleQueue[Event]
    ) -> None:
        self.folder, self.exercise = folder, exercise
        self.standing = standing_in(folder)
        self.verdict: Verdict | None = None
        self.problem: str | None = None
        self.said: str | None = None
        """The effect of the last key, in one line."""
        self.checked_at: str | None = None
        self.is_checking = False
        self.view: Literal["exercise", "list"] = "exercise"
        self.focus: Literal["text", "result"] = "text"
        """The pane that the keys scroll."""
        self.text, self.result, self.list = Pane(), Pane(), Pane()
        self.chosen = exercise
        """The exercise selected in the list."""
        self.shows_hints = False
        self.asks: Literal["reset", "predict"] | None = None
        self.typed = ""
        self.is_over = False
        self._make_grader, self._grader, self._events = make_grader, make_grader(), events
        self._seen: dict[str, bytes] | str | None = None
        """The files that were checked last, or the reason why they could not be read."""
        self._is_stale = False

    def close(self) -> None:
        self._grader.close()

    def handle(self, event: Event) -> None:
        """Update the state for one event."""
        what, about = event
        if what == "key":
            self._key(about)
        elif what == "look":
            self._look()
        elif what == "checked":
            self._checked(about)

    def _look(self) -> None:
        """Start a check if the files have changed since the last one."""
        files = self._read()
        if files != self._seen:
            self._check(files)

    def _read(self) -> dict[str, bytes] | str:
        try:
            return self.folder.files(self.exercise)
        except UsageError as problem:
            return str(problem)

    def _check(self, files: dict[str, bytes] | str) -> None:
        """Start a check; if one is running, schedule another after it."""
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
            checked = Checked(exercise, unsolved_if_empty(grader.check(exercise, files), exercise, files))
        except FrogError as problem:
            checked = Checked(exercise, problem=str(problem), is_lost=True)
        self._events.put(("checked", checked))

    def _checked(self, checked: Checked) -> None:
        self.is_checking = False
        if checked.is_lost:
            self._grader.close()
            self._grader = self._make_grader()
        if checked.verdict is not None:
            verdict = checked.verdict
            self._update(lambda progress: with_verdict(progress, verdict))
        if checked.exercise == self.exercise:
            self.verdict, self.problem = checked.verdict, checked.problem
            self.checked_at = time_text()
            self._show_result(checked.verdict is None or checked.verdict.status != "unsolved")
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
        elif self.view == "list" and self._choose(key):
            return
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
            "\t": self._switch,
            " ": lambda: self._pane.page(),
            "down": lambda: self._pane.move(1),
            "up": lambda: self._pane.move(-1),
            "pagedown": lambda: self._pane.move(_PAGE),
            "pageup": lambda: self._pane.move(-_PAGE),
            "q": self._quit,
        }

    @property
    def has_passed(self) -> bool:
        """True if the last check of this exercise passed."""
        return self.verdict is not None and self.verdict.status == "passed"

    @property
    def _pane(self) -> Pane:
        return self.text if self.focus == "text" else self.result

    def _switch(self) -> None:
        self.focus = "result" if self.focus == "text" else "text"

    def _show_result(self, is_read: bool) -> None:
        """Show the result from its beginning; give it the focus if the learner should read it now."""
        self.result = Pane()
        self.focus = "result" if is_read else "text"

    def _next(self) -> None:
        before = self.exercise
        self._open(self.standing.after(before))
        if self.exercise.lab != before.lab and (page := lab_page(self.exercise)):
            self.said = f"lab {self.exercise.lab} begins: read {page}"

    def _open(self, exercise: Exercise) -> None:
        """Switch to an exercise."""
        self.view = "exercise"
        if exercise == self.exercise:
            return
        self.exercise = exercise
        self._update(lambda progress: replace(progress, current=exercise.id))
        self.verdict = self.problem = self._seen = self.checked_at = None
        self.text, self.shows_hints = Pane(), False
        self._show_result(False)
        self._look()

    def _hint(self) -> None:
        exercise = self.exercise.id
        self._update(lambda progress: with_hint(progress, exercise))
        self.view, self.shows_hints = "exercise", True
        self._show_result(True)

    def _list(self) -> None:
        self.view = "exercise" if self.view == "list" else "list"
        self.chosen, self.typed = self.exercise, ""

    def _choose(self, key: str) -> bool:
        """Handle a key in the list: move, type a number, open the selection. Return False for any other key."""
        exercises = self.standing.exercises
        if key in _MOVES:
            place = exercises.index(self.chosen) + _MOVES[key]
            self.chosen, self.typed = exercises[max(0, min(place, len(exercises) - 1))], ""
        elif key in ENTER:
            self._open(self.chosen)
        elif key == ESCAPE:
            self.view = "exercise"
        elif key in BACKSPACE:
            self.typed = self.typed[:-1]
        elif key.isdecimal() or key == ".":
            self._type_number(key)
        else:
            return False
        return True

    def _type_number(self, key: str) -> None:
        """Select the first exercise whose number begins with the typed digits."""
        for typed in (self.typed + key, key):
            matching = [exercise for exercise in self.standing.exercises if exercise.number.startswith(typed)]
            if matching:
                self.typed, self.chosen = typed, matching[0]
                return

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
        self.said = f"reset; your files are in {self.folder.shown(kept)}/" if kept else "the files were unchanged"

    @property
    def asked(self) -> Prediction | None:
        """The number to predict now: the first one without a prediction, else the first one."""
        all_of_it = self.exercise.manifest.predict
        return next(iter(missing(self.exercise, self.standing.progress) or all_of_it), None)

    def _predict(self) -> None:
        if self.asked is None:
            self.said = "this exercise asks for no prediction"
        else:
            self.view, self.asks, self.typed = "exercise", "predict", ""
            self._show_result(True)

    def _type(self, key: str) -> None:
        """Handle a key while the learner types a value: Enter accepts it, Escape cancels."""
        if key in ENTER:
            self._guess()
        elif key == ESCAPE:
            self.asks = None
        elif key in BACKSPACE:
            self.typed = self.typed[:-1]
        elif len(key) == 1 and key.isprintable():
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
