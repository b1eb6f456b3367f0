"""error.json: the exception that ended the program. The program's own hooks run afterwards, as without the observer."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from . import files, frames
from .place import Place
from .transfers import transfer_of

_MOST_MESSAGE, _MOST_TRACEBACK, _MOST_EARLIER = 4096, 16384, 4


class Errors:
    """Notes uncaught exceptions. on_end: called after one that ends the process."""

    def __init__(self, place: Place, on_end: Callable[[], None]) -> None:
        self._place, self._pid, self._on_end = place, os.getpid(), on_end
        self._earlier: list[dict[str, Any]] = []
        self._noted: BaseException | None = None
        self._next, self._next_in_thread = sys.excepthook, threading.excepthook
        sys.excepthook = self._on_exception
        threading.excepthook = self._on_exception_in_thread

    def note_last(self) -> None:
        """Note the exception that Python has printed, if a hook that replaced this one did not pass it on."""
        error = getattr(sys, "last_value", None)
        if error is not None and error is not self._noted:
            self._note(error, error.__traceback__)

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            if os.getpid() == self._pid:
                self._note(error, trace)
        except Exception:  # for example an exception whose text cannot be computed
            pass
        self._next(kind, error, trace)

    def _note(self, error: BaseException, trace: TracebackType | None) -> None:
        self._noted = error
        self._write(error, trace, "MainThread")
        self._on_end()

    def _on_exception_in_thread(self, args: Any) -> None:
        try:
            if os.getpid() == self._pid and args.exc_value is not None and args.exc_type is not SystemExit:
                name = args.thread.name if args.thread is not None else ""
                if len(self._earlier) < _MOST_EARLIER:
                    self._earlier.append(self._write(args.exc_value, args.exc_traceback, name))
        except Exception:
            pass
        self._next_in_thread(args)

    def _write(self, error: BaseException, trace: TracebackType | None, thread: str) -> dict[str, Any]:
        """Write error.json; return the part that a later error repeats."""
        places = frames.traceback_places(trace)
        lines = [place for place in places if frames.is_user_file(place["file"])]
        short = {
            "type": _name(type(error)),
            "message": str(error)[:_MOST_MESSAGE],
            "line": lines[-1] if lines else None,
            "thread": thread,
        }
        text = "".join(traceback.format_exception(type(error), error, trace))
        whole = {
            "format": 1,
            "rank": self._place.rank,
            "pid": self._pid,
            "unix_ns": time.time_ns(),
            **short,
            "traceback": text[-_MOST_TRACEBACK:],
            "frames": places,
            "transfer": transfer_of(frames.traceback_stack(trace)),
            "earlier": self._earlier,
        }
        files.write_json(self._place.folder, "error.json", whole)
        return short


def _name(kind: type[BaseException]) -> str:
    """Return the name of an exception's class as a traceback writes it."""
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
