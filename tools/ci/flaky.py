"""The list of flaky tests, `docs/development/flaky.md`."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path("docs/development/flaky.md")
MOST = 5
"""Number of tests that the list may hold."""
_ROW = re.compile(r"^\| `(tests/[^`]+)` \|[^|]*\| *([^|\s][^|]*?) *\|$", re.MULTILINE)


def listed(page: str) -> dict[str, str]:
    """Return the listed tests with their causes. A test is listed without the parameters of its cases."""
    return dict(_ROW.findall(page))


def problems(page: str, root: Path) -> list[str]:
    """Return what is wrong with the list: too many tests, a test that does not exist, a row without a cause."""
    tests = listed(page)
    rows = sum(line.startswith("| `") for line in page.splitlines())
    found = [f"{len(tests)} tests are listed, at most {MOST} may be: correct one"] if len(tests) > MOST else []
    if rows != len(tests):
        found.append(f"{rows} rows, but {len(tests)} with a test, a date and a cause")
    for test in tests:
        file, _, name = test.partition("::")
        path = root / file
        if not path.is_file() or f"def {name.rpartition('::')[2]}(" not in path.read_text():
            found.append(f"{test} does not exist")
    return found


def line_about(test: str, page: str) -> str:
    """Return the line that reports a test that failed and then passed."""
    name = test.partition("[")[0]
    advice = "listed" if name in listed(page) else f"add it to {PAGE} with its cause"
    return f"flaky: {test} ({advice})"
