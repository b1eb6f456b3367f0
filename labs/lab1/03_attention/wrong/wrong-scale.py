"""Causal attention.

Shapes: B texts, H query heads, K key/value heads, T tokens of a text, C columns of a head.
"""

import math

import torch
from torch import Tensor


def attention(q_BHTC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(C)) v, each token looking at itself and at those before it."""
    _, H, T, C = q_BHTC.shape
    group = H // k_BKTC.shape[1]
    k_BHTC, v_BHTC = (part.repeat_interleave(group, dim=1) for part in (k_BKTC, v_BKTC))
    scores_BHTT = q_BHTC @ k_BHTC.transpose(-2, -1)
    future_TT = torch.ones(T, T, dtype=torch.bool).triu(diagonal=1)
    weights_BHTT = scores_BHTT.masked_fill(future_TT, -math.inf).softmax(dim=-1)
    return weights_BHTT @ v_BHTC
