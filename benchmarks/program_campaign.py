"""A campaign of faults on a plain torch program: does `frog diagnose` name the rank and the line?

    python benchmarks/program_campaign.py [--nproc 2 4] [--only WORD] [--count N] [--keep FOLDER]

Each case runs `plain_ddp.py`, which imports nothing of Frog: with a fault that `frog chaos` injects, or with a bug
planted in its text. Then `frog diagnose` reads the run folder. One row per case: the fault, its moment and its rank;
the diagnosis; whether its rank, line and kind are right ("-": there is none); whether it calls itself certain.
`--nproc 2` has every fault at both moments and on both ranks; larger worlds have each fault once, on a rank and at a
moment that the seed draws. `--keep` keeps the cases' folders and, called again, runs only those that are missing;
`--judge` runs nothing, and judges again what was kept.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from planted_bugs import BUGS, MARK, SAVE, Bug, plant

from frog.launch.harness import kill_tree
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.program_diagnosis import diagnose_folder

PROGRAM = Path(__file__).with_name("plain_ddp.py")
BATCH, STEPS, COLLECTIVES = 16, (1, 13), (3, 30)
"""Moments: steps of a planted bug, and the numbers of collectives before an injected fault: while DDP starts, and in
the middle."""
DEADLINE_S, CASE_S = 12.0, 400.0
HEAD = " no  fault                  moment        rank  rank line kind sure  sec  diagnosis"
NETWORK = ("--network", "rate=100mbit delay=1ms")


@dataclass(frozen=True)
class Injected:
    """A fault of `frog chaos`, and the diagnoses that are right."""

    words: str
    faults: tuple[str, ...]
    on_rank: int | None = None
    tie: bool = False
    """True if nothing tells the two ranks of a world of two apart."""
    network: bool = False
    line: str = ""
    """The line of the program at which it shows."""


INJECTED = (
    Injected("kill", ("kill",)),
    Injected("stop", ("stop",)),
    Injected("exit code=0", ("ended", "exit")),
    Injected("exit code=3", ("exit",)),
    Injected("raise", ("raise",)),
    Injected("slow factor=8", ("slow",)),
    Injected("memory", ("memory", "raise", "crash")),
    Injected("disk", ("disk",), on_rank=0, line=SAVE),
    Injected("node", ("kill", "gone", "node")),
    Injected("cut", ("network", "cut", "gone"), tie=True, network=True),
)


@dataclass(frozen=True)
class Case:
    """One run of the program, and the right answer."""

    name: str
    moment: str
    rank: int | None
    """None if all ranks have the bug."""
    command: tuple[str, ...]
    source: str
    faults: tuple[str, ...]
    ranks: frozenset[int]
    """Ranks of which one must be named; empty if none has a fault."""
    lines: frozenset[int]
    """Lines of which one must be named; empty if the evidence cannot show one."""


def cases(world: int, seed: int) -> Iterator[Case]:
    """Yield the cases of a world: all of two ranks, one of each fault otherwise."""
    generator = random.Random(seed)
    for fault in INJECTED:
        for rank, collective in _places(fault.on_rank, COLLECTIVES, world, generator):
            yield _injected(fault, world, rank, collective)
    for bug in BUGS:
        steps = STEPS if bug.depends_on_step else STEPS[:1]
        for rank, step in _places(0 if bug.on_all else bug.on_rank, steps, world, generator):
            yield _planted(bug, world, rank, step)


def _places(only: int | None, moments: Sequence[int], world: int, generator: random.Random) -> list[tuple[int, int]]:
    """Return ranks and moments: in a world of two each rank and each moment, otherwise one of each."""
    ranks = list(range(world)) if only is None else [only]
    if world > 2:
        return [(generator.choice(ranks), generator.choice(moments))]
    generator.shuffle(ranks)
    count = max(len(ranks), len(moments))
    return [(ranks[number % len(ranks)], moments[number % len(moments)]) for number in range(count)]


def _injected(fault: Injected, world: int, rank: int, collective: int) -> Case:
    kind, _, own = fault.words.partition(" ")
    place = ["--nodes", f"{world}x1"] if kind in ("node", "cut") else ["--nproc", str(world)]
    words = [
        *place,
        *(NETWORK if fault.network else ()),
        "--fault",
        f"{kind} rank={rank} collective={collective} {own}",
    ]
    ranks = [] if fault.tie and world == 2 else [rank]
    source, lines = plant(PROGRAM.read_text(), [(fault.line, f"...{MARK}")] if fault.line else [], rank=rank)
    command = ("chaos", *words, "--deadline", f"{DEADLINE_S:g}")
    return Case(fault.words, f"collective {collective}", rank, command, source, fault.faults, frozenset(ranks), lines)


def _planted(bug: Bug, world: int, rank: int, step: int) -> Case:
    sample = rank + world * BATCH * step
    source, lines = plant(PROGRAM.read_text(), bug.edits, rank=rank, step=step, sample=sample)
    healthy = "none" in bug.faults
    ranks = [] if healthy else range(world) if bug.on_all or (bug.tie and world == 2) else [rank]
    own = ("--deadline", f"{DEADLINE_S:g}") if bug.timeout_s is None else ()
    return Case(
        bug.name,
        f"step {step}" if bug.depends_on_step else "",
        None if bug.on_all else rank,
        ("run", "--nproc", str(world), *own),
        source,
        bug.faults,
        frozenset(ranks),
        lines,
    )


@dataclass(frozen=True)
class Verdict:
    """What is right about a diagnosis. None: there is nothing to name."""

    found: Diagnosis
    rank: bool | None
    line: bool | None
    kind: bool

    @property
    def right(self) -> bool:
        return self.rank is not False and self.line is not False and self.kind


def judge(case: Case, found: Diagnosis) -> Verdict:
    """Compare a diagnosis with the fault."""
    named = {
        int(line.split(":")[1].split()[0]) for line in (found.line, found.peer_line) if line and "train.py:" in line
    }
    return Verdict(
        found,
        found.rank in case.ranks if case.ranks else None,
        bool(named & case.lines) if case.lines else None,
        found.fault in case.faults,
    )


def run(case: Case, folder: Path) -> None:
    """Run a case in its folder, unless that has been done."""
    if (folder / "runs").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(case.source)
    timeout = ("15",) if "--deadline" not in case.command else ()
    words = [*case.command, "--threads", "1", "--", "train.py", *timeout]
    with open(folder / "output.txt", "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "frog.cli", *words], cwd=folder, stdout=output, stderr=output, start_new_session=True
        )
        try:
            process.wait(CASE_S)
        finally:
            if process.poll() is None:
                kill_tree(process)


def _word(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "NO"


def row(number: int, case: Case, verdict: Verdict, seconds: float) -> str:
    """Return a row of the table."""
    found = verdict.found
    rank = "all" if case.rank is None else str(case.rank)
    marks = (_word(verdict.rank), _word(verdict.line), _word(verdict.kind), "yes" if found.certain else "no")
    columns = f"{number:3}  {case.name:22} {case.moment:13} {rank:>4}  " + " ".join(f"{mark:4}" for mark in marks)
    return f"{columns} {seconds:4.0f}  {found.fault}: {found.finding}"


def part(count: int, of: int) -> str:
    return f"{count} of {of} ({100 * count / of:.0f} %)" if of else "none"


def totals(verdicts: list[Verdict]) -> str:
    """Return the figures by which the campaign is judged."""
    ranks = [verdict.rank for verdict in verdicts if verdict.rank is not None]
    lines = [verdict.line for verdict in verdicts if verdict.line is not None]
    sure = [verdict for verdict in verdicts if verdict.found.certain]
    return (
        f"rank right: {part(sum(ranks), len(ranks))}; line right, where there is one: {part(sum(lines), len(lines))}; "
        f"kind right: {part(sum(verdict.kind for verdict in verdicts), len(verdicts))}\n"
        f"certain: {part(len(sure), len(verdicts))}; certain and wrong: {sum(not verdict.right for verdict in sure)}"
    )


def campaign(world: int, args: argparse.Namespace, folder: Path) -> list[Verdict]:
    """Run and judge the cases of a world."""
    every = list(cases(world, args.seed))
    chosen = [case for case in every if args.only in case.name][: args.count]
    if args.judge:
        chosen = [case for case in chosen if (_place(folder, world, case) / "runs").exists()]
    print(f"{world} ranks: {len(chosen)} of {len(every)} cases{_when(folder, world, chosen)}\n{HEAD}")
    verdicts = []
    for number, case in enumerate(chosen, 1):
        own = _place(folder, world, case)
        run(case, own)
        seconds = (own / "output.txt").stat().st_mtime - (own / "train.py").stat().st_mtime
        verdicts.append(judge(case, diagnose_folder(own / "runs" / "train")))
        print(row(number, case, verdicts[-1], seconds), flush=True)
    print(f"\n{totals(verdicts)}\n", flush=True)
    return verdicts


def _when(folder: Path, world: int, chosen: list[Case]) -> str:
    """Return when the kept cases ran; empty if none has."""
    times = [
        output.stat().st_mtime for case in chosen if (output := _place(folder, world, case) / "output.txt").exists()
    ]
    if not times:
        return ""
    first, last = (time.strftime("%Y-%m-%d %H:%M", time.gmtime(each)) for each in (min(times), max(times)))
    return f", run from {first} to {last} UTC"


def _place(folder: Path, world: int, case: Case) -> Path:
    """Return the folder of a case."""
    return folder / f"{world}" / "_".join(f"{case.name} {case.moment} {case.rank}".replace(":", "").split())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", default="", metavar="WORD", help="only faults with this word in their name")
    parser.add_argument("--count", type=int, help="only the first N cases of a world")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the cases' folders, and continue there")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="run nothing: judge the cases of this folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="frog-campaign-") as scratch:
        folder = (args.judge or args.keep or Path(scratch)).resolve()
        verdicts = [verdict for world in args.nproc for verdict in campaign(world, args, folder)]
    if len(args.nproc) > 1:
        print(f"all worlds\n{totals(verdicts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
