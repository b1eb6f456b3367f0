"""`python -m tools.ci.verified`: after a run of the whole suite, write its commit and counts to `.ci/verified`."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

from tools.affected.changes import VERIFIED, current_commit
from tools.ci.run_tests import LAST_RUN

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Write the file, or say why the last run does not verify this commit."""
    path = ROOT / LAST_RUN
    facts: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if problem := why_not(facts, current_commit(ROOT)):
        print(f"make verified: {problem}\n  try: make test-all", file=sys.stderr)
        return 1
    text = verified_text(facts, datetime.date.today().isoformat())
    (ROOT / VERIFIED).write_text(text)
    print(text, end="")
    return 0


def why_not(facts: dict[str, Any], commit: str) -> str | None:
    """Return why a run does not verify a commit; None if it does."""
    if not facts:
        return f"{LAST_RUN} does not exist: no run has ended here"
    if facts["commit"] != commit:
        return f"the last run tested commit {facts['commit'][:12]}, but this is {commit[:12]}"
    if not facts["is_clean"]:
        return "the last run tested changes that are not committed"
    if not facts["is_whole"]:
        return "the last run was not of the whole suite"
    if facts["exit_code"] != 0:
        return "the last run failed"
    return None


def verified_text(facts: dict[str, Any], date: str) -> str:
    """Return the text of `.ci/verified`."""
    lines = [
        "# The whole suite last passed on this commit: `make affected` compares with it, `make verified` moves it."
    ]
    lines += [f'commit = "{facts["commit"]}"', f'date = "{date}"']
    lines += [f"{name} = {facts[name]}" for name in ("passed", "skipped", "alone", "flaky", "minutes")]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
