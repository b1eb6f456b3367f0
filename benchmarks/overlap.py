"""Fraction of the gradient communication that the backward pass hides when the link limits the step.

    python benchmarks/overlap.py [--rounds 5] [--network "rate=500mbit delay=1ms"] [--tiny]

Two nodes of one rank train the demo's model and send its gradients after the backward pass (bucketed) or during it
(overlapped), over gloo and over Frog's collectives, in turn. For each variant it prints, from all steps except the
first two of each run: the median step; the total time during which collectives of more than 4 KiB were running; and the
time that the rank's own thread waited for them. Communication without waiting is hidden.

Frog's collectives move bytes in Python threads, which compete with the computing thread for the interpreter lock: if
that cost more than it gains, overlapped would not be faster than bucketed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import median

from frog.core.runs import RankEvents, read_run
from frog.core.runs.event_schema import CollectiveEvent, StepEvent
from frog.core.runs.folder import RunFolder

CONFIG = Path(__file__).parents[1] / "config" / "demo.toml"
WAYS = [(backend, reduction) for backend in ("gloo", "frog") for reduction in ("bucketed", "overlapped")]
SMALL_BYTES = 4096
WARM_UP = 2
DEADLINE_S = 600.0


def train(folder: Path, name: str, way: tuple[str, str], steps: int, network: str) -> RankEvents:
    """Run one training; return the events of rank 0. Raises SystemExit if it fails."""
    backend, reduction = way
    settings = [
        f"name={name}", f"train.steps={steps}", f"eval.every={steps}", f"checkpoint.every={steps}",
        "eval.sample_tokens=0", f"comm.backend={backend}", f"strategy.reduction={reduction}", "strategy.bucket_mb=0.5",
    ]  # fmt: skip
    words = ["run", "--nodes", "2x1", "--threads", "1", "--network", network, "--", "train", str(CONFIG)]
    words += [word for setting in settings for word in ("--set", setting)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "frog.cli", *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode:
        raise SystemExit(f"{' '.join(way)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return read_run(RunFolder(folder / "runs" / name)).main


def per_step(events: RankEvents) -> list[tuple[float, float, float]]:
    """Return three times in ms for each step except the first ones: its length, its collectives' time, and its wait."""
    ends = sorted((step, event.end_ns) for step, event in events.by_step(StepEvent).items())
    under_way, waited = defaultdict[int, int](int), defaultdict[int, int](int)
    for call in events.of(CollectiveEvent):
        if call.payload_bytes > SMALL_BYTES and call.step is not None:
            under_way[call.step] += call.end_ns - call.start_ns
            waited[call.step] += call.wait_ns
    return [
        ((end - start) / 1e6, under_way[step] / 1e6, waited[step] / 1e6)
        for (_, start), (step, end) in list(pairwise(ends))[WARM_UP:-1]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--network", default="rate=500mbit delay=1ms")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to check that it runs")
    args = parser.parse_args()
    rounds, steps = (1, 6) if args.tiny else (args.rounds, args.steps)
    ways = WAYS[-1:] if args.tiny else WAYS
    print(f"two nodes of one rank, 1 thread each, {steps} steps, {rounds} rounds; link: {args.network}\n", flush=True)
    found = defaultdict[tuple[str, str], list[tuple[float, float, float]]](list)
    with tempfile.TemporaryDirectory(prefix="frog-overlap-") as scratch:
        for number in range(rounds):
            for way in ways:
                found[way] += per_step(train(Path(scratch), f"{'-'.join(way)}-{number}", way, steps, args.network))
    print(f"{'backend':10}{'gradients':14}{'step':>10}{'under way':>12}{'waited for':>12}{'hidden':>9}")
    for (backend, reduction), all_steps in found.items():
        step, under_way, waited = (median(values) for values in zip(*all_steps, strict=True))
        times = f"{step:>7.1f} ms{under_way:>9.1f} ms{waited:>9.1f} ms"
        print(f"{backend:10}{reduction:14}{times}{1 - waited / under_way:>9.0%}")


if __name__ == "__main__":
    main()
