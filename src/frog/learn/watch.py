"""`frog learn watch`: check again whenever the learner saves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import watchfiles

from frog.core.terminal import print_coloured
from frog.learn.folder import LearnerFolder
from frog.learn.grader.exercise import Exercise
from frog.learn.screen import screen_lines
from frog.learn.session import Checks, Session
from frog.learn.terminal import Event, draw, has_terminal, num_rows, taken_over
from frog.learn.text import style_of_output
from frog.learn.verdict_text import verdict_lines

_LOOK_MS = 500
"""Polling interval: network file systems do not report changes."""


def watch_exercises(folder: LearnerFolder, exercise: Exercise, make_grader: Callable[[], Checks]) -> None:
    """Check on every save until the learner quits: full-screen, or without a terminal as a stream of verdicts."""
    events: SimpleQueue[Event] = SimpleQueue()
    with contextlib.closing(Session(folder, exercise, make_grader, events)) as session, _looking(folder.path, events):
        if has_terminal():
            _on_a_screen(session, events)
        else:
            _line_by_line(session, events)


def _on_a_screen(session: Session, events: SimpleQueue[Event]) -> None:
    with taken_over(events):
        shown: list[str] = []
        while not session.is_over:
            lines = screen_lines(session, style_of_output(), num_rows())
            if lines != shown:
                draw(lines)
                shown = lines
            event = events.get()
            if event[0] == "resized":
                shown = []
            session.handle(event)


def _line_by_line(session: Session, events: SimpleQueue[Event]) -> None:
    print(f"Checking {session.exercise.number} on every save; Ctrl-C stops.", flush=True)
    while not session.is_over:
        event = events.get()
        session.handle(event)
        if event[0] != "checked":
            continue
        if session.verdict:
            style, progress = style_of_output(), session.standing.progress
            print_coloured("\n".join(["", *verdict_lines(session.verdict, session.exercise, progress, style)]))
        elif session.problem:
            print(f"\n{session.problem}", flush=True)


@contextlib.contextmanager
def _looking(folder: Path, events: SimpleQueue[Event]) -> Iterator[None]:
    """Put the event ("look", None) at the start, on every change in the folder, and periodically."""
    over = threading.Event()

    def look() -> None:
        events.put(("look", None))
        while not over.is_set():
            with contextlib.suppress(OSError, RuntimeError):  # the folder was removed and may reappear
                for _ in watchfiles.watch(
                    folder / "exercises",
                    stop_event=over,
                    debounce=100,
                    step=20,
                    rust_timeout=_LOOK_MS,
                    yield_on_timeout=True,
                ):
                    events.put(("look", None))
            over.wait(_LOOK_MS / 1000)
            events.put(("look", None))

    thread = threading.Thread(target=look, name="look", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()  # native code that is still running when Python exits would crash the process
