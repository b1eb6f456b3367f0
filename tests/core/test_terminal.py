"""What a terminal and a pipe get: wrapped lines, colours, characters that their encoding has; and what they give."""

from __future__ import annotations

import io
import os
import sys

import pytest

from frog.core import startup
from frog.core.console import console
from frog.core.terminal import (
    PrintableStream,
    beneath,
    discard_typed_ahead,
    encodable,
    printable,
    printable_lines,
    printable_output,
    read_line,
    shows_colour,
    terminal_columns,
    wrapped,
    wrapped_lines,
)


class Stream(io.StringIO):
    """A text stream that says what it is."""

    def __init__(self, text: str = "", *, is_terminal: bool = False, encoding: str | None = "utf-8") -> None:
        super().__init__(text)
        self._is_terminal, self._encoding = is_terminal, encoding

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def encoding(self) -> str | None:  # type: ignore[override]
        return self._encoding


LINE = "one two three four five six"


@pytest.mark.parametrize(
    ("line", "columns", "lines"),
    [
        (LINE, None, [LINE]),
        (LINE, len(LINE), [LINE]),
        (LINE, len(LINE) - 1, ["one two three four five", "  six"]),
        (LINE, 12, ["one two", "  three four", "  five six"]),
        ("    indented by four columns", 20, ["    indented by four", "      columns"]),
        ("a-b-c d-e-f g-h-i", 8, ["a-b-c", "  d-e-f", "  g-h-i"]),
        ("see /a/very/long/path now", 8, ["see", "  /a/very/long/path", "  now"]),
        ("          deep words here", 15, ["          deep", "       words", "       here"]),
        ("", 40, [""]),
        (" " * 50, 40, [""]),
    ],
)
def test_line_is_wrapped_between_words_and_indented(line: str, columns: int | None, lines: list[str]) -> None:
    assert wrapped(line, columns) == lines


def test_continuation_lines_hang_as_far_as_asked() -> None:
    assert wrapped("one two three four", 12, hang=5) == ["one two", "     three", "     four"]
    assert wrapped("one two three four", 12, hang=0) == ["one two", "three four"]
    assert wrapped_lines("one two three\n\nfour", 8) == "one two\n  three\n\nfour"
    assert wrapped_lines("one two three\nfour", 10, hang=4) == "one two\n    three\nfour"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\x00\x08\x0b\x1f", r"\x00\x08\x0b\x1f"),
        ("\x7f\x80\x9f", r"\u007f\u0080\u009f"),
        ("\u061c\u200e\u200f", r"\u061c\u200e\u200f"),
        ("\u2028\u202e\u2066\u2069", r"\u2028\u202e\u2066\u2069"),
        ("\ud800\udfff", r"\ud800\udfff"),
        ("a\tb\r\nc\rd\ne", r"a b\nc\x0dd\ne"),
        ("\x1b[1;31mred\x1b[0m \x1b[4:3mcurly \x1b[2J", r"red curly \x1b[2J"),
        ("\xa0\u200b\u2027\u2065\u206a\ue000", "\xa0\u200b\u2027\u2065\u206a\ue000"),
    ],
)
def test_steering_characters_are_escaped_and_their_neighbours_are_not(text: str, line: str) -> None:
    assert printable(text) == line
    assert printable(f"a{text}z") == f"a{line}z"


def test_lines_and_tabs_can_be_kept() -> None:
    assert printable_lines("a\tb\r\nc\n\x07") == "a\tb\nc\n\\x07"
    assert printable_lines("plain, 蛙") == "plain, 蛙"


def test_characters_that_an_encoding_lacks_are_replaced() -> None:
    assert encodable("é✓", Stream(encoding="latin-1"), "replace") == "é?"
    assert encodable("✓", Stream(encoding="ascii"), "backslashreplace") == "\\u2713"
    assert encodable("✓", Stream(encoding=None), "replace") == "✓"


def test_printable_stream_counts_the_characters_that_it_was_given() -> None:
    inner = Stream(encoding="ascii")
    stream = PrintableStream(inner)
    assert stream.write("é\x07") == 2
    assert inner.getvalue() == "\\xe9\\x07"
    assert stream.isatty() is False
    assert beneath(stream) is inner  # type: ignore[arg-type]
    assert beneath(inner) is inner


def test_output_of_a_block_is_printable_once(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Stream(), Stream()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with printable_output(), printable_output():
        print("\x07")
        print("\x08", file=sys.stderr)
    print("\x07")
    assert (out.getvalue(), err.getvalue()) == ("\\x07\n\x07\n", "\\x08\n")
    assert (sys.stdout, sys.stderr) == (out, err)


@pytest.mark.parametrize(
    ("is_terminal", "variables", "expected"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {}, True),
        (True, {"NO_COLOR": ""}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {"TERM": "xterm"}, False),
    ],
)
def test_colours_need_a_terminal_that_has_and_wants_them(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, variables: dict[str, str], expected: bool
) -> None:
    monkeypatch.setattr(sys, "stdout", Stream(is_terminal=is_terminal))
    monkeypatch.setattr(os, "environ", variables)
    assert shows_colour() == expected


def test_only_a_terminal_has_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    monkeypatch.setattr(sys, "stdout", Stream())
    assert terminal_columns() is None
    assert terminal_columns(Stream(is_terminal=True)) == 77
    monkeypatch.setattr(sys, "stdout", Stream(is_terminal=True))
    assert terminal_columns() == 77
    assert terminal_columns(Stream()) is None


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        *[("yes\nno\n", "yes\n"), ("yes", "yes"), ("\n", "\n")],
        *[("x" * 9999, "x" * 9999), ("x" * 9998 + "\n", "x" * 9998 + "\n")],
    ],
    ids=range(5),
)
def test_answer_in_a_pipe_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, line: str
) -> None:
    monkeypatch.setattr(sys, "stdin", Stream(typed))
    discard_typed_ahead()  # only of a terminal
    assert read_line("really? ") == line
    assert capsys.readouterr().out == "really? "


@pytest.mark.parametrize("typed", ["", "x" * 10_000, "x" * 20_000], ids=range(3))
def test_end_of_the_input_and_an_endless_line_are_no_answer(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    monkeypatch.setattr(sys, "stdin", Stream(typed))
    with pytest.raises(EOFError):
        read_line("")


def test_table_has_no_padding_in_a_pipe_and_keeps_it_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"TERM": "xterm", "COLUMNS": "20"})
    shown = {}
    for is_terminal in (False, True):
        stream = Stream(is_terminal=is_terminal)
        monkeypatch.setattr(sys, "stdout", stream)
        drawn = console(width=12)
        drawn.print("a", "b   \nc", soft_wrap=True)
        assert drawn.file.write("  \n") == 3
        shown[is_terminal] = stream.getvalue()
    assert shown == {False: "a b\nc\n\n", True: "a b   \nc\n  \n"}


@pytest.mark.parametrize(
    ("words", "name", "module", "is_command", "is_own"),
    [
        (["python", "-m", "frog", "runs"], "x", "frog", True, True),
        (["python", "-m", "frog.cli"], "x", "frog.cli", True, True),
        (["python", "-X", "dev", "-W", "error", "-u", "-m", "frog.train"], "x", "frog.train", False, True),
        (["python", "-c", "-m frog"], "-c", "", False, False),
        (["python", "-c", "import x", "-m", "frog"], "-c", "", False, False),
        (["python", "my.py", "-m", "frog"], "my.py", "", False, False),
        (["python", "/usr/bin/frog", "runs"], "/usr/bin/frog", "", True, True),
        (["python", "-X", "-m", "frog"], "frog/my.py", "", False, False),
        (["python", "-m", "frogs"], "x", "frogs", False, False),
        (["python", "-m"], "", "", False, False),
        (["python"], "", "", False, False),
    ],
)
def test_process_of_frogs_is_known_by_its_words(
    monkeypatch: pytest.MonkeyPatch, words: list[str], name: str, module: str, is_command: bool, is_own: bool
) -> None:
    monkeypatch.setattr(sys, "orig_argv", words)
    monkeypatch.setattr(sys, "argv", [name])
    assert (startup._module(), startup.is_command(), startup.is_own()) == (module, is_command, is_own)
