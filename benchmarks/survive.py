"""Time for which a run stops when one of its ranks is killed, and until a replacement takes part.

    python benchmarks/survive.py [--rounds 2] [--tiny]

It measures the demo's model in worlds of 2 and 4, in alternating rounds; it prints medians with the fastest and the
slowest round:

- shrink: comm.on_loss=shrink; from SIGKILL of the last rank to the end of the next step of the other ranks
- restart: `frog run --restarts 1`; the same, for the world that restarts from its last checkpoint, and the number of
  steps that it repeats
- torchrun: the same with torchrun itself, `torchrun --max-restarts 1 train.py RUN.toml --continue`; ranks import torch
- replace: shrink with `--replace 1`; from SIGKILL to the end of the new rank's first step, and the number of steps that
  the others took meanwhile
- join: the same for a `frog join`, which imports torch, from the time when it is entered
- torchft: like shrink, in a world of torchft (torchft_world.py), if it can be imported; its lighthouse considers a
  replica lost after 5 s, its default, or after 1 s

For comparison, each line has the time of an undisturbed step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from start import DEADLINE_S, read

from frog.measure.chaos.sandbox import tiny_program

try:
    import torchft_world
except ImportError as error:
    torchft_world = None
    WITHOUT = f"without torchft: {error}"

ROOT = Path(__file__).parents[1]
DEMO_MODEL = ROOT / "config" / "config.json"
SETTINGS = ("train.steps=100000", "train.global_batch_size=32", "eval.every=100000", "checkpoint.every=25",
            "train.timeout_s=60")  # fmt: skip
STEPS = 40
"""Steps before the kill."""


class World:
    """A run in progress, and its events."""

    def __init__(self, name: str, size: int, launcher: list[str], settings: list[str]) -> None:
        """launcher: the module that starts ranks, and its arguments up to the run file."""
        self.name, self.size, self.events = name, size, Path("runs") / name / "events"
        words = [word for one in (f"name={name}", *SETTINGS, *settings) for word in ("--set", one)]
        self.process = popen(*launcher, "chaos/demo.toml", *words)
        self.wait(lambda: len(self.steps(0)) >= STEPS)

    def said(self, rank: int, kind: str) -> list[dict[str, Any]]:
        return [event for event in read(self.events / f"rank_{rank}.jsonl") if event["event"] == kind]

    def steps(self, rank: int, after_ns: int = 0) -> list[dict[str, Any]]:
        return [event for event in self.said(rank, "step") if event["end_ns"] > after_ns]

    def step_s(self) -> float:
        """Return the time of an undisturbed step."""
        ends = [event["end_ns"] for event in self.steps(0)[STEPS // 2 : STEPS]]
        return statistics.median(after - before for before, after in itertools.pairwise(ends)) / 1e9

    def wait(self, done: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not done():
            if time.monotonic() > deadline_s or self.process.poll() is not None:
                self.process.kill()
                raise SystemExit(f"{self.name}: ended, or incomplete after {DEADLINE_S:g} s")
            time.sleep(0.02)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(DEADLINE_S)


def popen(module: str, *words: str) -> subprocess.Popen[bytes]:
    nowhere = subprocess.DEVNULL
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", module, *words], env=env, stdout=nowhere, stderr=nowhere)


def frog_run(size: int, *options: str) -> list[str]:
    return ["frog.cli", "run", "--nproc", str(size), "--threads", "1", *options, "--", "train"]


def torchrun(size: int) -> list[str]:
    """Return the command of docs/launch/launchers.md, with a restart."""
    rendezvous = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1")
    options = (f"--nproc_per_node={size}", *rendezvous, "--max-restarts=1")
    return ["torch.distributed.run", *options, str(ROOT / "train.py"), "--continue"]


def kill_last(world: World) -> int:
    """Kill the last rank; return the time on the clock of the events."""
    (start,) = world.said(world.size - 1, "start")
    now_ns = time.monotonic_ns()
    os.kill(start["pid"], signal.SIGKILL)
    return now_ns


def measure_shrink(name: str, size: int) -> dict[str, float]:
    world = World(name, size, frog_run(size), ["comm.on_loss=shrink"])
    killed_ns = kill_last(world)
    world.wait(lambda: world.said(0, "membership") and world.steps(0, world.said(0, "start")[-1]["mono_ns"]))
    next_step = world.steps(0, world.said(0, "start")[-1]["mono_ns"])[0]
    step_s = world.step_s()
    world.end()
    return {"to the next step": (next_step["end_ns"] - killed_ns) / 1e9, "a step": step_s}


def measure_restart(name: str, size: int) -> dict[str, float]:
    return until_restarted(World(name, size, frog_run(size, "--restarts", "1"), []))


def measure_torchrun(name: str, size: int) -> dict[str, float]:
    return until_restarted(World(name, size, torchrun(size), []))


def until_restarted(world: World) -> dict[str, float]:
    step_s, killed_ns = world.step_s(), kill_last(world)
    world.wait(lambda: len(world.said(0, "start")) > 1 and world.steps(0, world.said(0, "start")[-1]["mono_ns"]))
    start = world.said(0, "start")[-1]
    next_step, last = world.steps(0, start["mono_ns"])[0], world.steps(0)
    before = max(event["step"] for event in last if event["end_ns"] < start["mono_ns"])
    world.end()
    return {"to the next step": (next_step["end_ns"] - killed_ns) / 1e9, "a step": step_s,
            "steps to take again": before - start["step"]}  # fmt: skip


def measure_replace(name: str, size: int) -> dict[str, float]:
    world = World(name, size, frog_run(size, "--replace", "1"), ["comm.on_loss=shrink"])
    return until_first_step(world, size - 1, kill_last(world))


def measure_join(name: str, size: int) -> dict[str, float]:
    """Measure `frog join` into a world of that size."""
    world = World(name, size, frog_run(size), ["comm.on_loss=shrink"])
    typed_ns = time.monotonic_ns()
    joining = popen("frog.cli", "join", name)
    found = until_first_step(world, size, typed_ns)
    joining.wait(DEADLINE_S)
    return found


def until_first_step(world: World, rank: int, since_ns: int) -> dict[str, float]:
    """Measure the first step of a rank that joins as that rank."""

    def taken() -> list[dict[str, Any]]:
        return world.steps(rank, world.said(rank, "start")[-1]["mono_ns"]) if world.said(rank, "membership") else []

    world.wait(taken)
    first_ns, step_s = taken()[0]["end_ns"], world.step_s()
    meanwhile = sum(event["end_ns"] < first_ns for event in world.steps(0, since_ns))
    world.end()
    return {"to its first step": (first_ns - since_ns) / 1e9, "a step": step_s, "steps of the others": meanwhile}


def measure_torchft(name: str, size: int, heartbeat_s: float = 5) -> dict[str, float]:
    model = "chaos/demo.json" if Path("chaos/demo.json").exists() else "chaos/tiny.json"
    length = 64 if "demo" in model else 16
    return torchft_world.measure(name, size, (model, 32, length), STEPS, heartbeat_s)


WAYS = {"shrink": measure_shrink, "restart": measure_restart, "torchrun": measure_torchrun,
        "replace": measure_replace, "join": measure_join}  # fmt: skip
if torchft_world is not None:
    WAYS |= {"torchft": measure_torchft, "torchft 1 s": lambda name, size: measure_torchft(name, size, 1)}


def prepare(tiny: bool) -> None:
    """Create the demo's model and the tiny text of `frog chaos`."""
    tiny_program()
    run_file = Path("chaos/tiny.toml").read_text()
    if not tiny:
        Path("chaos/demo.json").write_text(DEMO_MODEL.read_text())
        run_file = run_file.replace("tiny.json", "demo.json").replace("sequence_length = 16", "sequence_length = 64")
    Path("chaos/demo.toml").write_text(run_file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="one round of the tiny model, in a world of 2")
    args = parser.parse_args()
    os.chdir(tempfile.mkdtemp(prefix="frog-survive-"))
    prepare(args.tiny)
    cases = [(way, size) for size in ((2,) if args.tiny else (2, 4)) for way in WAYS]
    found: dict[tuple[str, int], list[dict[str, float]]] = {case: [] for case in cases}
    rounds = 1 if args.tiny else args.rounds
    for number in range(rounds):
        for way, size in cases:
            found[way, size].append(WAYS[way](f"{way}-{size}-{number}", size))
            print(f"{way}, world {size}: {json.dumps(found[way, size][-1])}", file=sys.stderr)
    print(f"{rounds} rounds; median (fastest to slowest)\n")
    if torchft_world is None:
        print(WITHOUT)
    for (way, size), rows in found.items():
        cells = [f"{what} {_cell([row[what] for row in rows], what)}" for what in rows[0]]
        print(f"{way:<11} world {size}:  {',  '.join(cells)}")


def _cell(values: list[float], what: str) -> str:
    digits = 0 if "steps" in what else 3
    unit = "" if digits == 0 else " s"
    middle, low, high = (format(one, f".{digits}f") for one in (statistics.median(values), min(values), max(values)))
    return f"{middle}{unit} ({low} to {high})"


if __name__ == "__main__":
    main()
