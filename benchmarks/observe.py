"""The observer inside each rank: its cost per step, the size of its evidence, and the time from a hang to the answer.

    python benchmarks/observe.py [--pairs 60] [--hangs 3]

The cost: a plain DDP script with two ranks of one thread, which does not import Frog, runs blocks of steps with the
observer's thread at work and without, in alternating order. Prints the median difference of the pairs in step time and
in processor time, which other programs disturb less, each with its 95 % interval, and whether that is below 1 %.
torch's flight recorder is on in both, as by default. Then `frog run` of a script that hangs: the time from the hang to
the end of the command, beyond the deadline, and the size of what the ranks wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from events import median_with_interval

from frog.observe.environment import environment

DEADLINE_S = 5
MOST_PERCENT = 1.0
"""The observer's cost must be below this part of a step."""
LEAST_PAIRS = 10
"""With fewer, the interval is shorter than 95 %."""
STEPS = """
import json, os, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.Sequential(
    torch.nn.Embedding(256, 128), *(torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True) for _ in range(2))
)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.randint(0, 256, (8, 64))
beats, crashes = sys.modules["frog_observer.beat"].Beats, sys.modules["frog_observer.crashes"].Crashes
at_work = [(kind, name, vars(kind)[name]) for kind, name in ((beats, "_beat"), (beats, "_answer"), (crashes, "beat"))]
spent_s = []

def timed(function):
    def run(*args, **options):
        began_s = time.thread_time()
        function(*args, **options)
        spent_s.append(time.thread_time() - began_s)
    return run

at_work[0] = (beats, "_beat", timed(beats._beat))

def observe(on):
    for kind, name, function in at_work:
        setattr(kind, name, function if on else lambda self, last=False: None)

def block(observed, steps):
    observe(observed)
    dist.barrier()
    began, began_cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        model(tokens).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter() - began) / steps, (time.process_time() - began_cpu) / steps

block(True, 10)
length = torch.tensor([float(os.environ["BLOCK_S"]) / block(False, 10)[0]])
dist.broadcast(length, 0)
steps, pairs = max(1, int(length)), []
for number in range(int(os.environ["PAIRS"])):
    first = number % 2 == 0
    taken = {observed: block(observed, steps) for observed in (first, not first)}
    pairs.append((taken[True], taken[False]))
if dist.get_rank() == 0:
    print(json.dumps({"steps": steps, "pairs": pairs, "beat_s": sum(spent_s) / len(spent_s)}))
dist.destroy_process_group()
"""
HANG = """
import time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(1000)
for _ in range(2500):
    dist.all_reduce(x)
if dist.get_rank() == 0:
    open("hangs", "w").write(str(time.time()))
    dist.all_reduce(x)
time.sleep(600)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--block-s", type=float, default=2.0)
    parser.add_argument("--hangs", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        measure_cost(Path(scratch), args.pairs, args.block_s)
        measure_hangs(Path(scratch), args.hangs)


def measure_cost(folder: Path, num_pairs: int, block_s: float) -> None:
    (folder / "steps.py").write_text(STEPS)
    run = folder / "run"
    env = {**os.environ, **environment(run), "OMP_NUM_THREADS": "1", "PAIRS": str(num_pairs), "BLOCK_S": str(block_s)}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "steps.py"]
    out = subprocess.run(torchrun, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = json.loads(out.splitlines()[-1])
    print(f"torch {torch.__version__}, 2 ranks, {num_pairs} pairs of blocks of {found['steps']} steps")
    for number, what in enumerate(("step time", "processor time")):
        bare_s = statistics.median(off[number] for _, off in found["pairs"])
        ratios = [100 * (on[number] / off[number] - 1) for on, off in found["pairs"]]
        low, middle, high = median_with_interval(ratios)
        cost = f"{middle:+.2f} % (95 %: {low:+.2f} to {high:+.2f}), {verdict(low, high, num_pairs)}"
        print(f"{what} without observer {bare_s * 1e3:.2f} ms; with it {cost}")
    beat_ms = found["beat_s"] * 1e3
    print(f"a status, twice a second: {beat_ms:.2f} ms of processor time = {2 * beat_ms / 10:.2f} % of a core")


def verdict(low: float, high: float, num_pairs: int) -> str:
    """Compare an interval of the cost, in percent, with what the observer promises."""
    if num_pairs < LEAST_PAIRS:
        return f"undecided: needs {LEAST_PAIRS} pairs"
    if high < MOST_PERCENT:
        return f"below {MOST_PERCENT:g} %"
    if low >= MOST_PERCENT:
        return f"not below {MOST_PERCENT:g} %"
    return "undecided: needs a quieter machine, or more --pairs"


def measure_hangs(folder: Path, num_hangs: int) -> None:
    (folder / "hang.py").write_text(HANG)
    source = os.pathsep.join(filter(None, (str(Path(__file__).parents[1] / "src"), os.environ.get("PYTHONPATH"))))
    frog = [sys.executable, "-m", "frog.cli", "run", "--nproc", "2", "--deadline", str(DEADLINE_S), "--", "hang.py"]
    after_s = []
    for _ in range(num_hangs):
        done = subprocess.run(
            frog, cwd=folder, env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True
        )
        after_s.append(time.time() - float((folder / "hangs").read_text()) - DEADLINE_S)
        assert "which rank 1 never calls" in done.stderr, done.stderr
    low, middle, high = min(after_s), statistics.median(after_s), max(after_s)
    print(f"from a hang to the answer: the deadline and {middle:.1f} s ({low:.1f} to {high:.1f}), {num_hangs} hangs")
    files = [path for path in (folder / "runs" / "hang" / "observed").rglob("*") if path.is_file()]
    sizes = {name: max(path.stat().st_size for path in files if path.name == name) for name in {p.name for p in files}}
    listed = ", ".join(f"{name} {size / 1e3:.1f} kB" for name, size in sorted(sizes.items()) if size)
    print(f"evidence of a rank after 2,501 collectives: {listed}")


if __name__ == "__main__":
    main()
