"""The screen of `frog learn watch`: exercise and progress bar, what was found, the keys; it fits into 80 x 24."""

from __future__ import annotations

from collections.abc import Iterator

from frog.course.session import Session
from frog.course.standing import HERE, list_lines, quiz_lines, title_of
from frog.course.text import Style
from frog.course.verdict_text import hint_lines, verdict_lines

_FRAME = 5
"""Rows that are not the body's."""


def screen_lines(session: Session, style: Style, rows: int) -> list[str]:
    """Exactly as many lines as there are rows."""
    room = max(rows - _FRAME, 1)
    body = list(_body(session, style))
    num_pages = max(1, -(-len(body) // room))
    page = (session.page + _first(session, body) // room) % num_pages
    shown = body[page * room : (page + 1) * room]
    more = f"space: page {page + 1} of {num_pages}" if num_pages > 1 else ""
    lines = [*_head(session, style), *shown, *[""] * (room - len(shown)), *_foot(session, style, more)]
    return lines[-rows:]


def _first(session: Session, body: list[str]) -> int:
    """The line of the body that is to be seen first: of the list, where the learner is."""
    mark = f"{HERE} {session.exercise.number} "
    return next((row for row, line in enumerate(body) if session.view == "list" and mark in line), 0)


def _head(session: Session, style: Style) -> Iterator[str]:
    exercise, standing = session.exercise, session.standing
    bar = style.bar(standing.passed(), len(standing.exercises))
    title = f"lab {exercise.number}  {title_of(exercise)}"
    room = style.columns - len(bar) - 2
    yield style.paint(style.apart(title if len(title) <= room else title[: room - 3] + "...", bar), "strong")
    names = ", ".join(exercise.manifest.files)
    where = f"{session.folder.shown(session.folder.place(exercise))}/{names}"
    yield style.paint(style.apart(where, f"{exercise.manifest.minutes} min"), "quiet")
    yield "-" * style.columns


def _body(session: Session, style: Style) -> Iterator[str]:
    progress = session.standing.progress
    if session.view == "list":
        yield from list_lines(session.standing, session.exercise, style)
        return
    if session.asks == "predict" and session.asked:
        yield from style.wrap(session.asked.question, indent=0)
        yield ""
    if session.shows_hints:
        yield from hint_lines(session.exercise, progress.work(session.exercise.id).hints, style)
        yield ""
    if session.problem:
        yield from style.wrap(session.problem, indent=0)
    elif session.verdict:
        yield from verdict_lines(session.verdict, session.exercise, progress, style)
        if session.verdict.status == "passed":
            yield from quiz_lines(session.standing, session.exercise.lab)


def _foot(session: Session, style: Style, more: str) -> Iterator[str]:
    checked = f"checked {session.checked_at[11:19]} UTC" if session.checked_at else ""
    status = session.said or ("checking ..." if session.is_checking else checked)
    line = " ".join(part for part in (status, more) if part)
    yield f"-- {line} ".ljust(style.columns, "-")[: style.columns]
    yield _question(session) or _keys(session, style)


def _question(session: Session) -> str | None:
    if session.asks == "reset":
        return "bring the files back as shipped? yours go to backups/. y: yes, other keys: no"
    if session.asks == "predict" and session.asked:
        unit = f" in {session.asked.unit}" if session.asked.unit else ""
        return f"{session.asked.id}{unit} (Enter: done, Escape: not now): {session.typed}_"
    return None


def _keys(session: Session, style: Style) -> str:
    passed = session.verdict is not None and session.verdict.status == "passed"
    predict = ["p predict"] if session.exercise.manifest.predict else []
    words = ["n next", "h hint", "l list", *predict, "r reset", "Enter again", "q quit"]
    line = "   ".join(words)
    return line.replace("n next", style.paint("n next", "strong", "good"), 1) if passed else line
