"""The screen of `frog learn watch`: the exercise's text, the last verdict and the keys, in as little as 80 x 24."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frog.learn.predictions import missing
from frog.learn.readme import readme_lines
from frog.learn.session import Session
from frog.learn.standing import lab_page, list_lines, quiz_lines, row_of, title_of
from frog.learn.text import Style
from frog.learn.verdict_text import hint_lines, short_lines, verdict_lines

_FRAME = 5
"""Rows for the title, the files, two rules and the keys."""
_LEAST_TEXT = 4
"""Rows of the exercise's text that stay visible next to a verdict."""


def screen_lines(session: Session, style: Style, rows: int) -> list[str]:
    """Return the screen's content, exactly `rows` lines."""
    room = max(rows - _FRAME, 2)
    body = _list(session, style, room) if session.view == "list" else _exercise(session, style, room)
    return [*_head(session, style), *body, _question(session, style) or _keys(session, style)][-rows:]


def _head(session: Session, style: Style) -> Iterator[str]:
    exercise, standing = session.exercise, session.standing
    bar = style.bar(standing.passed(), len(standing.exercises))
    title = f"lab {exercise.number}  {title_of(exercise)}"
    yield style.paint(style.spread(style.cut(title, style.columns - len(bar) - 2), bar), "strong")
    names = ", ".join(exercise.manifest.files)
    where = f"{session.folder.shown(session.folder.place(exercise))}/{names}"
    minutes = f"{exercise.manifest.minutes} min"
    yield style.paint(style.spread(style.cut(where, style.columns - len(minutes) - 2), minutes), "quiet")


def _list(session: Session, style: Style, room: int) -> Iterator[str]:
    """Yield the list of exercises, scrolled so that the chosen one is visible."""
    standing, pane = session.standing, session.list
    pane.reveal(row_of(standing, session.chosen), room)
    shown = pane.show(list_lines(standing, session.chosen, style), room)
    yield _rule(style, "exercises", pane.place)
    yield from shown
    yield _rule(style, f"go to {session.typed}_" if session.typed else "")


def _exercise(session: Session, style: Style, room: int) -> Iterator[str]:
    """Yield the exercise's text, then the verdict; the focused pane gets the rows that it needs."""
    text, result = readme_lines(session.exercise.readme, style), list(_result(session, style))
    if session.focus == "text":
        result_rows = min(len(result), max(room // 3, room - len(text)))
    else:
        result_rows = min(len(result), room - min(len(text), _LEAST_TEXT, room // 2))
    shown = session.text.show(text, room - result_rows)
    result_lines = session.result.show(result, result_rows)
    yield _rule(style, _with_key(session, "text"), *_page(session, style))
    yield from shown
    yield _rule(style, _status(session), _with_key(session, "result"), is_good=session.has_passed)
    yield from result_lines


def _page(session: Session, style: Style) -> list[str]:
    """Return the page of the exercise's lab, if it fits in the rule above the text."""
    page = lab_page(session.exercise)
    text = f"page: {page}"
    return [text] if page and len(_with_key(session, "text")) + len(text) + 12 <= style.columns else []


def _with_key(session: Session, name: str) -> str:
    """Return a pane's visible range and the key that scrolls it."""
    pane = session.text if name == "text" else session.result
    key = "space" if session.focus == name else "Tab"
    return f"{pane.place}, {key}: more" if pane.place else ""


def _result(session: Session, style: Style) -> Iterator[str]:
    progress = session.standing.progress
    if session.asks == "predict" and session.asked:
        yield from style.wrap(session.asked.question, indent=0)
        yield ""
    if session.shows_hints:
        yield from hint_lines(session.exercise, progress.work(session.exercise.id), style)
        yield ""
    if session.problem:
        yield from style.wrap(session.problem, indent=0)
    elif session.verdict and session.verdict.status == "unsolved":
        yield from short_lines(session.verdict, session.exercise, progress, style)
    elif session.verdict:
        yield from verdict_lines(session.verdict, session.exercise, progress, style)
        if session.has_passed:
            yield from quiz_lines(session.standing, session.exercise.lab)


def _rule(style: Style, *parts: str, is_good: bool = False) -> str:
    text = " -- ".join(part for part in parts if part)
    line = (f"-- {text} " if text else "").ljust(style.columns, "-")[: style.columns]
    return style.paint(line, "strong", "good") if is_good else line


def _status(session: Session) -> str:
    if session.said:
        return session.said
    if session.is_checking:
        return "checking ..."
    if session.has_passed:
        unknown = missing(session.exercise, session.standing.progress)
        return "passed: press p to predict, then n" if unknown else "passed: press n"
    return f"checked {session.checked_at[11:19]} UTC" if session.checked_at else ""


def _question(session: Session, style: Style) -> str | None:
    """Return the open question, in the longest form that fits on a line."""
    if session.asks == "reset":
        texts = (
            "restore the original files? yours move to backups/. y: yes, other keys: no",
            "restore the originals? yours are kept. y: yes",
            "restore the originals? y: yes",
        )
        return _first_that_fits(texts, style)
    if session.asks == "predict" and session.asked:
        unit = f" in {session.asked.unit}" if session.asked.unit else ""
        typed, name = f": {session.typed}_", f"{session.asked.id}{unit}"
        texts = (f"{name} (Enter: done, Escape: not now){typed}", f"{name}{typed}", typed.removeprefix(": "))
        return _first_that_fits(texts, style)
    return None


def _keys(session: Session, style: Style) -> str:
    if session.view == "list":
        texts = (
            "arrows or a number: choose   Enter: open   l back   q quit",
            "number   Enter: open   l back   q quit",
        )
        return _first_that_fits(texts, style)
    predict = ["p predict"] if session.exercise.manifest.predict else []
    switch = "Tab verdict" if session.focus == "text" else "Tab text"
    words = ["n next", "h hint", "l list", *predict, "r reset", switch, "Enter again", "q quit"]
    for spared in ("Enter again", "r reset", switch, "l list"):
        if len("  ".join(words)) > style.columns:
            words.remove(spared)
    line = "  ".join(words)
    return line.replace("n next", style.paint("n next", "strong", "good"), 1) if session.has_passed else line


def _first_that_fits(texts: Sequence[str], style: Style) -> str:
    """Return the first text that fits on a line; else the end of the last one, where the typed characters are."""
    return next((text for text in texts if len(text) <= style.columns), texts[-1][-style.columns :])
