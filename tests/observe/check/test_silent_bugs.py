"""What `frog check` says of the programs after known bugs stays as it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

# by its file: another benchmark is called observe.py, as the folder of these tests
spec = importlib.util.spec_from_file_location(
    "silent_bugs", Path(__file__).parents[3] / "benchmarks" / "silent_bugs.py"
)
assert spec is not None
assert spec.loader is not None
silent_bugs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(silent_bugs)
Case = silent_bugs.Case

RESUMED = ("begins_the_epoch_again", "restores_all_but_the_loader", "restarts_within_an_epoch")
"""By hand, by accelerate and by Lightning; test_resumed_epochs.py has the records of all kinds."""
CASES = [
    *silent_bugs.PAPERS["TrainCheck"],
    *silent_bugs.PAPERS["TTrace"],
    *silent_bugs.PAPERS["With their rules on 2026-11-30"],
    *silent_bugs.PAPERS["Before their rules on 2026-11-30"],
    *(case for case in silent_bugs.resumed_epochs.CASES if case.name in RESUMED),
]
TOGETHER = [case for case in CASES if not case.hangs and not case.against_one]
"""Without those that run alone: the tests of `frog diagnose` and of `--against-one` hold these."""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all programs with and without their bugs."""
    folder = tmp_path_factory.mktemp("silent")
    silent_bugs.run(TOGETHER, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in TOGETHER if case.rule], ids=lambda case: case.name)
def test_bug_is_found_at_a_marked_line(records: Path, case: Case) -> None:
    words, line = silent_bugs.said(records, case)
    assert silent_bugs.is_found(words), words
    assert line == ("no" if case.rule == "words" else "yes")  # the helper that adds is in another file


@pytest.mark.slow
@pytest.mark.parametrize("case", TOGETHER, ids=lambda case: case.name)
def test_program_without_the_bug_is_not_accused(records: Path, case: Case) -> None:
    assert silent_bugs.false_alarms(records, case) == []
