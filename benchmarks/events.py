"""The cost of writing events: the time of a step's events, compared with the time of the step.

    python benchmarks/events.py [--steps 1000]

One process with one thread trains the demo's model on random tokens, alternating between a step with spans and the
step's line, and one without; the order within a pair alternates too. Prints the median difference of the pairs in
processor time, which other programs disturb little, with its 95 % interval, and the cost of the writes alone.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

from frog.core.config import OptimizerConfig, load_model_config
from frog.core.runs import EventWriter
from frog.core.runs.event_schema import FIELDS
from frog.core.runs.vocabulary import STEP_PHASES
from frog.train.model import TinyTransformer
from frog.train.optim.build_optimizer import build_optimizer
from frog.train.optim.tensors import UpdatedTensor

CONFIG = Path(__file__).parents[1] / "config" / "config.json"
_WARMUP_STEPS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = load_model_config(CONFIG)
    model = TinyTransformer(config)
    tensors = [UpdatedTensor.of(name, parameter) for name, parameter in model.named_parameters()]
    optimizer = build_optimizer(OptimizerConfig(), tensors)
    tokens = torch.randint(0, config.vocab_size, (8, 65))
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    with tempfile.TemporaryDirectory() as scratch:
        writer = EventWriter(Path(scratch) / "events.jsonl")
        line = dict.fromkeys(FIELDS["step"], 1.2345678) | {"sample_ids": list(range(8))}

        def step(write: bool) -> float:
            start = time.thread_time()
            span = writer.span if write else lambda phase: nullcontext()
            with span("data"):
                pass
            with span("forward"):
                loss = model(inputs, labels)
            with span("backward"):
                loss.backward()
            with span("reduce"):
                if write:
                    writer.collective("all_reduce", "dp", 4).done(time.monotonic_ns(), 1)
            with span("optimize"):
                optimizer.step()
            with span("zero"):
                optimizer.zero_grad()
            if write:
                writer.emit("step", **line)
            return (time.thread_time() - start) * 1e3

        pairs = []
        for index in range(_WARMUP_STEPS + args.steps):
            first = index % 2 == 0
            taken = {write: step(write) for write in (first, not first)}
            pairs.append((taken[True] - taken[False], taken[False]))
        start = time.thread_time()
        for _ in range(1000):
            for _ in STEP_PHASES:
                with writer.span("data"):
                    pass
            writer.collective("all_reduce", "dp", 4).done(time.monotonic_ns(), 1)
            writer.emit("step", **line)
        alone_us = (time.thread_time() - start) * 1e3
    differences, bare = zip(*pairs[_WARMUP_STEPS:], strict=True)
    step_ms = statistics.median(bare)
    low, middle, high = (100 * ms / step_ms for ms in median_with_interval(differences))
    print(f"torch {torch.__version__}, 1 thread, batch 8 x 64, {args.steps} pairs of steps, processor time")
    print(f"step without events {step_ms:.3f} ms; with events {middle:+.2f} % (95 %: {low:+.2f} to {high:+.2f})")
    print(f"the eight writes of a step alone: {alone_us:.0f} us = {alone_us / step_ms / 10:.2f} % of a step")


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and the two values between which it is with a probability of 95 %."""
    ordered = sorted(values)
    middle, reach = len(ordered) / 2, 0.98 * math.sqrt(len(ordered))  # ranks: binomial, 1.96 standard deviations
    low, high = max(0, math.floor(middle - reach)), min(len(ordered) - 1, math.ceil(middle + reach))
    return ordered[low], statistics.median(ordered), ordered[high]


if __name__ == "__main__":
    main()
