"""The planner's speed: layouts a second of the coarse search, and searches and simulations of many GPUs.

    python benchmarks/planner_speed.py [--rounds 7] [--tiny]

The coarse search computes step time and memory of all layouts of a model on many numbers of H100, with one thread; the
layouts exist before. The commands run in processes of their own, start and imports included. Both print the median of
their rounds in processor time, which other programs on the machine disturb little, and in wall time.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.requests import base_layout
from frog.plan.estimate.sources import read_named_model
from frog.plan.layout import Layout
from frog.plan.model import PlannedModel
from frog.plan.search.coarse import KnownLayers, evaluate
from frog.plan.search.grid import Grid, joined, layout_grid

LLAMA_405B = {
    "model_type": "llama",
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
MIXTURE = PlannedModel(
    60, 7168, 128, 8, 128, 18432, 129280, experts=256, experts_per_token=8, expert_ffn=2048, dense_layers=4
)
BATCH = 20160
"""Sequences of a step, which many numbers of data-parallel ranks divide."""


@dataclass(frozen=True)
class Spent:
    """Median seconds of several rounds."""

    cpu_s: float
    wall_s: float


def median_time(work: Callable[[], object], rounds: int, who: int = resource.RUSAGE_SELF) -> Spent:
    """Return the median processor and wall time of `work` in this process, or in those it waits for."""
    cpu, wall = [], []
    for _ in range(rounds):
        before, start = resource.getrusage(who), time.perf_counter()
        work()
        after = resource.getrusage(who)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        wall.append(time.perf_counter() - start)
    return Spent(statistics.median(cpu), statistics.median(wall))


def many_layouts(model: PlannedModel, base: Layout, least: int) -> Grid:
    """Return the layouts on 8, 16, ... nodes of H100, at least so many of them."""
    grids: list[Grid] = []
    num_gpus = 0
    while sum(map(len, grids)) < least:
        num_gpus += 64
        grids.append(layout_grid(model, clusters()["h100x8"], num_gpus, base))
    return joined(grids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tiny", action="store_true", help="one round with few layouts and GPUs")
    args = parser.parse_args()
    rounds, least, most, many = (1, 1000, 256, 256) if args.tiny else (args.rounds, 500_000, 102_400, 16_384)
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "config.json"
        config.write_text(json.dumps(LLAMA_405B))
        print(f"medians of {rounds} rounds\n")
        print(f"{'coarse search':<44} {'layouts':>9} {'cpu s':>7} {'wall s':>7} {'per cpu s':>10}")
        named = read_named_model(str(config))
        base, _ = base_layout(named, {"software": "megatron", "global_batch": str(BATCH)})
        for name, model in (("Llama 3 405B", named.model), ("mixture of 256 experts", MIXTURE)):
            print_rate(name, model, base, least, rounds)
        print(f"\n{'command':<54} {'cpu s':>7} {'wall s':>7}")
        fixed = ["--cluster", "h100x8", "--anyway", "--gpus"]
        layout = ["--tp", "8", "--pp", "16", "--global-batch"]
        disturbed = ["--jitter", "0.02", "--slow", "9:2", "--slow", "77:1.5", "--slow-network", "3:2"]
        print_command(["search", str(config), *fixed, str(many)], rounds)
        print_command(["search", str(config), *fixed, str(most), "--global-batch", sixteen(most)], rounds)
        print_command(["simulate", str(config), *fixed, str(most), *layout, sixteen(most)], rounds)
        print_command(["simulate", str(config), *fixed, str(many), *layout, sixteen(many), *disturbed], rounds)


def sixteen(num_gpus: int) -> str:
    """Return the global batch of 16 micro-batches on each data-parallel rank, with tp 8 and pp 16."""
    return str(16 * num_gpus // (8 * 16))


def print_rate(name: str, model: PlannedModel, base: Layout, least: int, rounds: int) -> None:
    grid = many_layouts(model, base, least)
    spent = median_time(lambda: evaluate(base, grid, KnownLayers(model, clusters()["h100x8"])), rounds)
    print(f"{name:<44} {len(grid):>9,} {spent.cpu_s:>7.2f} {spent.wall_s:>7.2f} {len(grid) / spent.cpu_s:>10,.0f}")


def print_command(words: list[str], rounds: int) -> None:
    command = [sys.executable, "-m", "frog", "plan", *words]

    def run() -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)

    spent = median_time(run, rounds, resource.RUSAGE_CHILDREN)
    what = f"{words[0]} Llama 3 405B on {words[words.index('--gpus') + 1]} GPUs" + ", disturbed" * ("--jitter" in words)
    print(f"{what:<54} {spent.cpu_s:>7.2f} {spent.wall_s:>7.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
