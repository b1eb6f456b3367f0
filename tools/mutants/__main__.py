"""`python -m tools.mutants`: draw mutants, try them, and print how many the fast tests of each room notice.

The results are lines of JSON in a file: a second call with the same file tries only what is missing. `--again` tries
its survivors again, after tests were added.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.affected.project import read_project
from tools.mutants.calls import read_calls
from tools.mutants.drawing import Mutant, draw_mutants, make_mutant
from tools.mutants.trying import Copy, fast_tests, prepare

ROOT = Path(__file__).parents[2]
SECONDS = ROOT / "build/mutants/seconds.json"
"""Times of tests, from all earlier calls."""
CALLS = ROOT / "build/mutants/calls"
"""Which functions the tests of each room call."""
FEWEST = 25
"""Mutants of the smallest rooms."""

Record = dict[str, Any]


def main() -> int:
    """Draw, try, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--room", action="append", help="a folder of src/frog; default: all, in proportion to lines")
    parser.add_argument("--under", default="", metavar="PATH", help="draw from this file or folder only")
    parser.add_argument("--count", type=int, default=300, help="number of mutants over all these rooms")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--file", type=Path, help="lines of JSON; default: build/mutants/seed-SEED.jsonl")
    parser.add_argument("--again", action="store_true", help="try the file's survivors again")
    parser.add_argument("--budget", type=float, default=120, help="seconds of tests for a mutant")
    parser.add_argument("--half", type=int, choices=(0, 1), help="every second mutant, for two processes at a time")
    parser.add_argument(
        "--record", nargs="*", metavar="TEST.py", help="only run all fast tests, or new files, and note what each calls"
    )
    parser.add_argument("--table", action="store_true", help="only print the table of the file")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    path = args.file or ROOT / f"build/mutants/seed-{args.seed}.jsonl"
    if args.under:
        args.room = [room_of(args.under)]
    rooms = args.room or sorted(each.name for each in (ROOT / "src/frog").iterdir() if (each / "README.md").exists())
    records = read_records(path)
    if args.record is not None:
        record_calls(rooms, args.record)
        return 0
    if not args.table:
        wanted = survivors(records) if args.again else drawn(rooms, args.count, args.seed, args.under)
        known = () if args.again else records.keys()
        mutants = [mutant for mutant in wanted if room_of(mutant.path) in rooms]
        if args.half is not None:
            mutants = mutants[args.half :: 2]
        try_all([mutant for mutant in mutants if key(mutant) not in known], path, args.budget)
    chosen = [record for record in read_records(path).values() if room_of(record["path"]) in rooms]
    print("\n".join(table(chosen)))
    return 0


def drawn(rooms: list[str], count: int, seed: int, under: str = "") -> list[Mutant]:
    """Return mutants of rooms in turn, so that the first ones are of all rooms."""
    files = {room: (ROOT / "src/frog" / room).rglob("*.py") for room in rooms}
    lines = {room: sum(len(path.read_text().splitlines()) for path in paths) for room, paths in files.items()}
    counts = share(lines, count)
    by_room = [draw_mutants(ROOT, room, counts[room], seed, under) for room in rooms]
    return [mutants[i] for i in range(max(counts.values())) for mutants in by_room if i < len(mutants)]


def share(lines: dict[str, int], count: int) -> dict[str, int]:
    """Return each room's part of a number of mutants: by its lines, but not below the smallest part."""
    fewest = min(FEWEST, count // len(lines))
    rest = count - fewest * len(lines)
    above = {room: max(0.0, number - sum(lines.values()) * fewest / count) for room, number in lines.items()}
    total = sum(above.values()) or 1
    return {room: fewest + round(rest * each / total) for room, each in above.items()}


def try_all(mutants: list[Mutant], path: Path, budget_s: float) -> None:
    """Try mutants and append what was found to the file; a survivor is printed at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    seconds, calls = read_seconds(), read_calls(CALLS)
    project = read_project(ROOT, ROOT / "build/affected/facts.pickle")
    prepare()
    copy = Copy(ROOT)
    try:
        for i, mutant in enumerate(mutants, 1):
            calling, others = fast_tests(project, room_of(mutant.path), mutant, seconds, calls)
            trial = copy.try_mutant(mutant, calling, others, budget_s)
            seconds |= trial.durations
            SECONDS.write_text(json.dumps(seconds))
            record = {**asdict(mutant), **asdict(trial), "calling": len(calling), "tests": len(calling + others)}
            del record["durations"]
            with path.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(f"{i}/{len(mutants)} {trial.outcome} in {trial.seconds} s {described(asdict(mutant))}", flush=True)
        check_witnesses(copy, path)
    finally:
        copy.remove()


def record_calls(rooms: list[str], files: list[str]) -> None:
    """Run the fast tests of rooms, or of files, and write what they call and how long they take."""
    CALLS.mkdir(parents=True, exist_ok=True)
    prepare()
    copy = Copy(ROOT)
    try:
        for room in sorted({file.split("/")[1] for file in files}) or rooms:
            path, new = CALLS / f"{room}.tsv", [file for file in files if file.split("/")[1] == room]
            if not new:
                path.write_text("")
            trial = copy.record(new or [f"tests/{room}"], path)
            SECONDS.write_text(json.dumps(read_seconds() | trial.durations))
            print(f"{room}: {trial.passed} tests passed in {trial.seconds} s; first failure: {trial.by}", flush=True)
    finally:
        copy.remove()


def read_seconds() -> dict[str, float]:
    """Return the known times of tests."""
    seconds: dict[str, float] = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
    return seconds


def check_witnesses(copy: Copy, path: Path) -> None:
    """Run the tests that noticed mutants on the unchanged code; what a failing one said of mutants is not counted."""
    records = read_records(path)
    tests = sorted({record["by"] for record in records.values() if "::" in record["by"]})
    failing = copy.failing(tests)
    with path.open("a") as file:
        for record in records.values():
            if record["outcome"] == "noticed" and record["by"] in failing:
                file.write(json.dumps({**record, "outcome": "doubtful"}) + "\n")


def read_records(path: Path) -> dict[tuple[str, str, int], Record]:
    """Return the last record of each mutant."""
    lines = path.read_text().splitlines() if path.exists() else []
    records: Iterable[Record] = map(json.loads, lines)
    return {(record["path"], record["operator"], record["occurrence"]): record for record in records}


def survivors(records: dict[tuple[str, str, int], Record]) -> list[Mutant]:
    """Return the mutants that no test noticed, unless their line has changed since."""
    left = []
    for record in records.values():
        place = [record[name] for name in ("path", "operator", "occurrence", "line")]
        if record["outcome"] != "noticed" and (mutant := make_mutant(ROOT, *place)).before == record["before"]:
            left.append(mutant)
    return left


def key(mutant: Mutant) -> tuple[str, str, int]:
    return mutant.path, mutant.operator, mutant.occurrence


def room_of(path: str) -> str:
    """Return the room of a file such as `src/frog/plan/memory.py`."""
    return path.split("/")[2]


def described(record: Record) -> str:
    return f"{record['path']}:{record['line']}: `{record['before']}` became `{record['after']}`"


def table(records: list[Record]) -> list[str]:
    """Return a Markdown table by room, and the survivors."""
    lines = ["| room | mutants | noticed | in time-outs | not reached |", "|---|---|---|---|---|"]
    rooms = sorted({room_of(record["path"]) for record in records})
    for room in [*rooms, "all"]:
        of_room = [record for record in records if room in ("all", room_of(record["path"]))]
        noticed = [record for record in of_room if record["outcome"] == "noticed"]
        hung = sum(record["hung"] for record in noticed)
        unreached = sum(record["outcome"] == "unreached" for record in of_room)
        lines.append(f"| {room} | {len(of_room)} | {len(noticed)} | {hung} | {unreached} |")
    left = [record for record in records if record["outcome"] != "noticed"]
    for record in sorted(left, key=lambda record: (record["path"], record["line"])):
        unfinished = ", not all tests" if record["unfinished"] else ""
        lines.append(f"{record['outcome']} ({record['passed']} tests passed{unfinished}): {described(record)}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
