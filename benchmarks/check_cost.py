"""CPU time that `frog check` adds to a training step of 10 M parameters: ratios of interleaved processes, medians.

    python benchmarks/check_cost.py [--tiny]

`not sampled` is a step between two that are read, `sampled` one of which gradients, weights and inputs are read, and
`frog run --check` the sum at its default interval.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from frog.launch.launch_commands import CHECK_EVERY, CHECK_HOOKS
from frog.observe.environment import environment

ROUNDS, STEPS, FIRST = 5, 16, 5
PROGRAM = """
import json, statistics, sys, time, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
width, heads, layers, vocabulary, batch, length, steps, first = (int(word) for word in sys.argv[1].split(","))
layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
model = nn.Sequential(nn.Embedding(vocabulary, width), nn.TransformerEncoder(layer, layers, enable_nested_tensor=False),
                      nn.Linear(width, vocabulary))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randint(vocabulary, (batch, length + 1))
times = []
for step in range(steps):
    start = time.process_time()
    loss = nn.functional.cross_entropy(model(data[:, :-1]).flatten(0, 1), data[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.process_time() - start)
print(json.dumps([sum(each.numel() for each in model.parameters()), statistics.median(times[first:])]))
"""
NEVER = 10**9


def median_s(size: str, every: int | None) -> tuple[int, float]:
    """Return the number of parameters, and the median time of a step in a process of its own.

    every: the interval of sampled steps; None: nothing is recorded.
    """
    with tempfile.TemporaryDirectory() as folder:
        changes = {"RANK": "0", "WORLD_SIZE": "1"}
        hooks = CHECK_HOOKS if every is not None else CHECK_HOOKS[:1]
        changes |= environment(Path(folder), hooks=hooks)
        if every is not None:
            changes["FROG_CHECK"] = str(every)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, size],
            env={**os.environ, **changes},
            capture_output=True,
            text=True,
            check=True,
        )
    parameters, seconds = json.loads(done.stdout)
    return int(parameters), float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="one round of a small model, to check that it runs")
    is_tiny = parser.parse_args().tiny
    rounds, size = (1, "32,2,2,100,2,16,8,5") if is_tiny else (ROUNDS, f"320,5,8,1000,4,64,{STEPS},{FIRST}")
    found = [tuple(median_s(size, every) for every in (None, NEVER, 1)) for _ in range(rounds)]
    parameters = found[0][0][0]
    plain, between, sampled = (statistics.median(row[place][1] for row in found) * 1e3 for place in range(3))
    ratios = [statistics.median(row[place][1] / row[0][1] for row in found) - 1 for place in (1, 2)]
    print(f"{parameters / 1e6:.1f} M parameters, {rounds} rounds, against the observer without a check: {plain:.1f} ms")
    print(f"not sampled: {between:.1f} ms, {100 * ratios[0]:+.1f} %")
    print(f"sampled: {sampled:.1f} ms, {100 * ratios[1]:+.1f} %")
    whole = ratios[0] + (ratios[1] - ratios[0]) / CHECK_EVERY
    print(f"frog run --check, one of {CHECK_EVERY} steps: {100 * whole:+.1f} %")


if __name__ == "__main__":
    main()
