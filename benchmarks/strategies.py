"""Speed of the strategies from scratch, compared with torch's own: the same model, tokens and world, in turn.

    torchrun --nproc_per_node=2 benchmarks/strategies.py [--rounds-scale 1.0] [--only zero3] [--tiny]
    torchrun --nproc_per_node=4 benchmarks/strategies.py

Both sides of a pair run through the same interface, with the same optimizer and clipping; they differ only in how they
distribute the work. One thread per rank. The sides alternate in blocks of steps; the time of a block is the slowest
rank's. Prints medians, the ratio native / ours (above 1: ours is faster), and the largest difference of the losses.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from contenders import LARGER, SMALL, TINY, FrogLoop, Size, run_block

from frog.core.config import StrategyConfig
from frog.core.config.strategy import strategy_problems
from frog.core.env import world_env
from frog.core.processes import leave
from frog.train.comm import World, join_world
from frog.train.model import TinyTransformer

VOCAB_SIZE = 2048
WARMUP_STEPS = 3
TARGETS = {"ddp, overlapped": 0.95, "zero2": None, "zero3": 0.9, "tp + sp": 0.95}


def pair(name: str, world_size: int) -> tuple[StrategyConfig, StrategyConfig]:
    """Return a strategy from scratch, and the corresponding native one."""
    fields = {
        "ddp, overlapped": ({"reduction": "overlapped"}, {}),
        "zero2": ({"name": "zero2"}, {"name": "zero2"}),
        "zero3": ({"name": "zero3"}, {"name": "zero3"}),
        "tp + sp": ({"tp": world_size}, {"tp": world_size}),
    }
    ours, native = fields[name]
    return StrategyConfig(**ours), StrategyConfig(implementation="torch", **native)


def measure(name: str, size: Size, rounds: int, steps_a_block: int, world: World) -> None:
    loops = []
    model = size.config(VOCAB_SIZE)
    if problems := strategy_problems(pair(name, world.size)[0], model, size.sequence_length, 1, world.size):
        if world.is_main:
            print(f"  {name:16} not possible: {problems[0]}", flush=True)
        return
    for strategy in pair(name, world.size):
        torch.manual_seed(0)
        loops.append(FrogLoop(TinyTransformer(model), world, strategy))
    seed = 0 if name.startswith("tp") else world.rank
    batches = size.batches(VOCAB_SIZE, WARMUP_STEPS + rounds * steps_a_block, seed=seed)
    times: list[list[float]] = [[], []]
    losses: list[list[float]] = [[], []]
    for index in range(rounds + 1):  # the first round warms up
        start = 0 if index == 0 else WARMUP_STEPS + (index - 1) * steps_a_block
        count = WARMUP_STEPS if index == 0 else steps_a_block
        for side in (0, 1) if index % 2 else (1, 0):
            ms, found = run_block(loops[side], batches[start : start + count])
            losses[side] += found
            if index:
                times[side].append(ms)
    ours, native = (statistics.median(found) for found in times)
    largest = max(abs(a - b) / b for a, b in zip(*losses, strict=True))
    if world.is_main:
        print(f"  {name:16} ours {ours:8.1f} ms  torch {native:8.1f} ms  {verdict(name, native / ours)}", flush=True)
        print(f"  {'':16} losses at most {largest:.0e} apart", flush=True)
    world.forget_axes()


def verdict(name: str, ratio: float) -> str:
    target = TARGETS[name]
    if target is None:
        return f"{ratio:5.2f} x"
    return f"{ratio:5.2f} x  target {target}: {'reached' if ratio >= target else 'NOT reached'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds-scale", type=float, default=1.0, help="factor for the number of rounds")
    parser.add_argument("--only", choices=list(TARGETS), help="run only this pair")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to check that it runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    env = world_env()
    if env.world_size < 2:
        parser.error("needs a world: torchrun --nproc_per_node=2 benchmarks/strategies.py")
    world = join_world(env, torch.device("cpu"), timeout_s=300)
    if world.is_main:
        print(f"torch {torch.__version__}, world of {world.size}, gloo, 1 thread a rank, float32", flush=True)
    for size, rounds, steps in ((TINY, 2, 1),) if args.tiny else ((SMALL, 24, 4), (LARGER, 8, 1)):
        rounds = max(2, round(rounds * args.rounds_scale))
        if world.is_main:
            print(f"\n{size}, vocabulary {VOCAB_SIZE}; {rounds} blocks of {steps} steps", flush=True)
        for name in [args.only] if args.only else TARGETS:
            measure(name, size, rounds, steps, world)
    world.leave()
    leave(0)  # gloo may abort a process that unloads torch


if __name__ == "__main__":
    main()
