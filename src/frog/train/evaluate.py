"""Model quality: loss, perplexity and bits per byte on held-out text."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from frog.train.data import Windows
from frog.train.parallel.strategy import Strategy


@dataclass(frozen=True)
class Score:
    """Scores of a model on held-out text.

    Units:   loss in nats per token; bits_per_byte in bits per byte of UTF-8, comparable across vocabularies.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int


def evaluate(
    strategy: Strategy, windows: Windows, token_bytes: np.ndarray, *, max_tokens: int, batch_size: int
) -> Score:
    """Score windows spread evenly over a split, shared out over the dp axis.

    All ranks run the same number of forward passes, since strategies communicate in them; a rank that runs out of
    windows repeats the first and ignores its loss.

    Comm:    one all-reduce over `dp` of three numbers, plus the strategy's own communication.
    Equals:  the score that one process computes, up to rounding.
    """
    dp, device = strategy.mesh.dp, strategy.mesh.world.device
    chosen = spread(len(windows), max_tokens // windows.sequence_length)
    mine = chosen[dp.rank :: dp.size]
    totals = torch.zeros(3, dtype=torch.float64)  # nats, tokens, bytes
    strategy.train(False)
    for start in range(0, -(-len(chosen) // dp.size), batch_size):
        ids = mine[start : start + batch_size]
        tokens = torch.from_numpy(windows.gather(ids if len(ids) else chosen[:1])).to(device)
        inputs_BT, labels_BT = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        loss = strategy.loss(inputs_BT, labels_BT)
        if len(ids):
            num_bytes = int(token_bytes[labels_BT.cpu().numpy()].sum())
            counted = [loss.item() * labels_BT.numel(), labels_BT.numel(), num_bytes]
            totals += torch.tensor(counted, dtype=torch.float64)
    strategy.train()
    totals = totals.to(device) if dp.size > 1 else totals
    dp.all_reduce(totals)
    nats, num_tokens, num_bytes = totals.tolist()
    loss_mean = nats / num_tokens
    return Score(
        loss=loss_mean,
        perplexity=math.exp(min(loss_mean, 700.0)),
        bits_per_byte=nats / math.log(2) / max(num_bytes, 1.0),
        tokens=int(num_tokens),
    )


def spread(num_windows: int, most: int) -> np.ndarray:
    """Choose at most `most` windows (at least one), evenly spaced: the first ones come from only a few documents."""
    chosen = np.linspace(0, num_windows - 1, num=min(num_windows, max(1, most)))
    return np.unique(chosen.astype(np.int64))
