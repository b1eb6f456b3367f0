"""Full-screen control of the terminal: single keys, the alternate screen, and a restored terminal on every exit."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import FrameType
from typing import Any

from frog.core.env import variable
from frog.core.terminal import beneath

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Switch to the alternate screen, hide the cursor, and stop wrapping long lines."""
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"

_SEQUENCE = re.compile(rb"\x1b[\[O][0-?]*[ -/]*[@-~]|[^\x1b]+|\x1b")
"""One key that sends several bytes, or a run of characters."""
_NAMED = {"A": "up", "B": "down", "5~": "pageup", "6~": "pagedown"}
"""Names of keys, by the bytes after the first two."""

Event = tuple[str, Any]
"""An event and its data: ("key", "n"), ("look", None), ("resized", None), ("checked", ...)."""


def has_terminal() -> bool:
    """Return True if input and output are a terminal that can redraw its screen."""
    return sys.stdin.isatty() and sys.stdout.isatty() and variable("TERM") != "dumb"


def num_rows() -> int:
    return shutil.get_terminal_size().lines


def draw(lines: list[str]) -> None:
    """Replace the screen's content without flickering.

    Erases each row before writing it: after a full line, the cursor is still on the last column, which an erase
    sequence would clear.
    """
    *first, last = lines
    rows = "".join(f"\x1b[K{line}\r\n" for line in first)
    beneath(sys.stdout).write(f"\x1b[H{rows}\x1b[J{last}")
    sys.stdout.flush()


@contextlib.contextmanager
def taken_over(events: SimpleQueue[Event]) -> Iterator[None]:
    """Take over the terminal: keys and size changes arrive as events, and Ctrl-Z works as in a shell.

    Raises:  SystemExit in the main thread on SIGTERM and SIGHUP, so that the terminal is restored.
    """
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def enter() -> None:
        tty.setcbreak(keyboard, termios.TCSANOW)
        beneath(sys.stdout).write(_ENTER)
        sys.stdout.flush()

    def leave() -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
            beneath(sys.stdout).write(_LEAVE)
            sys.stdout.flush()
        with contextlib.suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSANOW, before)

    with _signals(events, enter, leave):
        try:
            enter()
            threading.Thread(target=_read_keys, args=(keyboard, events), name="keys", daemon=True).start()
            yield
        finally:
            leave()


@contextlib.contextmanager
def _signals(events: SimpleQueue[Event], enter: Callable[[], None], leave: Callable[[], None]) -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def stop(number: int, frame: FrameType | None) -> None:
        leave()
        os.kill(os.getpid(), signal.SIGSTOP)  # until the shell's `fg`
        enter()
        events.put(("resized", None))

    def resize(number: int, frame: FrameType | None) -> None:
        events.put(("resized", None))

    handlers = {signal.SIGTERM: end, signal.SIGHUP: end, signal.SIGTSTP: stop, signal.SIGWINCH: resize}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _read_keys(keyboard: int, events: SimpleQueue[Event]) -> None:
    """Put an event for each key; `q` when the terminal is gone."""
    while True:
        try:
            data = os.read(keyboard, 64)
        except OSError:
            data = b""
        if not data:
            events.put(("key", "q"))
            return
        for key in keys_in(data):
            events.put(("key", key))


def keys_in(data: bytes) -> list[str]:
    """Return the pressed keys: characters, and names of arrow and page keys. Ignores all other keys."""
    keys: list[str] = []
    for part in _SEQUENCE.findall(data):
        text = part.decode(errors="ignore")
        if len(text) > 2 and text[0] == "\x1b":
            keys += [_NAMED[text[2:]]] if text[2:] in _NAMED else []
        else:
            keys += text
    return keys
