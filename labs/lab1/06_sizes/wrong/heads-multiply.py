"""Compute how large a transformer is, from its config.json.

The config has hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, vocab_size,
max_position_embeddings and tie_word_embeddings.
"""

from typing import Any


def num_parameters(config: dict[str, Any]) -> int:
    """Return the number of weights. A weight used in two places counts once."""
    D, F, V = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv_width = D // config["num_attention_heads"] * config["num_key_value_heads"]
    attention = config["num_attention_heads"] * 2 * D * D + 2 * D * kv_width
    ffn = 3 * D * F
    norms = 2 * D
    layers = config["num_hidden_layers"] * (attention + ffn + norms)
    head = 0 if config["tie_word_embeddings"] else V * D
    return V * D + layers + D + head


def training_bytes(config: dict[str, Any]) -> int:
    """Return the bytes of the weights, their gradients and AdamW's averages, all float32; no activations."""
    return num_parameters(config) * (4 + 4 + 8)
