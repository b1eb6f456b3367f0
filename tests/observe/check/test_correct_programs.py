"""No correct program is accused, and what it does is recorded to its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Harness
from observe.check.correct_programs import PROGRAMS

from frog.observe.check.answers import answers_of, broken_rules
from frog.observe.check.rank_records import read_records

FILE = Path(__file__).parent / "correct_programs.py"
WORLD = 4


@pytest.fixture(scope="module")
def records(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all programs in one world."""
    folder = tmp_path_factory.mktemp("correct")
    harness.run("frog", "run", "--nproc", str(WORLD), "--threads", "1", "--", str(FILE), str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_correct_program_is_not_accused(records: Path, program: Callable[[Path], None]) -> None:
    ranks = read_records(records / program.__name__)
    assert [(rank, record.stopped) for rank, record in ranks.items()] == [(rank, "") for rank in range(WORLD)]
    assert all(len(record.steps) > 3 and record.end is not None for record in ranks.values())
    broken = [(answer.rule.name, answer.broken) for answer in broken_rules(answers_of(ranks))]
    assert [(name, why) for name, why in broken if why is not None and why.sure != "possible"] == []
