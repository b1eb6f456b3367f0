"""Run small programs after public silent bugs, with and without the bug, and judge `frog check`.

    python benchmarks/silent_bugs.py [--only WORD ...] [--keep FOLDER [--judge]]

The programs are in silent_bugs/, after the bugs of TrainCheck and TTrace and after public reports that were kept aside
until rules were done, each with the rules and the lines that a right answer names. They were written before `frog
check` saw them; `first` is what it said then, `now` what it says since its rules were corrected on them. A row
counts as found if the right rule is broken, as certain, likely or possible; `line` tells whether the answer names a
marked line. One program runs under `frog check --against-one`, which came later, since one run cannot show its bug; one
that hangs is left to `frog diagnose`. Any certain or likely answer, or the same rule, on the program without the bug is
a false alarm. Bugs of hardware are simulated and not counted.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_suffix("")
sys.path.insert(0, str(PROGRAMS))

import kept_and_rounded  # noqa: E402
import kept_aside_ends  # noqa: E402
import kept_aside_inputs  # noqa: E402
import kept_aside_state  # noqa: E402
import resumed_epochs  # noqa: E402
import traincheck  # noqa: E402
import ttrace  # noqa: E402
from silent_case import EARLIER, Case  # noqa: E402

from frog.observe.check.answers import answers_as_json, answers_of  # noqa: E402
from frog.observe.check.rank_records import read_records  # noqa: E402
from frog.observe.diagnose.program.program_diagnosis import diagnose_folder  # noqa: E402

FROG = [sys.executable, "-c", "import sys; from frog.cli import main; sys.exit(main())"]
PAPERS = {
    "TrainCheck": traincheck.CASES,
    "TTrace": ttrace.CASES,
    "Kept aside on 2026-11-30": kept_aside_state.CASES,
    "With their rules on 2026-11-30": kept_and_rounded.CASES,
    "Before their rules on 2026-11-30": kept_aside_ends.CASES,
    "After their rules on 2026-11-30": kept_aside_ends.LATER,
    "Before their rule on 2026-11-30, resumes within an epoch": resumed_epochs.CASES,
    "Kept aside on 2026-12-01": kept_aside_inputs.CASES,
}
HEAD = f"{'bug':39s} {'rule':15s} {'first try':27s} {'now':27s} {'line':4s} {'twin':5s} paper"


def run(cases: list[Case], folder: Path) -> None:
    """Run all programs that need as many ranks in one world, and the others in worlds of their own."""
    several = [case for case in cases if not case.hangs and not case.against_one]
    for world in sorted({case.world for case in several}):
        names = [case.name for case in several if case.world == world]
        frog(folder / f"world_{world}", "run", world, str(folder), *names)
    for case in cases:
        if case.hangs:
            frog(folder / case.name / "run", "run", case.world, str(folder), case.name)
        for which in ("bug", "right") if case.against_one else ():
            own = folder / case.name / which
            text = frog(own, "check --against-one --json", case.world, "--alone", case.name, which)
            (own / "answers.json").write_text(text[text.index("\n{") :])


def frog(own: Path, command: str, world: int, *words: str) -> str:
    """Run silent_case.py under a command of Frog in a folder of its own; return what was printed."""
    own.mkdir(parents=True, exist_ok=True)
    options = [*command.split(), "--nproc", str(world), "--threads", "1", "--deadline", "20", "--"]
    env = {**os.environ, "PYTHONWARNINGS": "ignore"}
    program = [str(PROGRAMS / "silent_case.py"), *words]
    done = subprocess.run([*FROG, *options, *program], cwd=own, env=env, capture_output=True, text=True)
    (own / "output.txt").write_text(done.stdout + done.stderr)
    return done.stdout


def marked_lines(case: Case) -> set[int]:
    """Return the lines of a program's file that a right answer may name."""
    own, first = inspect.getsourcelines(case.program)
    text = Path(inspect.getsourcefile(case.program) or "").read_text().splitlines()
    found = set()
    for number, line in enumerate(text, 1):
        _, mark, names = line.partition("# bug")
        if mark and (
            any(case.name.startswith(name) for name in names.removeprefix(":").split())
            or (not names and first <= number < first + len(own))
        ):
            found.add(number)
    return found


def broken_rules(folder: Path, case: Case, which: str, alone: bool = False) -> list[dict[str, Any]]:
    """Return the rules that a program breaks, as `frog check --json` has them.

    alone: True for a resume without the records of the run that saved the checkpoint.
    """
    path = folder / case.name / which
    if case.against_one:
        found = json.loads((path / "answers.json").read_text())["rules"]
    else:
        earlier = read_records(path / EARLIER) if not alone else {}
        found = answers_as_json(answers_of(read_records(path), earlier))
    return [rule for rule in found if rule["outcome"] == "broken"]


def said(folder: Path, case: Case, alone: bool = False) -> tuple[str, str]:
    """Return what is said of a program with its bug, and whether the line is right."""
    marked = {f"{inspect.getsourcefile(case.program)}:{number}" for number in marked_lines(case)}
    if case.hangs:
        found = diagnose_folder(next((folder / case.name / "run" / "runs").iterdir()))
        line = str(PROGRAMS / found.line.split()[0]) if found.line else ""
        return f"frog diagnose: {found.fault}", "yes" if line in marked else "no"
    broken = broken_rules(folder, case, "bug", alone)
    right = [rule for rule in broken if rule["rule"] in (case.rule, *case.also)]
    if right:
        return f"found, {right[0]['sure']}", "yes" if right[0]["line"] in marked else "no"
    others = [rule["rule"] for rule in broken if rule["sure"] != "possible"]
    return (f"another rule: {others[0]}" if others else "not found"), "-"


def false_alarms(folder: Path, case: Case) -> list[str]:
    """Return the rules that accuse the program without its bug."""
    ways = (False, True) if case.twice else (False,)
    found = [rule for alone in ways for rule in broken_rules(folder, case, "right", alone)] if not case.hangs else []
    return [rule["rule"] for rule in found if rule["sure"] != "possible" or rule["rule"] in (case.rule, *case.also)]


def is_found(words: str) -> bool:
    return words.startswith(("found", "frog diagnose"))


def table(folder: Path, words: list[str]) -> Iterator[str]:
    """Yield the lines of the table."""
    totals = []
    for paper, cases in PAPERS.items():
        chosen = [case for case in cases if not words or any(word in case.name for word in words)]
        first = now = lines = counted = alarms = 0
        if chosen:
            yield f"\n{paper}\n{HEAD}"
        for case in chosen:
            what, line = said(folder, case)
            wrong = false_alarms(folder, case)
            alarms += len(wrong)
            if not case.needs:
                counted, now, first = counted + 1, now + is_found(what), first + is_found(case.first_try)
                lines += line == "yes"
            if case.twice:
                yield f"{'  the resume alone':71s}     {said(folder, case, alone=True)[0]}"
            published = f"{case.published}; needs {case.needs}, not counted" if case.needs else case.published
            row = f"{case.source:39s} {case.rule or '-':15s} {case.first_try:27s} {what:27s} {line:4s}"
            yield f"{row} {','.join(wrong) or 'quiet':5s} {published}"
        if chosen:
            totals.append((counted, first, now, lines, alarms))
            yield "\n" + _total(*totals[-1])
    if len(totals) > 1:
        yield "\nall: " + _total(*(sum(each) for each in zip(*totals, strict=True)))


def _total(counted: int, first: int, now: int, lines: int, alarms: int) -> str:
    return f"{counted} bugs: found at first {first}, now {now}, {lines} with a marked line; false alarms {alarms}"


def main() -> None:
    """Run the programs, or judge what was kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="programs with a word in their name")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the records here")
    parser.add_argument("--judge", action="store_true", help="run nothing, judge the records in --keep again")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.keep or Path(temporary)).resolve()
        chosen = [
            case
            for cases in PAPERS.values()
            for case in cases
            if not args.only or any(word in case.name for word in args.only)
        ]
        if not args.judge:
            run(chosen, folder)
        for line in table(folder, args.only):
            print(line)


if __name__ == "__main__":
    main()
