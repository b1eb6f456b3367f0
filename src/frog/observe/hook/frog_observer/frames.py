"""Where threads are: frames as data, and the innermost line of the user's own code.

Takes frames from other threads while they run. Reads only code objects and line numbers, never variables.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_TYPED_IN = ("<string>", "<stdin>")
"""File names of `python -c` and of code from stdin."""


def is_user_file(path: str) -> bool:
    """True for a file outside the standard library, the installed packages and this observer."""
    if path.startswith("<"):
        return path in _TYPED_IN
    return not path.startswith((_STANDARD_LIBRARY, _OWN)) and not any(part in path for part in _INSTALLED)


def stack_of(thread: int) -> list[FrameType]:
    """Return a thread's frames, innermost first, without the observer's own; empty if it has ended."""
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return [frame for frame in frames if not frame.f_code.co_filename.startswith(_OWN)]


def place_of(frame: FrameType, line: int | None = None) -> dict[str, Any]:
    """Return a frame's file, line and function."""
    number = frame.f_lineno if line is None else line
    return {"file": full_path(frame.f_code.co_filename), "line": number or 0, "function": frame.f_code.co_name}


def full_path(name: str) -> str:
    """Return the absolute path of a code object's file, which is relative to where Python started."""
    return name if name.startswith("<") else os.path.normpath(os.path.join(_START, name))


def user_line(frames: list[FrameType]) -> dict[str, Any] | None:
    """Return the innermost place in the user's code. frames: innermost first."""
    return next((place_of(frame) for frame in frames if is_user_file(frame.f_code.co_filename)), None)


try:
    _START = os.getcwd()
except OSError:
    _START = os.sep
