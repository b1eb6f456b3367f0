"""How good is the model: loss, perplexity and bits per byte on held-out text."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from frog.comm import World
from frog.data import Windows


@dataclass(frozen=True)
class Score:
    """What held-out text costs the model.

    Units:   loss in nats a token; bits_per_byte in bits a byte of UTF-8, which compares models of any vocabulary.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int


@torch.no_grad()
def evaluate(
    model: nn.Module,
    windows: Windows,
    token_bytes: np.ndarray,
    world: World,
    autocast: AbstractContextManager[object],
    *,
    max_tokens: int,
    batch_size: int,
) -> Score:
    """Score windows spread evenly over a split, shared out over the ranks.

    Comm:    one all-reduce of three numbers.
    Equals:  the score that one process computes, to rounding.
    """
    length = windows.sequence_length
    mine = spread(len(windows), max_tokens // length)[world.rank :: world.size]
    totals = torch.zeros(3, dtype=torch.float64)  # nats, tokens, bytes
    model.eval()
    for start in range(0, len(mine), batch_size):
        tokens = torch.from_numpy(windows.gather(mine[start : start + batch_size])).to(world.device)
        inputs_BT, labels_BT = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        with autocast:
            loss = model(inputs_BT, labels_BT)
        num_bytes = int(token_bytes[labels_BT.cpu().numpy()].sum())
        totals += torch.tensor([loss.item() * labels_BT.numel(), labels_BT.numel(), num_bytes], dtype=torch.float64)
    model.train()
    if world.device.type == "cuda":
        totals = totals.to(world.device)
    world.all_reduce(totals)
    nats, num_tokens, num_bytes = totals.tolist()
    loss = nats / num_tokens
    return Score(
        loss=loss,
        perplexity=math.exp(min(loss, 700.0)),
        bits_per_byte=nats / math.log(2) / max(num_bytes, 1.0),
        tokens=int(num_tokens),
    )


def spread(num_windows: int, most: int) -> np.ndarray:
    """At most `most` of the windows (but one at least), evenly apart: the first alone would be of a few documents."""
    chosen = np.linspace(0, num_windows - 1, num=min(num_windows, max(1, most)))
    return np.unique(chosen.astype(np.int64))
