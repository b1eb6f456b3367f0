"""The precision of `frog slurm explain` on published job files, by severity.

    python benchmarks/wild_jobfiles.py FOLDER

The folder contains the files of tests/cluster/jobfile/wild.toml under any names: they are identified by sha256.
Findings without a verdict are counted separately, and so are verdicts whose finding is no longer reported. A file with
lines that Frog did not understand must never be called free of traps: if it is, it is named.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tomllib
from collections import Counter
from pathlib import Path

from frog.cluster.jobfile.explain import Explanation, explain_file

ROOT = Path(__file__).parents[1]
KINDS = ("will fail", "may hang or waste", "advice")


def main(folder: Path) -> None:
    judged = {
        item["sha256"]: item for item in tomllib.loads((ROOT / "tests/cluster/jobfile/wild.toml").read_text())["file"]
    }
    folder = folder.resolve()
    os.chdir(folder)  # the caller's current folder must not affect the result
    found = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in sorted(folder.iterdir())}
    told: Counter[tuple[str, str]] = Counter()
    silent = lost = missed = wrongly = 0
    for digest in judged.keys() & found.keys():
        item, explanation = judged[digest], explain_file(found[digest])
        verdicts = {key: verdict for verdict in ("true", "debatable", "false") for key in item.get(verdict, ())}
        for finding in explanation.findings:
            told[finding.kind, verdicts.pop(f"{finding.line}:{finding.code}", "not judged")] += 1
        for key in verdicts:
            print(f"no longer reported: {item['repository']} {item['path']} {key}")
        silent += not explanation.findings
        lost += loses_the_thread(explanation)
        if loses_the_thread(explanation) and says_no_traps(explanation):
            wrongly += 1
            print(f"no traps, although lines were not understood: {item['repository']} {item['path']}")
        missed += len(item.get("missed", ()))
    files = judged.keys() & found.keys()
    repositories = len({judged[digest]["repository"] for digest in files})
    print(f"{len(files)} of {len(judged)} files from {repositories} repositories")
    print(f"{silent} without findings, {lost} with lines that were not understood; {missed} true traps missed")
    print(f"{wrongly} called free of traps although some lines were not understood")
    print(
        f"{'':20}{'found':>6}{'true':>6}{'debatable':>11}{'false':>7}{'not judged':>12}{'precision':>11}{'strict':>8}"
    )
    for kind in (*KINDS, "all"):
        row = {verdict: sum(told[each, verdict] for each in KINDS if kind in (each, "all"))
               for verdict in ("true", "debatable", "false", "not judged")}  # fmt: skip
        count = sum(row.values())
        right = (row["true"] + row["debatable"]) / count if count else 1.0
        print(f"{kind:20}{count:>6}{row['true']:>6}{row['debatable']:>11}{row['false']:>7}{row['not judged']:>12}"
              f"{right:>11.0%}{row['true'] / count if count else 1.0:>8.0%}")  # fmt: skip


def loses_the_thread(explanation: Explanation) -> bool:
    return any(each.shell.not_understood for each in (explanation.job, *explanation.nested))


def says_no_traps(explanation: Explanation) -> bool:
    """True if the explanation reports no traps without limiting that to the lines that Frog understood."""
    return not explanation.traps and not explanation.partial


if __name__ == "__main__":
    main(Path(sys.argv[1]))
