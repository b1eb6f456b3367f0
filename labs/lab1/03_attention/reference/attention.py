"""Causal attention.

Shapes: B texts, H query heads, K key/value heads, T tokens of a text, C columns of a head.
"""

import math

import torch
from torch import Tensor


def attention(q_BHTC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt(C)) v. Each token attends to itself and to the tokens before it.

    Query head h uses key/value head h // (H / K). Do not change the arguments. Scores may be
    large, as in some trained models.

    Shapes:  q (B, H, T, C), k and v (B, K, T, C), H a multiple of K -> (B, H, T, C)
    """
    _, H, T, C = q_BHTC.shape
    group = H // k_BKTC.shape[1]
    k_BHTC, v_BHTC = (part.repeat_interleave(group, dim=1) for part in (k_BKTC, v_BKTC))
    scores_BHTT = q_BHTC @ k_BHTC.transpose(-2, -1) / math.sqrt(C)
    future_TT = torch.ones(T, T, dtype=torch.bool).triu(diagonal=1)
    weights_BHTT = scores_BHTT.masked_fill(future_TT, -math.inf).softmax(dim=-1)
    return weights_BHTT @ v_BHTC
