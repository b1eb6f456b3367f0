"""Sizes of models that Frog cannot train, for formulas: other names in config.json, keys without effect on sizes."""

from __future__ import annotations

from typing import Any

_GPT2 = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "n_ctx": "max_position_embeddings",
    "vocab_size": "vocab_size",
}
_WITHOUT_SIZE = {
    "rope_scaling": "positions are scaled",
    "rope_parameters": "positions are scaled",
    "sliding_window": "attention has a window",
    "use_sliding_window": "attention has a window",
    "attention_bias": "attention has biases",
    "mlp_bias": "the MLP has biases",
    "hidden_act": "another activation function",
    "attention_dropout": "attention has dropout",
    "architectures": "another architecture",
    "model_type": "another architecture",
}
"""Keys that from_hugging_face checks, and what differs if Frog's model does not have their value."""


def sizes_of(table: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of a config.json that determine sizes, with Frog's names, and what the formulas leave out."""
    if "n_embd" in table:
        return _gpt2(table)
    notes = []
    for key, what in _WITHOUT_SIZE.items():
        if table.get(key) and not _is_ours(key, table[key]) and what not in notes:
            notes.append(what)
    kept = {key: value for key, value in table.items() if key not in _WITHOUT_SIZE}
    kind = table.get("model_type")
    return {**kept, "model_type": kind if kind in ("mixtral", "qwen3") else "llama"}, notes


def _gpt2(table: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Translate GPT-2's names. Its MLP has two matrices; a gated one of 2/3 of the width has as many parameters."""
    translated = {ours: table[theirs] for theirs, ours in _GPT2.items() if theirs in table}
    inner = table.get("n_inner") or (4 * table["n_embd"] if type(table["n_embd"]) is int else None)
    if type(inner) is int:
        translated["intermediate_size"] = 2 * inner // 3
    note = "GPT-2 has learned positions, biases and a plain MLP: sizes are those of a Llama with as many parameters"
    return {**translated, "tie_word_embeddings": True}, [note]


def _is_ours(key: str, value: Any) -> bool:
    """True if Frog's model has this value too."""
    ours: dict[str, tuple[Any, ...]] = {
        "hidden_act": ("silu",),
        "model_type": ("llama", "mixtral", "qwen3"),
        "architectures": (["LlamaForCausalLM"], ["MixtralForCausalLM"], ["Qwen3ForCausalLM"]),
    }
    plain = isinstance(value, dict) and value.get("rope_type", "default") == "default"
    return value in ours.get(key, ()) or (key == "rope_parameters" and plain)
