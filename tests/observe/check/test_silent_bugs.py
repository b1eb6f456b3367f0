"""What `frog check` says of the programs after the bugs of TrainCheck and TTrace stays as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import silent_bugs
from silent_case import Case

CASES = [case for cases in silent_bugs.PAPERS.values() for case in cases]
ALONE = [case for case in CASES if not case.hangs]
"""Without the one that hangs, which `frog diagnose` answers: its own tests hold it."""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all programs with and without their bugs."""
    folder = tmp_path_factory.mktemp("silent")
    silent_bugs.run(ALONE, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in ALONE if case.rule], ids=lambda case: case.name)
def test_bug_is_found_at_a_marked_line(records: Path, case: Case) -> None:
    words, line = silent_bugs.said(records, case)
    assert silent_bugs.is_found(words), words
    assert line == ("no" if case.rule == "words" else "yes")  # the helper that adds is in another file


@pytest.mark.slow
@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.name)
def test_program_without_the_bug_is_not_accused(records: Path, case: Case) -> None:
    assert silent_bugs.false_alarms(records, case) == []
