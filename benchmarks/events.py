"""What writing events costs: the time of a step's events, beside the time of the step.

    python benchmarks/events.py [--steps 300]

One process trains the demo's model on random tokens, in turn with and without a span around each phase and the step's
line, a block of steps at a time. Printed are the medians of a step with and without, and the cost of the writes alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch

from frog.config import OptimizerConfig, load_model_config
from frog.core.vocabulary import STEP_PHASES
from frog.events import EventWriter
from frog.events.schema import FIELDS
from frog.model import TinyTransformer
from frog.train.optimizer import build_optimizer

CONFIG = Path(__file__).parents[1] / "config" / "config.json"
_WARMUP_STEPS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    config = load_model_config(CONFIG)
    model = TinyTransformer(config)
    parameters = list(model.parameters())
    matrices, vectors = ([p for p in parameters if (p.dim() >= 2) == want] for want in (True, False))
    optimizer = build_optimizer(OptimizerConfig(), matrices, vectors)
    tokens = torch.randint(0, config.vocab_size, (8, 65))
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    with tempfile.TemporaryDirectory() as scratch:
        writer = EventWriter(Path(scratch) / "events.jsonl")
        line = dict.fromkeys(FIELDS["step"], 1.2345678) | {"sample_ids": list(range(8))}

        def step(write: bool) -> float:
            start = time.perf_counter()
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
            return time.perf_counter() - start

        times: dict[bool, list[float]] = {True: [], False: []}
        for index in range(_WARMUP_STEPS + args.steps):
            for write in (True, False):
                seconds = step(write)
                if index >= _WARMUP_STEPS:
                    times[write].append(seconds)
        start = time.perf_counter()
        for _ in range(1000):
            for _ in STEP_PHASES:
                with writer.span("data"):
                    pass
            writer.collective("all_reduce", "dp", 4).done(time.monotonic_ns(), 1)
            writer.emit("step", **line)
        alone_us = (time.perf_counter() - start) * 1e3
    bare, told = (1e3 * statistics.median(times[write]) for write in (False, True))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, batch 8 x 64, {args.steps} steps each way")
    print(f"step without events {bare:.3f} ms, with events {told:.3f} ms (medians): {100 * (told / bare - 1):+.2f} %")
    print(f"the eight writes of a step alone: {alone_us:.0f} us = {alone_us / bare / 10:.2f} % of a step")


if __name__ == "__main__":
    main()
