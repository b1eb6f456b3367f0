"""`python -m tools.ci.run_tests`: run all tests, or those that a file selects, and repeat the failed process tests.

Fast and slow tests of a file share its worlds, so they run together. Tests marked `alone` compare the times of two
clusters and follow by themselves. Then each failed test that started a process runs once more, after all others and
alone: if it passes now, the last lines say `flaky: NAME`. All other failures are final.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.affected.changes import current_commit, is_clean
from tools.ci.flaky import PAGE, line_about
from tools.ci.results import Results, read_results

ROOT = Path(__file__).parents[2]
FOLDER = Path("build/ci")
LAST_RUN = FOLDER / "last-run.json"
MOST_REPEATED = 10
"""If more tests failed, the cause is not an unlucky moment, and none is repeated."""
_NO_TESTS = 5


@dataclass
class Outcome:
    """What all sessions of pytest found."""

    passed: int = 0
    skipped: int = 0
    alone: int = 0
    """Number of passed tests of the session for tests marked `alone`."""
    failed: dict[str, bool] = field(default_factory=dict)
    """True for tests that started a process."""
    flaky: list[str] = field(default_factory=list)
    broken: int = 0
    """Exit code of a session that ended early, or 0."""

    @property
    def exit_code(self) -> int:
        return self.broken or int(bool(self.failed))


def main() -> int:
    """Run the sessions; return the exit code of pytest."""
    parser = argparse.ArgumentParser(prog="python -m tools.ci.run_tests", description=__doc__)
    parser.add_argument("-n", dest="workers", default="0", help="number of tests that run at the same time")
    parser.add_argument("--affected", metavar="FILE", help="run what this file selects")
    parser.add_argument("tests", nargs="*", help="files, folders or ids of tests; default: all")
    args = parser.parse_args()
    start = time.monotonic()
    chosen = ["-p", "tools.ci.selecting", "--affected", args.affected] if args.affected else []
    outcome = run_all(ROOT, args.workers, [*chosen, *args.tests])
    minutes = round((time.monotonic() - start) / 60)
    is_whole = not args.tests and (not args.affected or _selects_everything(Path(args.affected)))
    write_last_run(ROOT, outcome, minutes, is_whole)
    for line in closing_lines(outcome, (ROOT / PAGE).read_text()):
        print(line)
    return outcome.exit_code


def run_all(root: Path, workers: str, words: Sequence[str]) -> Outcome:
    """Run both sessions and the repetition."""
    outcome = Outcome()
    for options in (["-n", workers, "-m", "not alone"], ["-m", "alone"]):
        results = run_session(root, [*options, *words])
        outcome.passed += len(results.passed)
        outcome.skipped += results.skipped
        outcome.alone = len(results.passed)
        outcome.failed |= results.failed
        is_explained = results.exit_code != 1 or results.failed
        if results.exit_code not in (0, 1, _NO_TESTS) or not is_explained:
            outcome.broken = results.exit_code
            return outcome
    repeat_failed(root, outcome)
    return outcome


def repeat_failed(root: Path, outcome: Outcome) -> None:
    """Run each failed process test once more; move those that pass from `failed` to `flaky`."""
    again = [test for test, starts_process in outcome.failed.items() if starts_process]
    if not again or len(outcome.failed) > MOST_REPEATED:
        return
    print(f"\n{len(again)} failed tests of processes run once more, one after another", flush=True)
    results = run_session(root, ["-n", "0", *again])
    for test in again:
        if test in results.passed and test not in results.failed and results.exit_code in (0, 1):
            del outcome.failed[test]
            outcome.flaky.append(test)


def run_session(root: Path, words: Sequence[str]) -> Results:
    """Run pytest; return its results. A session that cannot write them is broken."""
    path = root / FOLDER / "results.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "tools.ci.results", "--results", str(path), *words]
    done = subprocess.run(command, cwd=root)
    if not path.exists():
        return Results(exit_code=done.returncode or 3)
    results = read_results(path)
    results.exit_code = done.returncode
    return results


def closing_lines(outcome: Outcome, page: str) -> list[str]:
    """Return the last lines of the output: final failures, then flaky tests. page: the list of flaky tests."""
    lines = [f"failed: {test}" for test in outcome.failed]
    if len(outcome.failed) > MOST_REPEATED:
        lines.append(f"more than {MOST_REPEATED} tests failed, so none was repeated")
    if outcome.broken:
        lines.append(f"a session of pytest ended with exit code {outcome.broken}")
    return [*lines, *(line_about(test, page) for test in outcome.flaky)]


def write_last_run(root: Path, outcome: Outcome, minutes: int, is_whole: bool) -> None:
    """Write what `make verified` needs to know about this run."""
    facts = {
        "commit": current_commit(root),
        "is_clean": is_clean(root),
        "is_whole": is_whole,
        "exit_code": outcome.exit_code,
        "passed": outcome.passed,
        "skipped": outcome.skipped,
        "alone": outcome.alone,
        "flaky": len(outcome.flaky),
        "minutes": minutes,
    }
    path = root / LAST_RUN
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, indent=1))


def _selects_everything(selection: Path) -> bool:
    return json.loads(selection.read_text())["everything"] is not None


if __name__ == "__main__":
    sys.exit(main())
