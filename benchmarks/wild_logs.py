"""How often `frog diagnose` names the cause of public issue threads, from the pasted log alone.

    python benchmarks/wild_logs.py FOLDER

The folder contains the logs of tests/observe/diagnose/known_errors/wild.toml under any names: sha256 identifies them.
For each thread, its cause was decided by reading it before the program ran; `expected` lists the answers that agree
with the cause, "none" if the log does not show it, and "exception:TYPE" for an exception that the table does not know.
`first` is the verdict of the program from before its authors read the held-out set, where it has changed.
"""

from __future__ import annotations

import hashlib
import sys
import tomllib
from collections import Counter
from pathlib import Path

from frog.observe.diagnose.known_errors.explain import Explanation, explain_log
from frog.observe.diagnose.known_errors.table.known import Level

ROOT = Path(__file__).parents[1]
VERDICTS = ("right", "symptom", "no answer", "wrong")


def main(folder: Path) -> None:
    threads = tomllib.loads((ROOT / "tests/observe/diagnose/known_errors/wild.toml").read_text())["thread"]
    logs = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in folder.iterdir() if path.is_file()}
    counts: dict[str, Counter[str]] = {}
    rows = []
    for thread in threads:
        path = logs.get(thread["sha256"])
        if path is None:
            continue
        with path.open(errors="replace") as file:
            found = explain_log(file)
        verdict = judge(found, thread["expected"])
        for name in (thread["set"], "all"):
            counts.setdefault(name, Counter())[verdict] += 1
        if thread["set"] != "development":
            for name in (f"{thread['set']}, unseen", "held out, unseen"):
                counts.setdefault(name, Counter())[thread.get("first", verdict)] += 1
        where = f"{thread['repository']}#{thread['number']}"
        rows.append(f"{thread['set']:12} {verdict:9} {answer(found):28} {where}: {thread['cause']}")
    print(f"{'set':22}{'logs':>6}" + "".join(f"{verdict:>11}" for verdict in VERDICTS))
    for name, count in sorted(counts.items()):
        print(f"{name:22}{count.total():>6}" + "".join(f"{count[verdict]:>11}" for verdict in VERDICTS))
    print("\nset          verdict   answer                       thread: its cause")
    print("\n".join(rows))


def answer(found: Explanation) -> str:
    """Return the id of the answer, as in `expected`."""
    if found.cause is None:
        return "none"
    return found.cause.id if found.cause.known else f"exception:{found.cause.exception}"


def judge(found: Explanation, expected: list[str]) -> str:
    """Compare an answer with the thread's cause; a symptom that is named as such counts separately."""
    if answer(found) in expected:
        is_symptom = found.cause is not None and found.cause.level is Level.SYMPTOM
        return "symptom" if is_symptom else "right"
    return "no answer" if found.cause is None else "wrong"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
