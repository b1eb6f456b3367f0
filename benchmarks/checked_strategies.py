"""Frog's strategies under `frog check --against-one`, and the planted mistakes of tests/train/prove/mutants.py.

    python benchmarks/checked_strategies.py [--keep FOLDER [--judge]] [--only WORD ...]

Every strategy of the proof matrix takes five steps of a small model on 2 or 4 ranks, and on one with the same global
batch: as written, and with each of the mistakes that `frog prove` must detect. A mistake counts as found if a rule is
broken, as certain, likely or possible, that holds without the mistake; the strategies as written must break none
against one rank. What `frog check` said when it saw the mistakes first is in checked_strategies.json.

The proofs run a strategy next to another program, with full tensors and a tolerance of 1e-5; here two runs of one
program are compared, in sums, and what rounding allows is measured by a third.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIRST = Path(__file__).with_suffix(".json")
FROG = [sys.executable, "-c", "import sys; from frog.cli import main; sys.exit(main())"]
sys.path.insert(0, str(ROOT / "tests" / "train" / "prove"))

RUNS = {"many": None, "one": 1, "rounded": 1}
"""The three runs, and their ranks."""


@dataclass(frozen=True)
class Run:
    """A strategy, as written or with a planted mistake."""

    strategy: str
    world_size: int
    accumulate: bool = False
    mistake: str = ""

    @property
    def folder(self) -> str:
        words = f"{self.strategy}-{self.world_size}{'-accumulated' if self.accumulate else ''}"
        return re.sub(r"[^\w-]+", "_", f"{words}-{self.mistake or 'as_written'}")

    @property
    def as_written(self) -> Run:
        return replace(self, mistake="")


def all_runs() -> list[Run]:
    """Return the strategies of the proof matrix in their smallest world, then the mistakes."""
    from mutants import MUTANTS

    from frog.train.prove.matrix import DEFAULT_VARIANTS, SMALL_MODEL, Cell, cells

    right: dict[str, Run] = {}
    for world_size in (2, 4):
        for cell in cells(SMALL_MODEL, [world_size], ["frog"], DEFAULT_VARIANTS[:1]):
            if isinstance(cell, Cell):
                right.setdefault(cell.strategy, Run(cell.strategy, world_size))
    wrong = [Run(each.strategy, each.world_size, each.accumulate, each.name) for each in MUTANTS]
    every = [*right.values(), *(each.as_written for each in wrong), *wrong]
    return list(dict.fromkeys(every))


# ---- a rank ----------------------------------------------------------------------------------------------------------


def on_rank(folder: Path, world_size: int, names: list[str]) -> None:
    """Run the training steps of some runs on this rank. world_size: the ranks on which they are divided, or were."""
    from frog.observe.environment import HOOK

    sys.path.append(str(HOOK))
    os.environ["FROG_CHECK"] = "1"
    import torch
    from mutants import MUTANTS

    from frog.core.env import world_env
    from frog.core.processes import leave
    from frog.train.comm import join_world
    from frog.train.prove.prove_rank import spread

    env = world_env()
    world = join_world(env, torch.device("cpu"), timeout_s=60)
    planted = {(each.strategy, each.name, each.world_size): each.plant for each in MUTANTS}
    for run in all_runs():
        if run.world_size != world_size or run.folder not in names:
            continue
        plant = planted.get((run.strategy, run.mistake, run.world_size), contextlib.nullcontext)
        try:
            with plant(), recorded(folder / run.folder):
                spread(_case(run, alone=world.size == 1), world)
        except ValueError:  # a mistake that calls torch's collectives, which one rank has not
            assert world.size == 1
            shutil.rmtree(folder / run.folder)
            shutil.copytree(folder / run.as_written.folder, folder / run.folder)
        world.forget_axes()
        if world.is_main:
            print(run.folder, flush=True)
    world.barrier()
    world.leave()
    leave(0)


@contextlib.contextmanager
def recorded(folder: Path) -> Iterator[None]:
    """Record what this rank does into a folder of its own."""
    from frog_observer.checks.step_recorder import StepRecorder
    from frog_observer.checks.watched_functions import watch
    from frog_observer.place import find_place

    folder.mkdir(parents=True, exist_ok=True)
    place = find_place({**os.environ, "FROG_RUN_DIR": str(folder)}, os.getpid(), ["python"])
    assert place is not None
    recorder = StepRecorder(place, 1)
    watch(recorder)
    try:
        yield
        recorder.at_end()
    finally:
        recorder.is_on = False
        recorder.hook_modules()  # removes the hooks


def _case(run: Run, alone: bool) -> Any:
    """Return the case of a proof; on one rank the same without a division, as `frog check` runs it."""
    from frog.core.config import StrategyConfig
    from frog.train.prove.matrix import DEFAULT_VARIANTS, SMALL_MODEL, Cell, Variant, cells
    from frog.train.prove.prove_rank import Case

    variant = Variant("accumulated", accumulate=True) if run.accumulate else DEFAULT_VARIANTS[0]
    (cell,) = cells(SMALL_MODEL, [run.world_size], ["frog"], [variant], [run.strategy])
    assert isinstance(cell, Cell)
    case = Case.of(cell.fields(0), Path("cases.json"))
    if not alone:
        return case
    strategy = StrategyConfig(name=run.strategy if run.strategy == "diloco" else "ddp")
    return replace(case, config=replace(case.config, strategy=strategy))


# ---- all of them -----------------------------------------------------------------------------------------------------


def run_all(runs: list[Run], folder: Path) -> None:
    """Run everything: three worlds for the runs on 2 ranks, three for those on 4."""
    for world_size in sorted({run.world_size for run in runs}):
        names = [run.folder for run in runs if run.world_size == world_size]
        for which, ranks in RUNS.items():
            own = folder / which
            own.mkdir(parents=True, exist_ok=True)
            words = [__file__, "--rank", str(own), str(world_size), *names]
            options = ["--nproc", str(ranks or world_size), "--threads", "1"]
            env = {**os.environ, "FROG_CHECK_MODULES": which, "PYTHONPATH": ""}
            done = subprocess.run([*FROG, "run", *options, "--", *words], cwd=folder, env=env, capture_output=True)
            (own / f"output_{world_size}.txt").write_bytes(done.stdout + done.stderr)


def broken(folder: Path, run: Run) -> list[dict[str, Any]]:
    """Return the rules that a run breaks, as `frog check --json` has them."""
    from frog.observe.check.against_one import against_one
    from frog.observe.check.answers import answers_as_json, answers_of
    from frog.observe.check.rank_records import read_records
    from frog.observe.check.rule import apply_rules
    from frog.observe.check.rules_against_one import RULES_AGAINST_ONE

    many, one, rounded = (read_records(folder / which / run.folder) for which in RUNS)
    against = apply_rules(RULES_AGAINST_ONE, against_one(many, one[0], rounded[0])) if one and rounded else []
    return [rule for rule in answers_as_json([*against, *answers_of(many)]) if rule["outcome"] == "broken"]


def said(folder: Path, run: Run) -> str:
    """Return what is said of a run: of one with a mistake, what is not said without it."""
    rules = broken(folder, run)
    if run.mistake:
        known = {rule["rule"] for rule in broken(folder, run.as_written)}
        rules = [rule for rule in rules if rule["rule"] not in known]
    return ", ".join(f"{rule['rule']} ({rule['sure']})" for rule in rules) or ("not found" if run.mistake else "equal")


def table(folder: Path, runs: list[Run], first: dict[str, str]) -> Iterator[str]:
    """Yield the lines of both tables."""
    from frog.observe.check.against_one import against_one
    from frog.observe.check.rank_records import read_records

    yield f"{'strategy as written':28s} ranks  compared with one rank"
    alarms = 0
    for run in (run for run in runs if not run.mistake):
        many, one, rounded = (read_records(folder / which / run.folder) for which in RUNS)
        against = against_one(many, one[0], rounded[0]) if one and rounded else None
        share = f"{100 * against.closest:.0f} % of what rounding allows" if against is not None else "no records"
        what = said(folder, run)
        alarms += any(f"({sure})" in what for sure in ("certain", "likely"))
        yield f"{run.strategy:28s} {run.world_size:5d}  {what}; {share}; {_scope(against)}"
    wrong = [run for run in runs if run.mistake]
    yield f"\n{'strategy':18s} {'mistake':40s} {'at first sight':44s} now"
    counts = {"first": 0, "now": 0}
    for run in wrong:
        now, then = said(folder, run), first.get(run.folder, "-")
        counts["now"] += now != "not found"
        counts["first"] += then not in ("-", "not found")
        yield f"{run.strategy:18s} {run.mistake:40s} {then:44s} {now}"
    yield f"\n{len(wrong)} mistakes: {counts['first']} found at first sight, {counts['now']} now"
    yield f"{len(runs) - len(wrong)} strategies as written, {alarms} with a certain or likely finding"


def _scope(against: Any) -> str:
    if against is None:
        return ""
    steps = f"{against.step} steps" + (f", then {against.ended}" if against.ended else "")
    return f"{steps}, {sum(against.counts.values())} tensors, {len(against.skipped)} not compared"


def main() -> None:
    """Run the strategies, or judge what was kept."""
    if sys.argv[1:2] == ["--rank"]:
        on_rank(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="runs with a word in their name")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the records here")
    parser.add_argument("--judge", action="store_true", help="run nothing, judge the records in --keep again")
    parser.add_argument("--first", action="store_true", help="write what is said of mistakes that were never seen")
    args = parser.parse_args()
    runs = [run for run in all_runs() if not args.only or any(word in run.folder for word in args.only)]
    runs = list(dict.fromkeys([*(run.as_written for run in runs), *runs]))
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.keep or Path(temporary)).resolve()
        if not args.judge:
            run_all(runs, folder)
        first = json.loads(FIRST.read_text()) if FIRST.exists() else {}
        if args.first:
            first = {**{run.folder: said(folder, run) for run in runs if run.mistake}, **first}
            FIRST.write_text(json.dumps(first, indent=1) + "\n")
        for line in table(folder, runs, first):
            print(line)


if __name__ == "__main__":
    main()
