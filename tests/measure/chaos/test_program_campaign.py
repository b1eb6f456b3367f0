"""The campaign on a plain program: its cases, and how it judges a diagnosis. Nothing is run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from frog.observe.diagnose.diagnosis import Diagnosis

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def campaign(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import program_campaign

    yield program_campaign
    for name in ("program_campaign", "planted_bugs"):
        sys.modules.pop(name, None)


def test_every_case_is_a_program_without_marks_or_frog(campaign: ModuleType) -> None:
    for world in (2, 4):
        for case in campaign.cases(world, seed=1):
            ast.parse(case.source)
            assert "# here" not in case.source, case.name
            assert "import frog" not in case.source
            assert all(rank < world for rank in case.ranks)
            assert max(case.lines, default=1) <= case.source.count("\n")


def test_two_ranks_have_each_fault_on_both_ranks(campaign: ModuleType) -> None:
    ranks: dict[str, set[int | None]] = {}
    for case in campaign.cases(2, seed=1):
        ranks.setdefault(case.name, set()).add(case.rank)
    assert {frozenset(found) for found in ranks.values()} == {frozenset({0, 1}), frozenset({0}), frozenset({None})}


def test_answer_is_right_only_with_rank_line_and_kind(campaign: ModuleType) -> None:
    case = next(case for case in campaign.cases(2, seed=1) if case.name == "crash: segfault")
    (line,), (rank,) = case.lines, case.ranks
    right = Diagnosis("crash", "", rank=rank, line=f"train.py:{line} (train)")
    assert campaign.judge(case, right).right
    for wrong in ({"rank": 1 - rank}, {"line": f"train.py:{line + 1}"}, {"line": None}, {"fault": "raise"}):
        assert not campaign.judge(case, right.with_more(**wrong)).right, wrong


def test_certain_and_wrong_answers_are_counted(campaign: ModuleType) -> None:
    case = next(case for case in campaign.cases(2, seed=1) if case.name == "kill")
    answers = [Diagnosis("kill", "", rank=rank, certain=sure) for rank in (0, 1) for sure in (True, False)]
    text = campaign.totals([campaign.judge(case, answer) for answer in answers])
    assert "rank right: 2 of 4 (50 %)" in text
    assert "certain: 2 of 4 (50 %); certain and wrong: 1" in text
