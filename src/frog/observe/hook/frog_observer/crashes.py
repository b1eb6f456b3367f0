"""How a rank ends: error.json has its exception, crash.txt what ends it without one or keeps all its threads waiting.

The program's own hooks run after the observer's, as without it, and its own use of `faulthandler` comes first: there is
one handler and one timer per process.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from . import frames, rank_files
from .place import Place
from .unrecorded_calls import joining_of, root_of, transfer_of

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
            "type": _class_name(type(error)),
            "message": _shortened(str(error)),
            "line": lines[-1] if lines else None,
            "thread": thread,
        }
        text = "".join(traceback.format_exception(type(error), error, trace))
        stack = frames.traceback_stack(trace)
        whole = {
            "format": 1,
            "rank": self._place.rank,
            "pid": self._pid,
            "unix_ns": time.time_ns(),
            **short,
            "traceback": text[-_MOST_TRACEBACK:],
            "frames": places,
            "transfer": transfer_of(stack),
            "joining": joining_of(stack),
            "root": root_of(stack),
            "earlier": self._earlier,
            "handled": handled(error.__context__),
        }
        rank_files.write_json(self._place.folder, "error.json", whole)
        return short


def handled(error: BaseException | None) -> dict[str, Any] | None:
    """Return an exception that a handler, a `finally` or the end of a `with` was at work on, as data."""
    if error is None:
        return None
    try:
        lines = [place for place in frames.traceback_places(error.__traceback__) if frames.is_user_file(place["file"])]
        return {
            "type": _class_name(type(error)),
            "message": _shortened(str(error)),
            "line": lines[-1] if lines else None,
        }
    except Exception:  # its text cannot be computed
        return None


def handled_by(thread: int) -> dict[str, Any] | None:
    """Return the exception that a thread handles at this moment, if it does."""
    error: Any = sys._current_exceptions().get(thread)
    return handled(error[1] if isinstance(error, tuple) else error)  # a tuple before Python 3.12


def _shortened(text: str) -> str:
    """Return a message without its middle: torch's ends with the parameters that it is about."""
    if len(text) <= _MOST_MESSAGE:
        return text
    half = _MOST_MESSAGE // 2
    return f"{text[: half - 2]} … {text[1 - half :]}"


def _class_name(kind: type[BaseException]) -> str:
    """Return the name of an exception's class as a traceback writes it."""
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


# ---- crash.txt: Python's fault handler -------------------------------------------------------------------------------

_STUCK_S, _AGAIN_S = 30.0, 5.0
_QUIET_BEFORE_S, _QUIET_AFTER_S = 0.2, 0.1
"""How long the observer rests around a dump that the program has ordered."""
_MOST_BYTES = 1 << 20


class Crashes:
    """Writes the stacks at a fatal signal, and when no Python code could run for 30 s."""

    def __init__(self, path: str) -> None:
        self._descriptor: int | None = None
        self._armed_s = -_AGAIN_S
        self._timer_is_ours = True
        self._dump_due_s = -_AGAIN_S
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o666)
        except OSError:
            return
        if not faulthandler.is_enabled():
            faulthandler.enable(self._descriptor)
            self._hide_handler()
        self._leave_timer_to_program()

    def _hide_handler(self) -> None:
        """Let `faulthandler.is_enabled()` tell the program what it would be without the observer."""
        enable, disable = faulthandler.enable, faulthandler.disable
        own = {"enabled": False}

        def enable_own(*args: Any, **kwargs: Any) -> None:
            enable(*args, **kwargs)
            own["enabled"] = True

        def disable_own() -> bool:
            was, own["enabled"] = own["enabled"], False
            disable()
            return was

        faulthandler.enable = enable_own
        faulthandler.disable = disable_own  # type: ignore[assignment]  # it does return a bool
        faulthandler.is_enabled = lambda: own["enabled"]

    def _leave_timer_to_program(self) -> None:
        """Stop using the timer as soon as the program does."""
        self._start_timer = start = faulthandler.dump_traceback_later

        def start_own(*args: Any, **kwargs: Any) -> None:
            self._timer_is_ours = False
            start(*args, **kwargs)
            self._dump_due_s = time.monotonic() + (args[0] if args else kwargs["timeout"])

        faulthandler.dump_traceback_later = start_own

    def is_dump_due(self) -> bool:
        """Return whether the program's own timer is due: its dump ends early at a thread that runs meanwhile."""
        return -_QUIET_BEFORE_S < time.monotonic() - self._dump_due_s < _QUIET_AFTER_S

    def beat(self) -> None:
        """Restart the timer, every few seconds since each start is a thread."""
        now_s = time.monotonic()
        if self._descriptor is None or not self._timer_is_ours or now_s - self._armed_s < _AGAIN_S:
            return
        self._armed_s = now_s
        if os.fstat(self._descriptor).st_size < _MOST_BYTES:
            self._start_timer(_STUCK_S, file=self._descriptor)

    def stop_timer(self) -> None:
        """Stop the timer before a fork: a child that has its state but not its thread would block when it exits."""
        if self._descriptor is not None and self._timer_is_ours:
            faulthandler.cancel_dump_traceback_later()
            self._armed_s = time.monotonic()  # the next start is not before the fork is over
