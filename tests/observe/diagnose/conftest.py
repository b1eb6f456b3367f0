"""What each test's evidence is diagnosed as, all facts and numbers of it: answers.json has them by test.

A test asserts what it is about; the rest of its answer must not change unnoticed either. If it should, rewrite the
file: FROG_REWRITE_GOLDEN=1 pytest -n 0 tests/observe/diagnose, and read the difference.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.known_errors.explain import Explanation

ANSWERS = Path(__file__).with_name("answers.json")
REWRITES = bool(os.environ.get("FROG_REWRITE_GOLDEN"))
ASKED = ("diagnose_program", "diagnose", "explain_log", "explain_lines")
"""Functions whose results count, by their names in test files."""
UNSTEADY = ("test_diagnose_live.py", "test_diagnose_command.py", "test_recorded.py")
"""Files with evidence of processes that run."""
SENTENCES = ("finding", "evidence", "advice", "meaning", "confidence", "also")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PATH = re.compile(r"/\S+")
_MOST = 20
"""A test with more answers tries many logs at random."""


def numbers_of(text: str) -> str:
    return " ".join(_NUMBER.findall(_PATH.sub("", text)))


def facts_of(found: Any) -> Any:
    """Return the fields of an answer that differ from the default, and the numbers in its sentences."""
    if isinstance(found, (list, tuple)):
        return [facts_of(each) for each in found]
    if not isinstance(found, Diagnosis):
        return numbers_of(repr(found)) if isinstance(found, Explanation) else found
    facts = {
        field.name: getattr(found, field.name)
        for field in fields(found)
        if field.name not in SENTENCES and getattr(found, field.name) != field.default
    }
    if found.outcome != "running":  # else there are ages among them
        facts["numbers"] = numbers_of(" ".join([found.finding, *found.evidence, found.advice]))
    return {**facts, "also": facts_of(found.also)} if found.also else facts


@pytest.fixture(scope="session")
def answers() -> Iterator[dict[str, list[Any]]]:
    known: dict[str, list[Any]] = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    yield known
    if REWRITES:
        lines = [f"{json.dumps(test)}: {json.dumps(facts)}" for test, facts in sorted(known.items())]
        ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@pytest.fixture(autouse=True)
def _same_answers(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, answers: dict[str, list[Any]]
) -> Iterator[None]:
    if request.path.name in UNSTEADY or sys.platform != "linux":
        yield
        return
    seen: list[Any] = []

    def watched(ask: Any) -> Any:
        def asked(*args: Any, **kwargs: Any) -> Any:
            found = ask(*args, **kwargs)
            seen.append(facts_of(found))
            return found

        return asked

    for name in ASKED:
        if hasattr(request.module, name):
            monkeypatch.setattr(request.module, name, watched(getattr(request.module, name)))
    yield
    place = f"{request.path.name}::{request.node.name}"
    facts = json.loads(json.dumps(seen, default=str)) if len(seen) <= _MOST else []
    if REWRITES:
        answers.pop(place, None)
        if facts:
            answers[place] = facts
    assert answers.get(place, []) == facts, "if the new answer is right, rewrite answers.json: see conftest.py"
