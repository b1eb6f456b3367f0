"""Where threads are: frames as data, and the innermost line of the user's own code.

Takes frames of other threads while they run. Reads only code objects and line numbers, never variables.
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(_OWN.rstrip(os.sep)))
_TRAINER = (os.path.join(_PACKAGE, "train") + os.sep,) if os.path.basename(_PACKAGE) == "frog" else ()
"""Frog's trainer, which is not an installed package in a clone, and may run a user's strategy."""
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_TYPED_IN = ("<string>", "<stdin>")
"""File names of `python -c` and of code from stdin."""

_MOST_FRAMES, _MOST_THREADS, _MOST_CODE = 64, 64, 200

try:
    _START = os.getcwd()
except OSError:
    _START = os.sep


def is_user_file(path: str) -> bool:
    """True for a file outside the standard library, the installed packages and this observer."""
    if path.startswith("<"):
        return path in _TYPED_IN
    return not path.startswith((_STANDARD_LIBRARY, _OWN, *_TRAINER)) and not any(part in path for part in _INSTALLED)


def file_past(frame: FrameType | None, own: tuple[str, ...]) -> str:
    """Return the file of the first frame, from this one outwards, whose path has none of these ends; "" without one."""
    while frame is not None and frame.f_code.co_filename.endswith(own):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename


def full_path(name: str) -> str:
    """Return the absolute path of a code object's file, which may be relative to where Python started."""
    return name if name.startswith("<") else os.path.normpath(os.path.join(_START, name))


def stack_of(frame: FrameType | None) -> list[FrameType]:
    """Return a thread's frames, innermost first, without the observer's own."""
    stack: list[FrameType] = []
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OWN):
            stack.append(frame)
        frame = frame.f_back
    return stack


def place_of(frame: FrameType, line: int | None = None) -> dict[str, Any]:
    """Return a frame's file, line and function."""
    number = frame.f_lineno if line is None else line
    return {"file": full_path(frame.f_code.co_filename), "line": number or 0, "function": frame.f_code.co_name}


def user_line(stack: list[FrameType]) -> dict[str, Any] | None:
    """Return the innermost place in the user's code. stack: innermost first."""
    return next((place_of(frame) for frame in stack if is_user_file(frame.f_code.co_filename)), None)


def all_stacks(main: int, with_code: bool) -> list[dict[str, Any]]:
    """Return the frames of all threads, the main thread first, innermost frame last.

    with_code: also read the lines from their files, which may block on a stalled file system.
    """
    names = {ident: thread.name for ident, thread in list(threading._active.items())}  # type: ignore[attr-defined]
    threads = []
    for ident, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != main):
        stack = stack_of(frame)[:_MOST_FRAMES]
        if stack:
            places = [_with_code(place_of(called), with_code) for called in reversed(stack)]
            threads.append({"name": names.get(ident, str(ident)), "main": ident == main, "frames": places})
    return threads[:_MOST_THREADS]


def traceback_places(traceback: TracebackType | None) -> list[dict[str, Any]]:
    """Return the frames of a traceback, innermost last."""
    places = []
    while traceback is not None:
        places.append(_with_code(place_of(traceback.tb_frame, traceback.tb_lineno), True))
        traceback = traceback.tb_next
    return places[-_MOST_FRAMES:]


def traceback_stack(traceback: TracebackType | None) -> list[FrameType]:
    """Return the frames of a traceback, innermost first."""
    stack: list[FrameType] = []
    while traceback is not None:
        stack.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return stack[::-1]


def _with_code(place: dict[str, Any], read: bool) -> dict[str, Any]:
    code = linecache.getline(place["file"], place["line"]).strip()[:_MOST_CODE] if read else ""
    return {**place, "code": code}
