"""The error file that a rank leaves for its agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mutations import held_to_its_schema

from frog.core.errors import CommError, ErrorFacts, report_error
from frog.core.runs.event_schema import ReportedError
from frog.core.schema import convert
from frog.launch.torchrun.error_file import leave_error, read_error


def test_agent_reads_the_facts_of_its_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    facts = ErrorFacts(cause="closed", op="all_reduce", axis="dp", seq=7, waited_s=0.5)
    error = CommError("all_reduce failed", "look at the others", facts)
    leave_error(error, report_error(error))
    report, traceback = read_error(str(path), 1.0)
    read = convert(report, ReportedError, str(path))
    assert (read.type, read.message, read.hint, read.facts) == (
        "CommError", "all_reduce failed", "look at the others", facts,
    )  # fmt: skip
    assert traceback is not None


@pytest.mark.parametrize(
    ("message", "kind", "words"),
    [
        ({"message": "ValueError: no frogs: none", "extraInfo": {}}, "ValueError", "no frogs: none"),
        ("killed by itself", "Error", "killed by itself"),
    ],
)
def test_error_of_another_program_keeps_torchs_text(message: object, kind: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": message}))
    report, _ = read_error(str(path), 2.0)
    read = convert(report, ReportedError, str(path))
    assert (read.type, read.message, read.unix_ns) == (kind, words, 2_000_000_000)


@pytest.mark.parametrize("content", [None, "", "[]", "{}"])
def test_killed_rank_leaves_no_error(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    if content is not None:
        path.write_text(content)
    assert read_error(str(path), 1.0) == (None, None)


def test_error_file_with_wrong_values_is_read_as_far_as_possible(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    frog = {"type": "ValueError"}
    own = {"message": "ValueError: no frogs", "extraInfo": {"py_callstack": "Traceback"}, "frog": frog}
    path.write_text(json.dumps({"message": own}))
    held_to_its_schema(path, lambda: read_error(str(path), 1.0))
