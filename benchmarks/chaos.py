"""Every fault at every step in every phase, campaigns in other worlds, and what a trial's seconds consist of.

    python benchmarks/chaos.py [--campaigns two-ranks,four-ranks,...] [--count N] [--seed 1] [--out benchmarks/results]

Each campaign's table is chaos_NAME.txt there. `--count` makes each one of at most so many faults, drawn from the seed,
to try the script. They run in a folder of their own; runs of trials that were not as they must be are kept there, and
named. Exit code 1 if one trial was not as it must be.
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

from frog.core.files import write_atomic
from frog.core.runfolder import RunFolder
from frog.events import read_run
from frog.events.schema import SpanEvent, StartEvent


@dataclass(frozen=True)
class Part:
    """A campaign: how many faults, and the world."""

    count: int | None
    """None: all."""
    words: tuple[str, ...]


PARTS = {
    "two-ranks": Part(None, ("--nproc", "2", "--deadline", "8")),
    "four-ranks": Part(16, ("--nproc", "4", "--deadline", "15")),
    "elastic": Part(10, ("--nodes", "1:2x1", "--deadline", "10", "--kinds", "kill,node,nan,disk,torn")),
    "cut": Part(8, ("--nodes", "2x1", "--network", "rate=100mbit delay=1ms", "--deadline", "10", "--kinds", "cut")),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", default=",".join(PARTS), metavar="NAME,...", help="default: %(default)s")
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="frog-campaign-"))
    worst = 0
    for name in args.campaigns.split(","):
        part = PARTS[name]
        count = min(filter(None, (part.count, args.count)), default="all")
        words = ["chaos", "--campaign", str(count), "--seed", str(args.seed), *part.words, "--out", f"{name}.txt"]
        done = subprocess.run([sys.executable, "-m", "frog.cli", *words], cwd=folder)
        worst = max(worst, done.returncode)
        table = folder / f"{name}.txt"
        text = table.read_text() if table.exists() else f"frog {' '.join(words)}: exit code {done.returncode}\n"
        undisturbed = _seconds(RunFolder(folder / "runs" / f"chaos-{args.seed}-undisturbed"))
        write_atomic(args.out / f"chaos_{name}.txt", "\n".join([_machine(), text, undisturbed]))
    if worst:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder)
    return worst


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n"


def _seconds(folder: RunFolder) -> str:
    """What an undisturbed launch's seconds go to, by what the launcher and rank 0 told."""
    record = folder.read_record()
    if record is None or record.status != "completed":
        return ""
    run = read_run(folder)
    own = run.main
    at = {event.__struct_config__.tag: event.unix_ns for event in run.launcher}
    if "end" not in at:
        return ""
    start = own.of(StartEvent)[-1]
    last_ns = max(event.end_ns for event in own.of(SpanEvent)) - start.mono_ns + start.unix_ns
    parts = {
        "until the agent starts its ranks": at["world"] - at["launch"],
        "until the ranks have met": start.unix_ns - at["world"],
        "training": last_ns - start.unix_ns,
        "until all have left": at["end"] - last_ns,
    }
    listed = ", ".join(f"{name} {ns / 1e9:.1f} s" for name, ns in parts.items())
    return f"an undisturbed launch: {listed} (the first two import torch)\n"


if __name__ == "__main__":
    sys.exit(main())
