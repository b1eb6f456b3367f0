"""The list of flaky tests is short, its tests exist, and each has a cause."""

from __future__ import annotations

import re
from pathlib import Path

from tools.ci.flaky import MOST, PAGE, listed, problems

ROOT = Path(__file__).parents[3]
HEAD = "| test | seen | cause |\n|---|---|---|\n"


def test_list_of_flaky_tests_is_short_and_names_tests_that_exist() -> None:
    assert problems((ROOT / PAGE).read_text(), ROOT) == []


def test_wrong_lists_are_detected() -> None:
    test = f"{Path(__file__).relative_to(ROOT).as_posix()}::test_wrong_lists_are_detected"
    row = f"| `{test}` | 2026-11-28 | a port that another process took |\n"
    assert listed(HEAD + row) == {test: "a port that another process took"}
    assert problems(HEAD + row, ROOT) == []
    assert problems(HEAD + row.replace("lists", "pages"), ROOT) == [f"{test.replace('lists', 'pages')} does not exist"]
    without_cause = row.replace("a port that another process took", "")
    assert problems(HEAD + without_cause, ROOT) == ["1 rows, but 0 with a test, a date and a cause"]
    hooks = re.findall(r"^def (\w+)", (ROOT / "tests" / "conftest.py").read_text(), re.MULTILINE)
    rows = "".join(f"| `tests/conftest.py::{name}` | 2026-11-28 | unknown |\n" for name in hooks)
    assert problems(HEAD + rows, ROOT)[:1] == [f"{len(hooks)} tests are listed, at most {MOST} may be: correct one"]
