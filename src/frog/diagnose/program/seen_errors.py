"""Exceptions of a text, as evidence."""

from __future__ import annotations

from collections.abc import Iterable

from frog.diagnose.known_errors.lines import clean_lines
from frog.diagnose.known_errors.tracebacks import Traceback, TracebackReader
from frog.diagnose.program.evidence import SeenError
from frog.diagnose.program.places import user_line
from frog.runs.observed import CodeLine


def seen_error(traceback: Traceback, name: str) -> SeenError | None:
    """Convert a traceback; None if it is cut off before its exception."""
    if not traceback.type:
        return None
    frames = [CodeLine(file=each.file, line=each.line, function=each.function) for each in traceback.frames]
    line = user_line(reversed(frames)) or (frames[-1] if frames else None)
    return SeenError(traceback.type, "\n".join(traceback.message)[:4096], line, tuple(frames), source=name)


def seen_errors(lines: Iterable[str], name: str) -> list[SeenError]:
    """Return the exceptions of a text."""
    reader = TracebackReader()
    done = [traceback for line in clean_lines(lines, name) for traceback in reader.read(line)[0]]
    return [error for each in (*done, *reader.rest()) if (error := seen_error(each, name)) is not None]
