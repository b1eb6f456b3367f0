"""TinyTransformer: a decoder-only transformer of the Llama family, at any size.

Shapes: B batch, T time (sequence), D model width, F FFN width, H heads, K key/value heads, C head width, V vocabulary.
Module names are those of Hugging Face's Llama, so that weights go both ways without a map.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from frog.config import ModelConfig
from frog.core.errors import ConfigError, ShapeError


class RMSNorm(nn.Module):
    """Divide by the root mean square over the width, then scale each column. Source: Zhang and Sennrich 2019."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.rms_norm(x_BTD, self.weight.shape, self.weight, self.eps)


def rotary_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles. Source: Su et al. 2021 (RoFormer).

    Shapes:  -> two of (max_position_embeddings, C), each angle twice: column c turns with column c + C/2.
    """
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    positions = torch.arange(config.max_position_embeddings, dtype=torch.float32)
    angles = torch.outer(positions, 1.0 / config.rope_theta**pairs)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x_BHTC: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
    """Turn each pair of columns by its position's angle."""
    left, right = x_BHTC.chunk(2, dim=-1)
    return x_BHTC * cos_TC + torch.cat([-right, left], dim=-1) * sin_TC


class Attention(nn.Module):
    """Causal self-attention; several query heads share one key/value head. Source: Ainslie et al. 2023 (GQA)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x_BTD: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
        B, T, _ = x_BTD.shape
        q_BHTC = self.q_proj(x_BTD).view(B, T, -1, self.head_dim).transpose(1, 2)
        k_BKTC = self.k_proj(x_BTD).view(B, T, -1, self.head_dim).transpose(1, 2)
        v_BKTC = self.v_proj(x_BTD).view(B, T, -1, self.head_dim).transpose(1, 2)
        q_BHTC, k_BKTC = rotate(q_BHTC, cos_TC, sin_TC), rotate(k_BKTC, cos_TC, sin_TC)
        grouped = q_BHTC.shape[1] != k_BKTC.shape[1]
        y_BHTC = F.scaled_dot_product_attention(q_BHTC, k_BKTC, v_BKTC, is_causal=True, enable_gqa=grouped)
        return self.o_proj(y_BHTC.transpose(1, 2).reshape(B, T, -1))


class FeedForward(nn.Module):
    """SwiGLU: one projection gates the other. Source: Shazeer 2020."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))


class Layer(nn.Module):
    """Attention, then the FFN, each on a normalised copy and added to the stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x_BTD: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos_TC, sin_TC)
        return x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))


class TinyTransformer(nn.Module):
    """Token ids to logits, or with labels to the mean cross-entropy.

    Raises:  ConfigError if the sizes cannot be.
    """

    cos_TC: Tensor
    sin_TC: Tensor

    def __init__(self, config: ModelConfig, activation_checkpointing: bool = False) -> None:
        super().__init__()
        if problems := config.problems():
            raise ConfigError("the model cannot be built\n" + "\n".join(f"  - {problem}" for problem in problems))
        self.config = config
        self.activation_checkpointing = activation_checkpointing
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        cos_TC, sin_TC = rotary_tables(config)
        self.register_buffer("cos_TC", cos_TC, persistent=False)
        self.register_buffer("sin_TC", sin_TC, persistent=False)
        self.init_weights()

    def init_weights(self) -> None:
        """Draw every matrix from a normal distribution; tie the embedding if the config says so."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.initializer_range)
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens_BT: Tensor, labels_BT: Tensor | None = None) -> Tensor:
        """Logits, or the mean cross-entropy if labels are given.

        Shapes:  tokens_BT (B, T), labels_BT (B, T): the token that follows each -> (B, T, V), or a scalar
        Raises:  ShapeError if the sequence is longer than the model has positions.
        """
        T = tokens_BT.shape[1]
        if self.config.max_position_embeddings < T:
            raise ShapeError(
                f"sequence of {T} tokens, but max_position_embeddings={self.config.max_position_embeddings}",
                "shorten the sequence, or raise max_position_embeddings",
            )
        cos_TC, sin_TC = self.cos_TC[:T], self.sin_TC[:T]
        x_BTD = self.embed_tokens(tokens_BT)
        for layer in self.layers:
            if self.activation_checkpointing and self.training:
                x_BTD = checkpoint(layer, x_BTD, cos_TC, sin_TC, use_reentrant=False)
            else:
                x_BTD = layer(x_BTD, cos_TC, sin_TC)
        logits_BTV: Tensor = self.lm_head(self.norm(x_BTD))
        if labels_BT is None:
            return logits_BTV
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), labels_BT.flatten())
