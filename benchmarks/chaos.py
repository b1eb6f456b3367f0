"""A campaign of faults: every fault at every step in every phase, or a sample in another world.

    python benchmarks/chaos.py two-ranks|shrink|... [--count N] [--seed 1]

Prints the campaign's table, and a breakdown of the time of an undisturbed launch. `--count` limits the campaign to that
many faults, drawn from the seed. It runs in a new folder, which keeps the runs of failed trials; the output names them.
Exit code 1 if any trial failed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from frog.core.runs import read_run
from frog.core.runs.event_schema import SpanEvent, StartEvent
from frog.core.runs.folder import RunFolder


@dataclass(frozen=True)
class Part:
    """A campaign: the number of faults, and the world."""

    count: int | None
    """None: all faults."""
    words: tuple[str, ...]


CUT = ("--network", "rate=100mbit delay=1ms", "--kinds", "cut")
"""Needs Linux, root and `ip`; a rank that joins manually would be outside that network."""

PARTS = {
    "two-ranks": Part(None, ("--nproc", "2", "--deadline", "8")),
    "four-ranks": Part(16, ("--nproc", "4", "--deadline", "15")),
    "elastic": Part(10, ("--nodes", "1:2x1", "--deadline", "10", "--kinds", "kill,node,nan,disk,torn")),
    "cut": Part(8, ("--nodes", "2x1", *CUT, "--deadline", "10")),
    "shrink": Part(None, ("--nproc", "4", "--on-loss", "shrink", "--deadline", "15")),
    "shrink-tcp": Part(None, ("--nodes", "4x1", "--kinds", "midway", "--on-loss", "shrink", "--deadline", "15")),
    "shrink-nodes": Part(30, ("--nodes", "2x2", "--on-loss", "shrink", "--deadline", "15")),
    "shrink-cut": Part(8, ("--nodes", "2x2", *CUT, "--on-loss", "shrink", "--deadline", "15")),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaign", choices=PARTS)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="frog-campaign-"))
    part = PARTS[args.campaign]
    count = min(filter(None, (part.count, args.count)), default="all")
    words = ["chaos", "--campaign", str(count), "--seed", str(args.seed), *part.words, "--out", "table.txt"]
    done = subprocess.run([sys.executable, "-m", "frog.cli", *words], cwd=folder, stdout=sys.stderr)
    table = folder / "table.txt"
    print(table.read_text() if table.exists() else f"frog {' '.join(words)}: exit code {done.returncode}")
    print(_seconds(RunFolder(folder / "runs" / f"chaos-{args.seed}-undisturbed")), end="")
    if done.returncode:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder)
    return done.returncode


def _seconds(folder: RunFolder) -> str:
    """Break down the time of an undisturbed launch, from the events of the launcher and of rank 0."""
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
        "until the ranks have connected": start.unix_ns - at["world"],
        "training": last_ns - start.unix_ns,
        "until all ranks have exited": at["end"] - last_ns,
    }
    listed = ", ".join(f"{name} {ns / 1e9:.1f} s" for name, ns in parts.items())
    return f"an undisturbed launch: {listed} (the first two import torch)\n"


if __name__ == "__main__":
    sys.exit(main())
