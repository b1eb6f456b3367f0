"""Sanitizing of foreign text: it can neither control the terminal nor imitate Frog's own lines.

Names, logs, paths and files can contain anything. `printable_output` wraps each program once, so that individual
prints need no care; code that draws (colours, the live view) writes to the wrapped stream, and tables and bars go
through `core/console.py`.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_STEERING = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except newline and tab, characters that change the direction of text, and lone surrogates."""


def printable(text: str) -> str:
    """Return the text as one line, with control characters escaped (`\\x1b`) and without colours."""
    return printable_lines(text).replace("\n", "\\n").replace("\t", " ")


def printable_lines(text: str) -> str:
    """Do the same as `printable`, but keep line breaks."""
    if text.isprintable():
        return text
    return _STEERING.sub(_escape, _COLOUR.sub("", text).replace("\r\n", "\n"))


def print_coloured(text: str) -> None:
    """Print lines that contain Frog's own colours; other control characters are escaped."""
    coloured = zip(_COLOUR.split(text), [*_COLOUR.findall(text), ""], strict=True)
    stream = beneath(sys.stdout)
    drawn = "".join(printable_lines(part) + colour for part, colour in coloured)
    print(_encodable(drawn, stream, "replace"), file=stream, flush=True)


def _encodable(text: str, stream: TextIO, errors: str) -> str:
    """Replace the characters that the stream's encoding lacks."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, errors).decode(encoding)


def _escape(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x20 else f"\\u{number:04x}"  # the same form as in JSON


class PrintableStream:
    """A text stream that makes everything written to it printable."""

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath

    def write(self, text: str) -> int:
        self.beneath.write(_encodable(printable_lines(text), self.beneath, "backslashreplace"))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Make all output of a program printable."""
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = PrintableStream(beneath(kept[0])), PrintableStream(beneath(kept[1]))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = kept


def beneath(stream: TextIO) -> TextIO:
    """Return the wrapped stream, for Frog's own drawing: colours, around printable text."""
    return stream.beneath if isinstance(stream, PrintableStream) else stream
