"""Every fault at every step in every phase, against several worlds, and what a trial's seconds consist of.

    python benchmarks/chaos.py [--count N] [--seed 1] [--out benchmarks/results/chaos.txt]

`--count` makes each campaign one of at most so many faults, drawn from the seed, to try the script. The campaigns run
in a folder of their own; runs of trials that were not as they must be are kept there, and named. The whole result is
written after each campaign. Exit code 1 if one trial was not as it must be.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from frog.chaos.evidence import read_launcher
from frog.core.files import write_atomic
from frog.core.runfolder import RunFolder
from frog.events import read_run


@dataclass(frozen=True)
class Part:
    """A campaign: how many faults, and the world."""

    count: int | None
    """None: all."""
    words: tuple[str, ...]


PARTS = (
    Part(None, ("--nproc", "2", "--deadline", "8")),
    Part(None, ("--nodes", "2x1", "--network", "rate=100mbit delay=1ms", "--deadline", "10", "--kinds", "cut")),
    Part(28, ("--nproc", "4", "--deadline", "15")),
    Part(20, ("--nodes", "1:2x1", "--deadline", "10", "--kinds", "kill,node,nan,disk,torn")),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "chaos.txt")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="frog-campaign-"))
    tables, worst = [_machine()], 0
    for number, part in enumerate(PARTS):
        count = min(filter(None, (part.count, args.count)), default="all")
        seed = args.seed + number
        words = ["chaos", "--campaign", str(count), "--seed", str(seed), *part.words, "--out", f"table-{seed}.txt"]
        done = subprocess.run([sys.executable, "-m", "frog.cli", *words], cwd=folder)
        worst = max(worst, done.returncode)
        table = folder / f"table-{seed}.txt"
        tables.append(table.read_text() if table.exists() else f"frog {' '.join(words)}: exit code {done.returncode}\n")
        tables.append(_seconds(RunFolder(folder / "runs" / f"chaos-{seed}-undisturbed")))
        write_atomic(args.out, "\n".join(tables))
    if worst:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder)
    return worst


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n"


def _seconds(folder: RunFolder) -> str:
    """What an undisturbed launch's seconds go to, by what the launcher and rank 0 told."""
    if not folder.run_json.exists():
        return ""
    told, own = read_launcher(folder), read_run(folder).main
    at = {event["event"]: event["unix_ns"] for event in told}
    start = own.of("start")[-1]
    last_ns = max(event["end_ns"] for event in own.of("span")) - start["mono_ns"] + start["unix_ns"]
    parts = {
        "until the agent starts its ranks": at["world"] - at["launch"],
        "until the ranks have met": start["unix_ns"] - at["world"],
        "training": last_ns - start["unix_ns"],
        "until all have left": at["end"] - last_ns,
    }
    listed = ", ".join(f"{name} {ns / 1e9:.1f} s" for name, ns in parts.items())
    return f"an undisturbed launch: {listed} (the first two import torch)\n"


if __name__ == "__main__":
    sys.exit(main())
