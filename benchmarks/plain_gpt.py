"""A plain GPT with nanoGPT's architecture: the baseline for Frog's speed.

Learned positions, LayerNorm without bias, one matrix for queries, keys and values, a GELU FFN four times as wide, a
tied embedding, attention through `scaled_dot_product_attention`.

Shapes: B batch, T time, D model width, H heads, C head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LayerNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.layer_norm(x_BTD, self.weight.shape, self.weight)


class Attention(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        parts = self.qkv(x_BTD).split(D, dim=-1)
        q_BHTC, k_BHTC, v_BHTC = (part.view(B, T, self.num_heads, -1).transpose(1, 2) for part in parts)
        y_BHTC = F.scaled_dot_product_attention(q_BHTC, k_BHTC, v_BHTC, is_causal=True)
        return self.out(y_BHTC.transpose(1, 2).reshape(B, T, D))


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(width)
        self.attention = Attention(width, num_heads)
        self.ffn_norm = LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width, bias=False)
        self.narrow = nn.Linear(4 * width, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
        return x_BTD + self.narrow(F.gelu(self.widen(self.ffn_norm(x_BTD))))


class PlainGPT(nn.Module):
    """Compute the mean cross-entropy of tokens and labels."""

    def __init__(self, vocab_size: int, width: int, num_layers: int, num_heads: int, num_positions: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(num_positions, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_layers))
        self.norm = LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
        x_BTD = self.tokens(tokens_BT) + self.positions(torch.arange(tokens_BT.shape[1], device=tokens_BT.device))
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits_BTV = self.head(self.norm(x_BTD))
        return F.cross_entropy(logits_BTV.view(-1, logits_BTV.shape[-1]), labels_BT.view(-1))
