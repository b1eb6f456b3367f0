"""Text that comes from elsewhere, made safe for a terminal: it can neither steer it nor feign lines of Frog's.

Names, logs, paths and files hold whatever somebody put there. `printable_output` stands once around each program, so
that what is printed needs no thought; what draws for itself (colours, the screen of a watch) writes to what is beneath,
and tables and bars go through `core/console.py`.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_STEERING = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control bytes but for line break and tab, what turns the direction of text, and halves of characters."""


def printable(text: str) -> str:
    """One line: what would steer a terminal is shown as an escape, `\\x1b`; colours are left out."""
    return printable_lines(text).replace("\n", "\\n").replace("\t", " ")


def printable_lines(text: str) -> str:
    """As `printable`, but lines stay lines."""
    if text.isprintable():
        return text
    return _STEERING.sub(_escape, _COLOUR.sub("", text).replace("\r\n", "\n"))


def print_coloured(text: str) -> None:
    """Print lines that hold colours of Frog's own; nothing else in them steers the terminal."""
    coloured = zip(_COLOUR.split(text), [*_COLOUR.findall(text), ""], strict=True)
    stream = beneath(sys.stdout)
    drawn = "".join(printable_lines(part) + colour for part, colour in coloured)
    print(_encodable(drawn, stream, "replace"), file=stream, flush=True)


def _encodable(text: str, stream: TextIO, errors: str) -> str:
    """The text with what the stream's encoding has no character for replaced."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, errors).decode(encoding)


def _escape(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x20 else f"\\u{number:04x}"  # as JSON writes them too


class PrintableStream:
    """A text stream to which only what is printable gets through."""

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath

    def write(self, text: str) -> int:
        self.beneath.write(_encodable(printable_lines(text), self.beneath, "backslashreplace"))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Around a program: all that it prints is printable."""
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = PrintableStream(beneath(kept[0])), PrintableStream(beneath(kept[1]))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = kept


def beneath(stream: TextIO) -> TextIO:
    """The stream itself, for what Frog draws: its own colours, of texts that are printable."""
    return stream.beneath if isinstance(stream, PrintableStream) else stream
