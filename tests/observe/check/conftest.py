"""What all rules say of each test's records: answers.json has it by test.

A test asserts what it is about; what the other rules say of its records must not change unnoticed either. If it should:
FROG_REWRITE_GOLDEN=1 pytest -n 0 tests/observe/check, and read the difference.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frog.core.errors import RunError
from frog.observe.check.answers import answers_as_json, answers_of
from frog.observe.check.rank_records import read_records

ANSWERS = Path(__file__).with_name("answers.json")
REWRITES = bool(os.environ.get("FROG_REWRITE_GOLDEN"))
ASKED = ("test_rules_on_records.py", "test_check_answers.py", "test_resumed_epochs.py")
"""Files whose tests write their records by hand."""


def facts_of(folder: Path) -> Any:
    """Return what is broken, how much held, and a sum of why rules were not checked; None without records."""
    try:
        answers = answers_as_json(answers_of(read_records(folder)))
    except RunError as error:
        return str(error).replace(str(folder), "")
    if not answers:
        return None
    broken = [
        [answer[name] for name in ("rule", "sure", "step", "ranks", "line", "finding", "evidence")]
        for answer in answers
        if answer["outcome"] == "broken"
    ]
    reasons = [f"{answer['rule']}: {answer['why']}" for answer in answers if answer["outcome"] == "not checked"]
    held = sum(answer["outcome"] == "held" for answer in answers)
    return [*broken, f"{held} held, {len(reasons)} not checked: {zlib.crc32(' '.join(reasons).encode()):x}"]


@pytest.fixture(scope="session")
def answers() -> Iterator[dict[str, Any]]:
    known: dict[str, Any] = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    yield known
    if REWRITES:
        lines = [f"{json.dumps(test)}: {json.dumps(facts)}" for test, facts in sorted(known.items())]
        ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@pytest.fixture(autouse=True)
def _same_answers(request: pytest.FixtureRequest, answers: dict[str, Any]) -> Iterator[None]:
    folder = request.getfixturevalue("tmp_path") if request.path.name in ASKED else None
    yield
    facts = facts_of(folder) if folder is not None else None
    if facts is None:
        return
    place = f"{request.path.name}::{request.node.name}"
    facts = json.loads(json.dumps(facts))
    if REWRITES:
        answers[place] = facts
    assert answers.get(place) == facts, "if the new answers are right, rewrite answers.json: see conftest.py"
