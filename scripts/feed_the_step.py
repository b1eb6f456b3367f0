"""Measure how long a training step waits for its batch, with a slow loader and with one that reads ahead.

    python scripts/feed_the_step.py --workers 0
    python scripts/feed_the_step.py --workers 2

Reading a sample takes --read-ms, as from a shared disk or server. Without workers, the program itself reads all samples
between two steps. Each worker is a process that reads ahead while the step computes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch loads: threads that wait sleep and do not spin

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class SlowText(Dataset[Tensor]):
    """Samples of 64 tokens; reading each takes `read_ms`."""

    def __init__(self, samples: int, read_ms: float) -> None:
        self.samples, self.read_ms = samples, read_ms

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.read_ms / 1000)  # a real data set would read a file, decode it and tokenize it
        return torch.randint(0, 2048, (64,), generator=torch.Generator().manual_seed(index))


def measure(loader: DataLoader[Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    """Return the median seconds of waiting for a batch and of computing, over all steps except the first."""
    waits, computes, end = [], [], time.perf_counter()
    for tokens_BT in loader:
        begin = time.perf_counter()
        loss = model(tokens_BT).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        waits.append(begin - end)
        end = time.perf_counter()
        computes.append(end - begin)
    return statistics.median(waits[1:]), statistics.median(computes[1:])  # the first wait starts the workers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=0, help="processes that read ahead (num_workers)")
    parser.add_argument("--read-ms", type=float, default=4.0, help="milliseconds to read one sample")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    if args.workers < 0 or args.read_ms < 0 or args.steps < 2 or args.batch_size < 1:
        parser.error("--workers and --read-ms must be at least 0, --steps at least 2, --batch-size at least 1")

    torch.set_num_threads(1)
    model = nn.Sequential(nn.Embedding(2048, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    optimizer = torch.optim.AdamW(model.parameters())
    data = SlowText(args.steps * args.batch_size, args.read_ms)
    loader = DataLoader(data, args.batch_size, num_workers=args.workers)
    wait_s, compute_s = measure(loader, model, optimizer)
    print(
        f"{args.workers} workers: a step waits {1000 * wait_s:.1f} ms for its batch, computes {1000 * compute_s:.1f} ms"
    )
    print(f"the model is idle for {wait_s / (wait_s + compute_s):.0%} of the time")


if __name__ == "__main__":
    main()
