"""Causal attention.

Shapes: B texts, H query heads, K key/value heads, T tokens of a text, C columns of a head.
"""

import math

import torch
from torch import Tensor


def attention(q_BHTC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor) -> Tensor:
    H, K, T, C = q_BHTC.shape[1], k_BKTC.shape[1], q_BHTC.shape[2], q_BHTC.shape[3]
    k, v = (part.repeat_interleave(H // K, dim=1) for part in (k_BKTC, v_BKTC))
    scores = q_BHTC @ k.transpose(-2, -1) / math.sqrt(C)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    weights = scores.exp().masked_fill(future, 0.0)
    return weights / weights.sum(-1, keepdim=True) @ v
