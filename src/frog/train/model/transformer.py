"""TinyTransformer: a decoder-only transformer of the Llama family, at any size.

Shapes: B batch, T time (sequence), D model width, F FFN width, H heads, K key/value heads, C head width, V vocabulary.
Module names are those of Hugging Face's Llama, so that weights convert both ways without renaming.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from frog.core.config import ModelConfig
from frog.core.errors import ConfigError, ShapeError
from frog.train.model.functions import attention_by_scores, linear, linear_cross_entropy, writes_scores_out
from frog.train.model.moe import Experts, MixtureOfExperts, balance_losses, weigh


class Linear(nn.Linear):
    """A linear layer without bias; on a CPU its products may be faster than those of `nn.Linear`."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__(in_width, out_width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)


class RMSNorm(nn.Module):
    """Divide by the root mean square over the width, then scale each column. Source: Zhang and Sennrich 2019."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.rms_norm(x_BTD, self.weight.shape, self.weight, self.eps)


def rotary_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Compute the cosine and sine of every position's angles. Source: Su et al. 2021 (RoFormer).

    Shapes:  -> two of (max_position_embeddings, C): columns c and c + C/2 turn by the same angle
    """
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    positions = torch.arange(config.max_position_embeddings, dtype=torch.float32)
    angles = torch.outer(positions, 1.0 / config.rope_theta**pairs)
    angles_TC = torch.cat([angles, angles], dim=-1)
    return angles_TC.cos(), angles_TC.sin()


def rotate(x_BHTC: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
    """Turn each pair of columns c and c + C/2 of each head by its position's angle."""
    left, right = x_BHTC.chunk(2, dim=-1)
    return x_BHTC * cos_TC + torch.cat([-right, left], dim=-1) * sin_TC


def causal_attention(q_BHTC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor) -> Tensor:
    """Compute softmax(q k^T / sqrt(C)) v, where each position attends to itself and earlier ones.

    Shapes:  q (B, H, T, C), k and v (B, K, T, C) -> (B, H, T, C)
    """
    if writes_scores_out(q_BHTC, k_BKTC, v_BKTC):
        return attention_by_scores(q_BHTC, k_BKTC, v_BKTC)
    grouped = q_BHTC.shape[1] != k_BKTC.shape[1]
    return F.scaled_dot_product_attention(q_BHTC, k_BKTC, v_BKTC, is_causal=True, enable_gqa=grouped)


class Attention(nn.Module):
    """Causal self-attention; several query heads share one key/value head. Source: Ainslie et al. 2023 (GQA).

    With `qk_norm` each head's queries and keys are normalized. Source: Dehghani et al. 2023 (ViT-22B), section 2.
    """

    attend: Callable[[Tensor, Tensor, Tensor], Tensor] = staticmethod(causal_attention)
    """The attention function; a strategy that splits the sequence replaces it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q_proj = Linear(config.hidden_size, config.hidden_size)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.k_proj = Linear(config.hidden_size, config.kv_width)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.v_proj = Linear(config.hidden_size, config.kv_width)
        self.o_proj = Linear(config.hidden_size, config.hidden_size)

    def forward(self, x_BTD: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
        B, T, _ = x_BTD.shape
        heads = (B, T, -1, self.head_dim)
        q_BHTC = self.q_norm(self.q_proj(x_BTD).view(heads)).transpose(1, 2)
        k_BKTC = self.k_norm(self.k_proj(x_BTD).view(heads)).transpose(1, 2)
        v_BKTC = self.v_proj(x_BTD).view(heads).transpose(1, 2)
        y_BHTC = self.attend(rotate(q_BHTC, cos_TC, sin_TC), rotate(k_BKTC, cos_TC, sin_TC), v_BKTC)
        y_BTD: Tensor = self.o_proj(y_BHTC.transpose(1, 2).reshape(B, T, -1))
        return y_BTD


class FeedForward(nn.Module):
    """SwiGLU: one projection gates the other. Source: Shazeer 2020."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD: Tensor = self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))
        return y_BTD


class Layer(nn.Module):
    """Attention, then the FFN; each reads a normalized copy of the residual stream and adds its output to it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config) if config.num_local_experts is None else MixtureOfExperts(config)

    def forward(self, x_BTD: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos_TC, sin_TC)
        y_BTD: Tensor = x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))
        return y_BTD


def mean_token_loss(x_BTD: Tensor, w_VD: Tensor, labels_BT: Tensor) -> Tensor:
    """Compute the mean cross-entropy of the logits `x @ w.T`."""
    return linear_cross_entropy(x_BTD.flatten(0, 1), w_VD, labels_BT.flatten())


class TinyTransformer(nn.Module):
    """Maps token ids to logits, or with labels to the mean cross-entropy.

    Raises:  ConfigError if the sizes are invalid.
    """

    cos_TC: Tensor
    sin_TC: Tensor
    token_loss: Callable[[Tensor, Tensor, Tensor], Tensor] = staticmethod(mean_token_loss)
    """The loss function; a strategy that splits the vocabulary replaces it."""

    def __init__(self, config: ModelConfig, activation_checkpointing: bool = False) -> None:
        super().__init__()
        if problems := config.problems():
            raise ConfigError("the model cannot be built\n" + "\n".join(f"  - {problem}" for problem in problems))
        self.config = config
        self.activation_checkpointing = activation_checkpointing
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
        cos_TC, sin_TC = rotary_tables(config)
        self.register_buffer("cos_TC", cos_TC, persistent=False)
        self.register_buffer("sin_TC", sin_TC, persistent=False)
        self.init_weights()

    def init_weights(self) -> None:
        """Draw every matrix from a normal distribution; tie the embedding if the config says so."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.initializer_range)
            elif isinstance(module, Experts):
                module.init_weights(self.config.initializer_range)
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens_BT: Tensor, labels_BT: Tensor | None = None, positions_T: Tensor | None = None) -> Tensor:
        """Return logits, or the mean cross-entropy if labels are given.

        Shapes:  tokens_BT (B, T), labels_BT (B, T): the token that follows each; positions_T (T,): 0 to T-1 if not
                 given -> (B, T, V), or a scalar
        Raises:  ShapeError if the sequence is longer than the model has positions.
        """
        cos_TC, sin_TC = self.rotations(tokens_BT.shape[1], positions_T)
        x_BTD = self.embed_tokens(tokens_BT)
        with balance_losses(self.layers) as balance:
            for layer in self.layers:
                x_BTD = self.run_layer(layer, x_BTD, cos_TC, sin_TC)
        y = self.head(x_BTD, labels_BT)
        return y if labels_BT is None or not balance else y + weigh(balance, self.config)

    def rotations(self, T: int, positions_T: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the rotary tables of these positions.

        Shapes:  -> two of (T, C)
        """
        if self.config.max_position_embeddings < T:
            raise ShapeError(
                f"sequence of {T} tokens, but max_position_embeddings={self.config.max_position_embeddings}",
                "shorten the sequence, or raise max_position_embeddings",
            )
        rows = slice(T) if positions_T is None else positions_T
        return self.cos_TC[rows], self.sin_TC[rows]

    def run_layer(self, layer: nn.Module, x_BTD: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
        """Run one layer; with activation checkpointing its insides are recomputed in the backward pass."""
        y_BTD: Tensor
        if self.activation_checkpointing and self.training:
            y_BTD = checkpoint(layer, x_BTD, cos_TC, sin_TC, use_reentrant=False)
        else:
            y_BTD = layer(x_BTD, cos_TC, sin_TC)
        return y_BTD

    def head(self, x_BTD: Tensor, labels_BT: Tensor | None) -> Tensor:
        """Apply the norm after the last layer, then compute the logits or their mean cross-entropy."""
        x_BTD = self.norm(x_BTD)
        if labels_BT is None:
            logits_BTV: Tensor = self.lm_head(x_BTD)
            return logits_BTV
        return self.token_loss(x_BTD, self.lm_head.weight, labels_BT)
