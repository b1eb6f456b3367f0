"""What a server keeps of each sequence: keys and values of the tokens that later tokens see."""

from __future__ import annotations

from dataclasses import dataclass

from frog.plan.model import PlannedModel

BLOCK_TOKENS = 16
"""Tokens of a block of a paged cache: vLLM's default."""


@dataclass(frozen=True)
class KvCache:
    """The cache of one model on each of tp GPUs.

    Grouped queries share the keys and values of `kv_heads` heads; with more ranks than heads, some hold copies. Latent
    attention keeps one narrow vector for all heads, of which every rank has a copy. A layer with a sliding window keeps
    its window.
    """

    model: PlannedModel
    tp: int = 1
    number_bytes: int = 2

    @property
    def layer_numbers(self) -> float:
        """Numbers that one layer keeps of a token on one GPU."""
        model = self.model
        if (latent := model.latent) is not None:
            return latent.key_value_rank + latent.rotary_width
        heads = max(1.0, model.kv_heads / self.tp)
        return heads * (model.head_dim + (model.value_dim or model.head_dim))

    @property
    def token_bytes(self) -> float:
        """Bytes of one token in all layers on one GPU, while no window is exceeded."""
        return self.number_bytes * self.layer_numbers * self.model.layers

    def read_tokens(self, tokens: float) -> float:
        """Return the tokens that a layer has of a sequence, on average over all layers."""
        model = self.model
        windowed = model.windowed_layers / model.layers
        return tokens + windowed * (min(tokens, model.window) - tokens) if windowed else tokens

    def sequence_bytes(self, tokens: float) -> float:
        """Return the bytes of a sequence's tokens on one GPU."""
        return self.token_bytes * self.read_tokens(tokens)

    def paged_bytes(self, tokens: int) -> float:
        """Return the same in whole blocks."""
        return self.sequence_bytes(-(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS)
