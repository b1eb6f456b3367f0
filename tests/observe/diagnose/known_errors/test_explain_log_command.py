"""`frog diagnose --explain-log` reads files and standard input."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from frog.cli import main
from frog.observe.diagnose.known_errors import read

ERROR = "RuntimeError: Address already in use\n"


def test_files_are_explained_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in {"a.log": "fine\n", "b.log": f"fine\n{ERROR}"}.items():
        (tmp_path / name).write_text(text)
    assert main(["diagnose", "--json", "--explain-log", str(tmp_path / "a.log"), str(tmp_path / "b.log")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["cause"]["id"], told["cause"]["line"], told["cause"]["section"]) == ("port-in-use", 2, 18)
    assert told["cause"]["file"].endswith("b.log")
    assert told["certain"]


def test_standard_input_is_explained(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(ERROR.encode() + b"\xff\x00\x1b[2J")))
    assert main(["diagnose", "--explain-log", "-"]) == 0
    assert "port-in-use" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["diagnose"],
        ["diagnose", "--explain-log", "missing.log"],
        ["diagnose", "latest", "--explain-log", "missing.log"],
    ],
)
def test_missing_log_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "try:" in capsys.readouterr().err


def test_only_the_ends_of_a_huge_log_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "HEAD", 100)
    monkeypatch.setattr(read, "TAIL", 100)
    path = tmp_path / "huge.log"
    path.write_text("start\n" + "x" * 40 + "\n" + ERROR * 50 + "y\n" * 5000 + "KeyError: 7\n")
    found = read.explain_files([str(path)])
    assert found.cause is not None
    assert found.cause.id == "port-in-use"
    assert found.lines < 100
    assert [other.exception for other in found.others] == ["KeyError"]
