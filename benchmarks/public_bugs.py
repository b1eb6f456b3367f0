"""Plant bugs in public programs, run them with two ranks, and judge what `frog diagnose` says.

    python benchmarks/public_bugs.py CLONES [--only WORD ...] [--python PYTHON] [--keep FOLDER [--judge]] [--json FILE]

CLONES holds one checkout per repository, named OWNER_NAME; nothing is downloaded. public_bugs.toml has the programs, at
their commits, and the bugs: pairs of a few words to search for and their replacement, applied to a copy outside the
repository. The comment `# planted` marks the lines that a right answer names, on either side.

Bugs that change numbers alone run again with one rank and the same global batch, and count as found if `frog compare`
shows that the losses differ.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wild_programs import MODEL, make_data

CONFIG = Path(__file__).with_suffix(".toml")
FROG = "import sys; from frog.cli import main; sys.exit(main())"
DEADLINE_S = 20
PIECES = ("top", "start", "end")
MARK = "# planted"

Table = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What Frog said about one bug in one program."""

    program: str
    bug: str
    what: str
    fault: str
    finding: str
    rank: str
    """right, wrong, none given, or "-" where no rank is wrong."""
    line: str
    certain: bool
    knows_fault: bool
    correct: bool
    """True if the fault, the rank and the line are right."""

    @property
    def is_certain_and_wrong(self) -> bool:
        return (
            self.certain
            and self.fault not in ("none", "interrupted")
            and (not self.knows_fault or "wrong" in (self.rank, self.line))
        )


# ---- the patched copy ------------------------------------------------------------------------------------------------


def bug_for(bugs: Table, name: str, program: str) -> Table:
    """Return a bug's fields in one program."""
    own = dict(bugs[name])
    base = bug_for(bugs, own["like"], program) if "like" in own else {}
    return {**base, **own, **own.get(program, {})}


def plant(program: Table, bug: Table, folder: Path) -> None:
    """Apply a bug's edits to a copy of a program."""
    script = folder / program["script"]
    for name, place in program["places"].items():
        if name in PIECES:
            code = textwrap.indent(bug.get(name, "").strip("\n"), " " * place.get("indent", 0))
            replace_once(script, place, code)
        elif name != "mark" or bug.get("mark"):
            replace_once(script, place)
    for edit in bug.get("edits", []):
        replace_once(folder / edit.get("file", program["script"]), edit)


def replace_once(path: Path, edit: Table, code: str = "") -> None:
    """Replace a text that must be in a file exactly once."""
    text = path.read_text()
    if text.count(edit["search"]) != 1:
        raise SystemExit(f"{path}: “{edit['search']}” is in it {text.count(edit['search'])} times: another commit?")
    new = edit["replace"].replace("{it}", edit["search"]).replace("{code}", code)
    path.write_text(text.replace(edit["search"], new))


def marked_lines(folder: Path) -> set[str]:
    """Return the places of all lines with the mark, such as `train.py:14`."""
    return {
        f"{path.name}:{number}"
        for path in folder.glob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if MARK in line
    }


def copy_program(clones: Path, program: Table, target: Path) -> None:
    """Copy a program out of its checkout, and make nanoGPT's data: random characters."""
    source = clones / program["repository"].replace("/", "_") / program["folder"]
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(".git", "runs", "*.bin", "assets"))
    if (target / "data").is_dir():
        draw = random.Random(1)
        data = target / "data" / "planted"
        data.mkdir()
        for part in ("train", "val"):
            (data / f"{part}.bin").write_bytes(struct.pack("<5000H", *(draw.randrange(65) for _ in range(5000))))
        (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


# ---- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Runner:
    """Runs programs under Frog."""

    python: str
    data: Path

    def frog(self, folder: Path, *words: str) -> str:
        """Run a command of Frog; return its stdout."""
        env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run([self.python, "-c", FROG, *words], cwd=folder, env=env, capture_output=True, text=True)
        return done.stdout

    def run(self, folder: Path, program: Table, bug: Table, nproc: int = 2, more: str = "") -> None:
        """Run a patched program to its end."""
        arguments = " ".join([program["arguments"], bug.get("arguments", ""), more]).format(data=self.data)
        gpus = ["--simulate-gpus", str(program["gpus"])] if "gpus" in program else []
        options = ["--nproc", str(nproc), "--deadline", str(DEADLINE_S), *gpus]
        self.frog(folder, "run", *options, "--", program["script"], *shlex.split(arguments))


def judge(runner: Runner, clones: Path, name: str, program: Table, kind: str, bug: Table, folder: Path) -> Verdict:
    """Plant a bug, run the program, and judge the diagnosis."""
    if not folder.exists():
        copy_program(clones, program, folder)
        plant(program, bug, folder)
        runner.run(folder, program, bug)
        if bug.get("compare"):
            runner.run(folder, program, bug, nproc=1, more=program.get("one_rank", ""))
    if bug.get("compare"):
        found = compare_runs(runner, folder)
    else:
        found = json.loads(runner.frog(folder, "diagnose", "latest", "--json") or '{"fault": "no answer"}')
    return verdict(name, kind, bug, found, marked_lines(folder))


def compare_runs(runner: Runner, folder: Path) -> Table:
    """Compare the losses of two ranks with those of one rank and the same global batch."""
    names = sorted(path.name for path in (folder / "runs").iterdir() if path.is_dir())
    said = runner.frog(folder, "compare", "--rtol", "0.001", *names)
    differs = said.rstrip().endswith("different")
    return {"fault": "differs" if differs else "none", "finding": " ".join(said.split())[:300], "certain": False}


def verdict(program: str, kind: str, bug: Table, found: Table, marked: set[str]) -> Verdict:
    """Compare a diagnosis with what was planted."""
    fault, faults = found["fault"], bug["faults"]
    rank = "-" if bug.get("rank") is None else "right" if found.get("rank") == bug["rank"] else "wrong"
    if rank == "wrong" and found.get("rank") is None:
        rank = "not given"
    named = {match[0] for key in ("line", "peer_line") if (match := re.match(r"[^ ]+:\d+", found.get(key) or ""))}
    line = "right" if named & marked else "wrong" if named else "not given"
    if not marked or (line == "not given" and not bug.get("needs_line", True)):
        line = "-"
    correct = fault in faults and rank in ("-", "right") and line in ("-", "right")
    finding = " ".join((found.get("finding") or "").split())
    certain = bool(found.get("certain"))
    return Verdict(program, kind, bug["what"], fault, finding, rank, line, certain, fault in faults, correct)


# ---- the table -------------------------------------------------------------------------------------------------------


def cases(config: Table, words: list[str]) -> Iterator[tuple[str, str, Table]]:
    """Yield each program with each bug that exists in it."""
    for program in config["programs"]:
        for kind in config["bugs"]:
            bug = bug_for(config["bugs"], kind, program)
            if bug.get("only", program) == program and any(word in f"{program}/{kind}" for word in words):
                yield program, kind, bug


def row(one: Verdict) -> str:
    """Return a verdict as a line of the table."""
    how = "right" if one.correct else "CERTAIN AND WRONG" if one.is_certain_and_wrong else "not found"
    sure = "certain" if one.certain else "likely"
    return (
        f"{one.program:<8} {one.bug:<14} {how:<9} {one.fault:<8} rank {one.rank:<9} line {one.line:<9} {sure:<7}  "
        f"{one.finding[:200]}"
    )


def summary(verdicts: list[Verdict]) -> str:
    """Return the totals, by program."""
    lines = []
    for program in dict.fromkeys(one.program for one in verdicts):
        own = [one for one in verdicts if one.program == program]
        ranks = [one for one in own if one.rank != "-"]
        places = [one for one in own if one.line != "-"]
        lines.append(
            f"{program}: {sum(one.correct for one in own)} of {len(own)} right; rank right in "
            f"{sum(one.rank == 'right' for one in ranks)} of {len(ranks)}, line in "
            f"{sum(one.line == 'right' for one in places)} of {len(places)}; "
            f"{sum(one.is_certain_and_wrong for one in own)} certain and wrong"
        )
    return "\n".join(lines)


def main() -> None:
    """Plant each bug in each program and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clones", type=Path)
    parser.add_argument("--only", nargs="+", default=[""], help="words of program/bug, such as nanogpt/branch")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--keep", type=Path, help="leave the patched copies and their runs in this folder")
    parser.add_argument("--judge", action="store_true", help="judge the runs in --keep, and run only what is missing")
    parser.add_argument("--json", type=Path, help="also write the verdicts to a file")
    args = parser.parse_args()
    config = tomllib.loads(CONFIG.read_text())
    chosen = list(cases(config, args.only))
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="frog-planted-") as scratch:
        root = (args.keep or Path(scratch)).resolve()
        runner = Runner(args.python, root / "data")
        if chosen:
            make_data(runner.data)
            subprocess.run([args.python, "-c", MODEL, runner.data], capture_output=True)
        for name, kind, bug in chosen:
            if "not_a_bug" in bug:
                print(f"{name:<8} {kind:<14} does not exist: {bug['not_a_bug']}", flush=True)
                continue
            folder = root / f"{name}-{kind}"
            if not args.judge:
                shutil.rmtree(folder, ignore_errors=True)
            verdicts.append(judge(runner, args.clones.resolve(), name, config["programs"][name], kind, bug, folder))
            print(row(verdicts[-1]), flush=True)
            if args.json is not None:
                args.json.write_text(json.dumps([asdict(one) for one in verdicts], indent=1))
    print(f"\n{summary(verdicts)}")


if __name__ == "__main__":
    main()
