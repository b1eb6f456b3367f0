"""What Frog prints to a terminal and reads from it: complete streams, printable characters, wrapped lines."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import termios
import textwrap
from collections.abc import Iterator
from typing import Any, TextIO

from frog.core.env import variable

_MOST_CHARS = 10_000
"""Most characters of an answer line."""


def make_streams_whole() -> None:
    """Open closed streams (`frog quiz 1 <&-`) on /dev/null, and accept arbitrary bytes as typed text.

    Otherwise the next opened file would get the number of the closed stream, and receive the printed output.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if not _is_open(number):
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # opens at the lowest free number, this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def read_line(prompt: str) -> str:
    """Do the same as `input`, but limit the length of a line, since a line from a pipe may be endless.

    Raises:  EOFError at the end of the input.
    """
    if sys.stdin.isatty():
        return input(prompt)
    print(prompt, end="", flush=True)
    line = sys.stdin.readline(_MOST_CHARS)
    if not line or len(line) == _MOST_CHARS:
        raise EOFError
    return line


def discard_typed_ahead() -> None:
    """Discard what the user typed while no program was reading."""
    if sys.stdin.isatty():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


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
    print(encodable(drawn, stream, "replace"), file=stream, flush=True)


def encodable(text: str, stream: TextIO, errors: str) -> str:
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
        self.beneath.write(encodable(printable_lines(text), self.beneath, "backslashreplace"))
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


def terminal_columns(stream: TextIO | None = None) -> int | None:
    """Return the width of the terminal behind a stream (default: standard output); None if it is not a terminal."""
    return shutil.get_terminal_size().columns if (stream or sys.stdout).isatty() else None


def shows_colour() -> bool:
    """True if standard output is a terminal with colours and NO_COLOR is not set."""
    return sys.stdout.isatty() and not variable("NO_COLOR") and variable("TERM") != "dumb"


def wrapped(line: str, columns: int | None, hang: int = 2) -> list[str]:
    """Break a line between words; the continuation lines are indented `hang` columns more than the first.

    A word longer than a line is not broken, so that a path can be copied.
    """
    if columns is None or len(line) <= columns:
        return [line]
    margin = " " * min(len(line) - len(line.lstrip()) + hang, columns // 2)
    return textwrap.wrap(
        line, columns, subsequent_indent=margin, break_on_hyphens=False, break_long_words=False, tabsize=4
    ) or [""]


def wrapped_lines(text: str, columns: int | None, hang: int = 2) -> str:
    """Wrap each line of a text."""
    return "\n".join(part for line in text.split("\n") for part in wrapped(line, columns, hang))
