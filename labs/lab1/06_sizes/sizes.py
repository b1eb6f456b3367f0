"""Compute how large a transformer is, from its config.json.

The config has hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, vocab_size,
max_position_embeddings and tie_word_embeddings.
"""

from typing import Any


def num_parameters(config: dict[str, Any]) -> int:
    """Return the number of weights. A weight used in two places counts once."""
    raise NotImplementedError("fill in num_parameters")


def training_bytes(config: dict[str, Any]) -> int:
    """Return the bytes of the weights, their gradients and AdamW's averages, all float32; no activations."""
    raise NotImplementedError("fill in training_bytes")
