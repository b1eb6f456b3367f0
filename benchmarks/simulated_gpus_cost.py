"""CPU time of a small training step with simulated GPUs and without: medians of interleaved processes, and their ratio.

    python benchmarks/simulated_gpus_cost.py [--tiny]

The shared cores of a busy machine change the ratio of the smallest step by a tenth, hence the many rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

from frog.observe.environment import simulated_gpus

ROUNDS = 7
PROGRAM = """
import json, statistics, sys, time, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
device = sys.argv[1]
width, heads, layers, vocabulary, batch, length = (int(word) for word in sys.argv[2].split(","))
layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
model = nn.Sequential(nn.Embedding(vocabulary, width), nn.TransformerEncoder(layer, layers, enable_nested_tensor=False),
                      nn.Linear(width, vocabulary)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
data = torch.randint(vocabulary, (batch, length + 1), device=device)
times = []
for step in range(int(sys.argv[3])):
    start = time.process_time()
    loss = nn.functional.cross_entropy(model(data[:, :-1]).flatten(0, 1), data[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.process_time() - start)
print(json.dumps(statistics.median(times[5:])))
"""
SIZES = {
    "tiny (2 layers of 32, batch 2 of 16)": "32,2,2,100,2,16",
    "small (4 layers of 128, batch 8 of 64)": "128,4,4,1000,8,64",
}


def median_s(device: str, size: str, steps: int) -> float:
    """Return the median time of a step in a process of its own."""
    env = {**os.environ, **(simulated_gpus(1) if device == "cuda" else {})}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, device, size, str(steps)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="one round of few steps, to check that it runs")
    rounds, steps = (1, 8) if parser.parse_args().tiny else (ROUNDS, 60)
    for name, size in SIZES.items():
        pairs = [(median_s("cpu", size, steps), median_s("cuda", size, steps)) for _ in range(rounds)]
        plain, simulated = (statistics.median(times) * 1e3 for times in zip(*pairs, strict=True))
        ratio = statistics.median(with_ / without for without, with_ in pairs)
        print(f"{name}: {plain:.2f} ms without, {simulated:.2f} ms with simulated GPUs, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
