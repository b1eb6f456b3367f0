"""Time for which a checkpoint blocks a training step, compared with one memcpy of the same bytes.

    python benchmarks/checkpoint.py [--sizes 128 1536] [--rounds 5]

One rank has weights and two AdamW moments, as views of flat buffers, as in training. Each round times: a memcpy of the
state into mapped memory (the least work that preserves the state), Frog's `Saver.save` (which returns when training can
continue), and `torch.distributed.checkpoint.async_save`. Between turns the benchmark waits for each writer, so that no
turn pays for another's disk. Times are medians; ratios are ratios of medians.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from frog.core.runs.folder import RunFolder
from frog.train.checkpoint import Saver
from frog.train.comm.local_shard import LocalShard

NUM_TENSORS = 36
"""Per moment: the number in a model with four layers."""


def make_state(num_bytes: int) -> dict[str, Tensor]:
    """Create three flat float32 buffers, split into views of one size."""
    count = num_bytes // 4 // 3 // NUM_TENSORS
    state = {}
    for part in ("model", "optimizer/exp_avg", "optimizer/exp_avg_sq"):
        flat = torch.randn(count * NUM_TENSORS)
        state |= {f"{part}/{index}": flat[index * count : (index + 1) * count] for index in range(NUM_TENSORS)}
    return state


def held_by_memcpy(state: dict[str, Tensor], targets: dict[str, Tensor]) -> float:
    start = time.perf_counter()
    for name, tensor in state.items():
        targets[name].copy_(tensor)
    return time.perf_counter() - start


def held_by_frog(saver: Saver, step: int) -> float:
    start = time.perf_counter()
    saver.save(step, {"step": step}, {})
    held = time.perf_counter() - start
    saver.wait()
    return held


def held_by_dcp(state: dict[str, Tensor], folder: Path) -> float:
    start = time.perf_counter()
    future = dcp.async_save(state, checkpoint_id=folder)
    held = time.perf_counter() - start
    future.result()  # type: ignore[union-attr]
    shutil.rmtree(folder)
    return held


def measure(size_mib: int, rounds: int, scratch: Path) -> str:
    state = make_state(size_mib << 20)
    targets = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    folder = RunFolder(scratch / f"run_{size_mib}")
    held = [LocalShard(name, tensor, (0,) * tensor.dim(), tuple(tensor.shape)) for name, tensor in state.items()]
    saver = Saver(folder, 0, 1, held, {}, attempt="bench", keep_last=1, timeout_s=600)
    turns: dict[str, Callable[[int], float]] = {
        "memcpy": lambda step: held_by_memcpy(state, targets),
        "frog": lambda step: held_by_frog(saver, step),
        "dcp.async_save": lambda step: held_by_dcp(state, scratch / "dcp"),
    }
    held: dict[str, list[float]] = {name: [] for name in turns}
    for step in range(rounds + 1):
        for name, turn in turns.items():
            seconds = turn(step)
            if step:  # the first round warms up
                held[name].append(seconds)
    medians = {name: statistics.median(times) for name, times in held.items()}
    lines = [
        f"{size_mib:>6} MiB  {name:<15} {1e3 * medians[name]:9.1f} ms  "
        f"{medians[name] / medians['memcpy']:6.2f} x memcpy   (min {1e3 * min(times):.1f}, max {1e3 * max(times):.1f})"
        for name, times in held.items()
    ]
    shutil.rmtree(folder.path)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 1536], metavar="MIB")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}, {args.rounds} rounds")
    with tempfile.TemporaryDirectory() as scratch:
        for size_mib in args.sizes:
            print(measure(size_mib, args.rounds, Path(scratch)), flush=True)


if __name__ == "__main__":
    main()
