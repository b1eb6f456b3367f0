"""Exceptions of a text, as evidence."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.known_errors.lines import clean_lines
from frog.observe.diagnose.known_errors.tracebacks import Traceback, TracebackReader
from frog.observe.diagnose.program.evidence import SeenError
from frog.observe.diagnose.program.places import user_line

_CAUGHT = re.compile(r"Caught (\w+) in (DataLoader worker process \d+|replica \d[^\n]*?|pin memory thread[^\n]*?)\.?\n")
_ORIGIN = re.compile(r"^Original Traceback \(most recent call last\):\n(.*)", re.DOTALL | re.MULTILINE)
_FRAME = re.compile(r'^\s*File "([^"\n]{1,4096})", line (\d{1,9}), in (.{1,200})$', re.MULTILINE)


def with_origin(error: SeenError) -> SeenError:
    """Return an exception that torch passed on from a DataLoader worker, with its line and message in the worker."""
    caught, origin = _CAUGHT.match(error.message), _ORIGIN.search(error.message)
    if caught is None or origin is None:
        return error
    frames = [CodeLine(file=file, line=int(line), function=name) for file, line, name in _FRAME.findall(origin[1])]
    _, _, message = origin[1].rpartition(f"\n{caught[1]}: ")
    message = f"{message.strip()} (in {caught[2]})" if message else error.message
    line = user_line(reversed(frames)) or error.line
    return replace(error, message=message, line=line, frames=(*error.frames, *frames))


def seen_error(traceback: Traceback, name: str) -> SeenError | None:
    """Convert a traceback; None if it is cut off before its exception."""
    if not traceback.type:
        return None
    frames = [CodeLine(file=each.file, line=each.line, function=each.function) for each in traceback.frames]
    line = user_line(reversed(frames)) or (frames[-1] if frames else None)
    return with_origin(SeenError(traceback.type, "\n".join(traceback.message)[:4096], line, tuple(frames), source=name))


def seen_errors(lines: Iterable[str], name: str) -> list[SeenError]:
    """Return the exceptions of a text."""
    reader = TracebackReader()
    done = [traceback for line in clean_lines(lines, name) for traceback in reader.read(line)[0]]
    return [error for each in (*done, *reader.rest()) if (error := seen_error(each, name)) is not None]
