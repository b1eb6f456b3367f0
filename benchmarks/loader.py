"""Tokens per second of the data loader alone, which must exceed those of any training step.

    python benchmarks/loader.py

`loader` requests batches as fast as possible, so it shows the rate of the background thread; `gather` reads the windows
of random samples without the loader. The text is the embedded corpus, repeated until no cache can hold its tokens.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from frog.train.data import Document, Loader, Windows, prepare, python_docs, sample_ids

_SIZES = ((64, 12), (1024, 32))
_TOKENS_A_RUN = 4_000_000


def prepared_windows(root: Path, num_repeats: int) -> dict[int, Windows]:
    """Prepare the embedded corpus, repeated, and cut it at each sequence length."""

    def documents() -> list[Document]:
        return [
            Document(f"{number}/{document.name}", document.text)
            for number in range(num_repeats)
            for document in python_docs()
        ]

    corpus = documents()
    split = prepare("loader", lambda: iter(corpus), source="repeated docs", root=root).split("train")
    return {sequence_length: Windows(split, sequence_length) for sequence_length, _ in _SIZES}


def loader_rate(windows: Windows, batch_size: int) -> float:
    """Return the tokens per second through `Loader`."""
    num_steps = _TOKENS_A_RUN // (batch_size * windows.sequence_length)
    with Loader(windows, seed=1, global_batch_size=batch_size, dp_rank=0, dp_size=1, grad_accum=1) as loader:
        next(loader)
        start_s = time.perf_counter()
        for _ in range(num_steps):
            next(loader)
        return num_steps * batch_size * windows.sequence_length / (time.perf_counter() - start_s)


def gather_rate(windows: Windows, batch_size: int) -> float:
    """Return the tokens per second through `Windows.gather`, with the samples drawn in advance."""
    num_steps = _TOKENS_A_RUN // (batch_size * windows.sequence_length)
    ids = [sample_ids(1, step, batch_size, len(windows)) for step in range(1, num_steps + 1)]
    start_s = time.perf_counter()
    for ids_N in ids:
        windows.gather(ids_N)
    return num_steps * batch_size * windows.sequence_length / (time.perf_counter() - start_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7, help="number of runs for each median")
    parser.add_argument("--repeats", type=int, default=64, help="copies of the corpus: 64 are about 40 million tokens")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        windows = prepared_windows(Path(folder), args.repeats)
        print(f"{os.cpu_count()} cores, numpy {np.__version__}, median of {args.runs} runs (least to most)")
        print(f"{'what':<8}{'sequence':>10}{'batch':>8}{'M tokens/s':>14}{'µs a batch':>14}")
        for sequence_length, batch_size in _SIZES:
            measures: dict[str, Callable[[Windows, int], float]] = {"loader": loader_rate, "gather": gather_rate}
            for name, measure in measures.items():
                rates = [measure(windows[sequence_length], batch_size) for _ in range(args.runs)]
                middle = statistics.median(rates)
                batch_us = batch_size * sequence_length / middle * 1e6
                spread = f"({min(rates) / 1e6:.1f} to {max(rates) / 1e6:.1f})"
                print(f"{name:<8}{sequence_length:>10}{batch_size:>8}{middle / 1e6:>14.1f}{batch_us:>14.0f}  {spread}")


if __name__ == "__main__":
    main()
