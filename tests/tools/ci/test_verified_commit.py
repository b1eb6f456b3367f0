"""`make verified` accepts only a whole run of this commit that passed."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from tools.ci.verified import verified_text, why_not

PASSED: dict[str, Any] = {
    "commit": "a" * 40,
    "is_clean": True,
    "is_whole": True,
    "exit_code": 0,
    "passed": 10,
    "skipped": 1,
    "alone": 2,
    "flaky": 0,
    "minutes": 3,
}


def test_whole_passed_run_is_written() -> None:
    assert why_not(PASSED, "a" * 40) is None
    read = tomllib.loads(verified_text(PASSED, "2026-11-28"))
    counts = {"passed": 10, "skipped": 1, "alone": 2, "flaky": 0, "minutes": 3}
    assert read == {"commit": "a" * 40, "date": "2026-11-28", **counts}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"commit": "b" * 40}, "tested commit bbbbbbbbbbbb, but this is aaaaaaaaaaaa"),
        ({"is_clean": False}, "not committed"),
        ({"is_whole": False}, "not of the whole suite"),
        ({"exit_code": 1}, "the last run failed"),
    ],
)
def test_other_runs_are_refused(change: dict[str, Any], problem: str) -> None:
    assert problem in (why_not(PASSED | change, "a" * 40) or "")
    assert "no run has ended here" in (why_not({}, "a" * 40) or "")
