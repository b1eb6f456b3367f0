"""Run small programs with the causes of public reports, and judge what `frog diagnose` says.

    python benchmarks/reported_hangs.py [--set N] [--only WORD ...] [--keep FOLDER [--judge]] [--timeout S]

`reported_hangs/` has the programs; their first lines name the reports. `reported_hangs/expected.toml` has the answers
that are right, which were written before the first run. One row per program: whether the rank, the line and the cause
are right, whether the answer calls itself certain, and the answer. A cause is right if the kind is, and the text names
what a reader would look for.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.launch.harness import kill_tree
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.program_diagnosis import diagnose_folder

FOLDER = Path(__file__).with_suffix("")
MARK = "  # here"
DEADLINE_S = 12


@dataclass(frozen=True)
class Verdict:
    """What is right about a diagnosis."""

    rank: bool
    line: bool
    cause: bool
    found: Diagnosis

    @property
    def right(self) -> bool:
        return self.rank and self.line and self.cause


def run(sources: dict[str, str], nproc: int, folder: Path, timeout_s: float) -> None:
    """Run program.py to its end in a folder, with the modules that it imports, unless that has been done."""
    if (folder / "runs").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source.replace(MARK, ""))
    words = ["run", "--nproc", str(nproc), "--threads", "1", "--deadline", str(DEADLINE_S), "--", "program.py"]
    with open(folder / "output.txt", "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "frog.cli", *words],
            cwd=folder,
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout_s)
        finally:
            if process.poll() is None:
                kill_tree(process)


def judge(sources: dict[str, str], expected: dict[str, Any], found: Diagnosis) -> Verdict:
    """Compare a diagnosis with what was expected."""
    lines = {
        (name, str(number))
        for name, source in sources.items()
        for number, line in enumerate(source.splitlines(), 1)
        if line.endswith(MARK)
    }
    said = f"{found.finding} {found.advice}"
    places = " ".join(filter(None, (found.line, found.peer_line, found.finding)))
    named = set(re.findall(r"(\w+)\.py:(\d+)", places))
    return Verdict(
        found.rank in expected["rank"],
        bool(named & lines),
        found.fault in expected["faults"] and re.search(expected["says"], said) is not None,
        found,
    )


def main() -> None:
    """Run the programs and print one row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", type=int, help="only the programs that were kept aside together: 6 to 17")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD")
    parser.add_argument("--keep", type=Path, help="keep the folders of the runs, and run only what is missing there")
    parser.add_argument("--judge", action="store_true", help="run nothing: judge what --keep has")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="seconds until a program is ended")
    args = parser.parse_args()
    every = tomllib.loads((FOLDER / "expected.toml").read_text())
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="frog-reported-") as scratch:
        root = (args.keep or Path(scratch)).resolve()
        for name, expected in every.items():
            if not any(word in name for word in args.only) or args.set not in (None, expected["set"]):
                continue
            sources = {"program": (FOLDER / f"{name}.py").read_text()}
            sources |= {module: (FOLDER / f"{module}.py").read_text() for module in expected.get("modules", ())}
            if not args.judge:
                run(sources, expected["nproc"], root / name, args.timeout)
            verdict = judge(sources, expected, diagnose_folder(root / name / "runs" / "program"))
            verdicts.append(verdict)
            marks = " ".join("yes" if mark else "NO " for mark in (verdict.rank, verdict.line, verdict.cause))
            sure = "certain" if verdict.found.certain else "likely"
            print(f"{name:20} {marks}  {sure:7} {verdict.found.fault}: {verdict.found.finding}", flush=True)
    certain_and_wrong = sum(one.found.certain and not one.right for one in verdicts)
    print(
        f"\nof {len(verdicts)}: rank right in {sum(one.rank for one in verdicts)}, line in "
        f"{sum(one.line for one in verdicts)}, cause in {sum(one.cause for one in verdicts)}, all three in "
        f"{sum(one.right for one in verdicts)}; certain and not right: {certain_and_wrong}"
    )


if __name__ == "__main__":
    main()
