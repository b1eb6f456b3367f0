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
    raise NotImplementedError("fill in attention")
