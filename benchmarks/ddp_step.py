"""The time of a DDP step at world 2 with gloo, frog, and frog over TCP, relative to a step without communication.

Without communication each of two ranks ends when it is done; with it, both end with the slower one. So the benchmark
reports each step's time on rank 0 and on the slower rank, and the processor time of both, which other programs disturb
least. "buckets alone" fills DDP's buckets and sends nothing. DDP's default buckets, of 25 MB, contain almost the whole
model, except the part that DDP sends first; buckets of 1 MB are sent while the backward pass continues.

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

from frog.core.env import world_env
from frog.core.processes import leave
from frog.train.comm import join_world
from frog.train.comm.process_group import FrogProcessGroup, register
from frog.train.model import TinyTransformer

VOCAB_SIZE = 2048
SMALL_BUCKET = ", 1 MB"
TARGETS = {"frog": 1.15}
ALONE, BUCKETS = "no communication", "buckets alone"
NAMES = (ALONE, BUCKETS, "gloo", "frog", "frog over TCP", "gloo, 1 MB", "frog, 1 MB")


def group_of(name: str) -> Any:
    FrogProcessGroup.memory = False if name == "frog over TCP" else None
    return dist.new_group(backend="frog" if "frog" in name else "gloo")


def send_nothing(state, bucket):  # type: ignore[no-untyped-def]  # torch looks at annotations
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small sizes, to check that it runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    world = join_world(world_env(), torch.device("cpu"), 300, "gloo")
    register()
    size, rounds = (TINY, 1) if args.tiny else (SMALL, 40)
    nets: dict[str, Any] = {}
    for name in NAMES:
        torch.manual_seed(0)
        net = TinyTransformer(size.config(VOCAB_SIZE))
        bucket_mb = 1 if name.endswith(SMALL_BUCKET) else 25
        nets[name] = DistributedDataParallel(net, process_group=group_of(name), bucket_cap_mb=bucket_mb)
    nets[BUCKETS].register_comm_hook(None, send_nothing)
    optimizers = {name: torch.optim.SGD(net.parameters(), lr=1e-3) for name, net in nets.items()}
    times: dict[str, list[list[float]]] = {name: [] for name in nets}
    names = list(nets)
    for number, (tokens, labels) in enumerate(size.batches(VOCAB_SIZE, rounds + 2, seed=world.rank)):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            world.barrier()
            start_s, used_s = time.monotonic(), time.process_time()
            optimizers[name].zero_grad()
            with nets[name].no_sync() if name == ALONE else contextlib.nullcontext():
                nets[name](tokens, labels).backward()
            optimizers[name].step()
            own = torch.tensor([time.monotonic() - start_s, time.process_time() - used_s], dtype=torch.float64)
            took, used = world.gather_rows(own).T
            if number >= 2:
                times[name].append([float(took[0]), float(took.max()), float(used.sum())])
    if world.is_main:
        print(f"a DDP step at world 2: {size}, {rounds} rounds, 1 thread a rank")
        medians = {
            name: [statistics.median(column) for column in zip(*found, strict=True)] for name, found in times.items()
        }
        print(f"  {'':18}" + "".join(f"{column:>14}{'ratio':>8}" for column in ("rank 0", "slower rank", "processor")))
        for name, found in medians.items():
            ratios = [s / base for s, base in zip(found, medians[ALONE], strict=True)]
            columns = "".join(f"{s * 1e3:>11.1f} ms{ratio:>8.2f}" for s, ratio in zip(found, ratios, strict=True))
            target = TARGETS.get(name)
            verdict = f"; target {target}: {'reached' if ratios[0] <= target else 'NOT reached'}" if target else ""
            print(f"  {name:18}{columns}{verdict}")
    world.barrier()
    world.leave()
    leave(0)  # gloo may abort a process that unloads torch


if __name__ == "__main__":
    main()
