"""A DDP step at world 2 through gloo, frog, and frog over TCP, as a multiple of the step without communication.

torchrun --nproc_per_node=2 benchmarks/ddp_step.py [--tiny]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from contenders import SMALL, TINY
from torch.nn.parallel import DistributedDataParallel

from frog.comm import join_world
from frog.comm.process_group import FrogProcessGroup, register
from frog.core.env import world_env
from frog.model import TinyTransformer

VOCAB_SIZE = 2048
BUCKET_MB = 1
TARGETS = {"frog": 1.15}
ALONE = "no communication"


def group_of(name: str) -> Any:
    FrogProcessGroup.memory = False if name == "frog over TCP" else None
    return dist.new_group(backend="gloo" if name in ("gloo", ALONE) else "frog")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="in miniature, to see that it runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    world = join_world(world_env(), torch.device("cpu"), 300, "gloo")
    register()
    size, rounds = (TINY, 1) if args.tiny else (SMALL, 40)
    nets: dict[str, Any] = {}
    for name in (ALONE, "gloo", "frog", "frog over TCP"):
        torch.manual_seed(0)
        net = TinyTransformer(size.config(VOCAB_SIZE))
        nets[name] = DistributedDataParallel(net, process_group=group_of(name), bucket_cap_mb=BUCKET_MB)
    optimizers = {name: torch.optim.SGD(net.parameters(), lr=1e-3) for name, net in nets.items()}
    times: dict[str, list[float]] = {name: [] for name in nets}
    names = list(nets)
    for number, (tokens, labels) in enumerate(size.batches(VOCAB_SIZE, rounds + 2, seed=world.rank)):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            world.barrier()
            start_s = time.monotonic()
            optimizers[name].zero_grad()
            with nets[name].no_sync() if name == ALONE else contextlib.nullcontext():
                nets[name](tokens, labels).backward()
            optimizers[name].step()
            if number >= 2:
                times[name].append(time.monotonic() - start_s)
    if world.is_main:
        alone_s = statistics.median(times[ALONE])
        print(f"a DDP step at world 2: {size}, {rounds} rounds, 1 thread a rank, buckets of {BUCKET_MB} MB")
        for name, found in times.items():
            ratio = statistics.median(found) / alone_s
            target = TARGETS.get(name)
            verdict = "" if target is None else f"; target {target}: {'reached' if ratio <= target else 'NOT reached'}"
            print(f"  {name:18}{statistics.median(found) * 1e3:>8.1f} ms{ratio:>7.2f} x {ALONE}{verdict}")
    world.barrier()
    world.leave()


if __name__ == "__main__":
    main()
