"""Foreign text cannot control the terminal, whatever it contains; and only one module creates consoles."""

from __future__ import annotations

import io
import json
import re
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frog.core.console import console
from frog.core.terminal import print_coloured, printable, printable_lines, printable_output

SOURCE = Path(__file__).parents[2] / "src/frog"
ANY = st.text(st.characters(codec=None) | st.sampled_from("\x1b[31m\r\n\t\x9b\u202e\ud800[/]\\"))
any_time = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def steers(text: str) -> bool:
    return any(unicodedata.category(char) in ("Cc", "Cs") or unicodedata.bidirectional(char) in BIDI for char in text)


BIDI = ("LRE", "LRO", "RLE", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


@any_time
@given(ANY)
def test_printable_gives_one_line_without_control_characters(text: str) -> None:
    found = printable(text)
    assert not steers(found)
    assert found.splitlines() in ([], [found])


@any_time
@given(ANY)
def test_printable_lines_keeps_line_breaks(text: str) -> None:
    assert not steers(printable_lines(text).replace("\n", "").replace("\t", ""))


@any_time
@given(st.text(st.characters(codec="utf-8")))
def test_printable_json_has_the_same_value(text: str) -> None:
    line = json.dumps(text, ensure_ascii=False)
    assert json.loads(printable_lines(line)) == text


def test_printable_escapes_control_characters() -> None:
    assert printable("a\x1b[31mred\x1b[0m\r\x1b]0;t\x07\n\ud800") == r"ared\x0d\x1b]0;t\x07\n\ud800"
    assert printable("wörter, 蛙, 🐸") == "wörter, 蛙, 🐸"


def test_printable_output_cleans_a_programs_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.BytesIO()
    out = io.TextIOWrapper(data, encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", out)
    with printable_output():
        print("\x1b[2J é\ud800", flush=True)
        print_coloured("\x1b[1mbold\x1b[0m")
    assert sys.stdout is out
    assert data.getvalue() == b"\\x1b[2J \\xe9\\ud800\n\x1b[1mbold\x1b[0m\n"


def test_print_coloured_keeps_only_frogs_colours(capsys: pytest.CaptureFixture[str]) -> None:
    print_coloured("\x1b[32m✓\x1b[0m \x1b[2J \r")
    assert capsys.readouterr().out == "\x1b[32m✓\x1b[0m \\x1b[2J \\x0d\n"


def test_console_does_not_interpret_markup(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("[bold]x[/bold] [/b] \x1b]0;t")
    assert capsys.readouterr().out == "[bold]x[/bold] [/b] \\x1b]0;t\n"


def test_only_one_module_creates_consoles() -> None:
    made = [path for path in SOURCE.rglob("*.py") if re.search(r"\bConsole\(", path.read_text())]
    assert made == [SOURCE / "core/console.py"]
