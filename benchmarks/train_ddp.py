"""Training speed of a world of two on a CPU: Frog's step, compared with a hand-written DistributedDataParallel loop.

    torchrun --nproc_per_node=2 benchmarks/train_ddp.py [--rounds-scale 1.0] [--tiny]

The same model, weights and tokens, one thread per rank, alternating blocks of steps. The time of a block is the slowest
rank's. The agreement of the losses, step by step, shows that both average the same gradients.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from contenders import LARGER, SMALL, TINY, FrogLoop, PlainLoop, Size, run_block
from torch.nn.parallel import DistributedDataParallel

from frog.core.env import world_env
from frog.core.processes import leave
from frog.train.comm import World, join_world
from frog.train.model import TinyTransformer

VOCAB_SIZE = 2048
TARGET = 0.98
WARMUP_STEPS = 3
DDP, DDP_FUSED, FROG = "DDP loop", "DDP loop, fused AdamW", "Frog"


def build(size: Size, world: World) -> dict[str, PlainLoop | FrogLoop]:
    def model() -> TinyTransformer:
        torch.manual_seed(0)
        return TinyTransformer(size.config(VOCAB_SIZE))

    return {
        DDP: PlainLoop(DistributedDataParallel(model())),
        DDP_FUSED: PlainLoop(DistributedDataParallel(model()), fused=True),
        FROG: FrogLoop(model(), world),
    }


def measure(size: Size, rounds: int, steps_a_block: int, world: World) -> None:
    loops = build(size, world)
    times: dict[str, list[float]] = {name: [] for name in loops}
    losses: dict[str, list[float]] = {name: [] for name in loops}
    batches = size.batches(VOCAB_SIZE, WARMUP_STEPS + rounds * steps_a_block, seed=world.rank)
    for loop in loops.values():
        run_block(loop, batches[:WARMUP_STEPS])
    names = list(loops)
    for index in range(rounds):
        start = WARMUP_STEPS + index * steps_a_block
        first = index % len(names)
        for name in names[first:] + names[:first]:
            ms, block_losses = run_block(loops[name], batches[start : start + steps_a_block])
            times[name].append(ms)
            losses[name] += block_losses
    if world.is_main:
        report(size, {name: statistics.median(ms) for name, ms in times.items()}, rounds, steps_a_block)
        difference = max(abs(a - b) / b for a, b in zip(losses[FROG], losses[DDP], strict=True))
        print(f"  losses of Frog and DDP over {len(losses[FROG])} steps differ by at most {difference:.1e}", flush=True)


def report(size: Size, medians: dict[str, float], rounds: int, steps_a_block: int) -> None:
    print(f"\n{size} on each rank, vocabulary {VOCAB_SIZE}; {rounds} blocks of {steps_a_block} steps each")
    for name, ms in medians.items():
        print(f"  {name:24}{ms:>9.1f} ms/step{medians[DDP] / ms:>7.2f} x DDP")
    worst = min(medians[DDP], medians[DDP_FUSED]) / medians[FROG]
    print(f"  {worst:.2f} x the faster DDP; target {TARGET}: {'reached' if worst >= TARGET else 'NOT reached'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds-scale", type=float, default=1.0, help="factor for the number of rounds")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to check that it runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    env = world_env()
    if env.world_size < 2:
        parser.error("needs a world: torchrun --nproc_per_node=2 benchmarks/train_ddp.py")
    world = join_world(env, torch.device("cpu"), timeout_s=300)
    if world.is_main:
        print(f"torch {torch.__version__}, world of {world.size}, gloo, 1 thread a rank, float32", flush=True)
    for size, rounds, steps in ((TINY, 2, 1),) if args.tiny else ((SMALL, 40, 4), (LARGER, 14, 1)):
        measure(size, max(2, round(rounds * args.rounds_scale)), steps, world)
    world.leave()
    leave(0)  # gloo may abort a process that unloads torch


if __name__ == "__main__":
    main()
