"""Training that is divided among four ranks equals training on one; a planted bug is the first tensor that differs."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Harness
from observe.check.divided_programs import CASES, STEPS, Case

from frog.observe.check.against_one import Against, against_one
from frog.observe.check.rank_records import read_records
from frog.observe.check.rule import apply_rules
from frog.observe.check.rules_against_one import RULES_AGAINST_ONE

PROGRAMS = Path(__file__).parent / "divided_programs.py"
RANKS = {"many": 4, "one": 1, "rounded": 1}


@pytest.fixture(scope="module")
def records(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all programs on four ranks, and twice on one."""
    folder = tmp_path_factory.mktemp("divided")
    for name, ranks in RANKS.items():
        words = ("--nproc", str(ranks), "--threads", "1", "--", str(PROGRAMS), str(folder / name))
        env = {"FROG_CHECK_MODULES": name, "PYTHONPATH": str(PROGRAMS.parents[2])}
        harness.run("frog", "run", *words, env=env, warm=False)
    return folder


def compared(records: Path, case: Case, which: str) -> Against:
    found = {name: read_records(records / name / case.name / which) for name in RANKS}
    assert [record.stopped for ranks in found.values() for record in ranks.values()] == [""] * 6
    return against_one(found["many"], found["one"][0], found["rounded"][0])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_planted_bug_is_the_first_difference(records: Path, case: Case) -> None:
    against = compared(records, case, "bug")
    found = [(answer.rule.name, answer.broken) for answer in apply_rules(RULES_AGAINST_ONE, against) if answer.broken]
    assert against.first is not None
    assert [(rule, against.first.name, broken.sure) for rule, broken in found] == [(case.rule, case.first, case.sure)]
    assert case.says in found[0][1].finding


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_program_without_its_bug_equals_one_rank(records: Path, case: Case) -> None:
    against = compared(records, case, "right")
    assert [answer.broken for answer in apply_rules(RULES_AGAINST_ONE, against)] == [None] * 4
    assert against.step == STEPS or "rounding alone" in against.ended
    assert min(against.counts[kind] for kind in ("start", "output", "gradient", "weight")) > 0
    # what rounding changes is far below what is allowed, and what a bug changes far above
    assert against.closest < 0.5
