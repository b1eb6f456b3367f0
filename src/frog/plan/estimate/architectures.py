"""Hugging Face's config.json of other architectures, as the planner sees a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from frog.core.errors import ConfigError
from frog.core.schema import decode, read_bounded
from frog.plan.estimate.model import LatentAttention, PlannedModel

_LLAMAS = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma", "phi3", "olmo2")
_MOST = 10**8
"""Largest size: above it, a typing mistake."""
_DEEPSEEK = ("deepseek", "deepseek_v2", "deepseek_v3", "kimi_k2")


def read_model(path: Path) -> PlannedModel:
    """Read a config.json.

    Raises:  ConfigError if it is missing, not JSON, or of an architecture that the planner does not know.
    """
    try:
        data = read_bounded(path, ConfigError, "name a config.json of Hugging Face transformers")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", "name a config.json of Hugging Face transformers") from None
    return model_of(decode(data, dict[str, Any], str(path), None, ConfigError), str(path))


def model_of(table: Mapping[str, Any], origin: str = "config.json") -> PlannedModel:
    """Return the model that the content of a config.json describes.

    Raises:  ConfigError if a size is missing or the architecture is unknown.
    """
    kind = table.get("model_type")
    try:
        if kind == "gpt2":
            return _gpt2(table)
        if kind == "gpt_neox":
            return _gpt_neox(table)
        if kind in _DEEPSEEK:
            return _deepseek(table)
        if kind in _LLAMAS:
            return _llama(table)
    except KeyError as missing:
        raise ConfigError(f"{origin}: {missing.args[0]} is missing", f"model_type={kind!r} needs it") from None
    except (TypeError, ValueError, ZeroDivisionError):
        raise ConfigError(f"{origin}: a size is not a positive whole number, at most {_MOST:,}") from None
    known = ", ".join((*_LLAMAS, "gpt2", "gpt_neox", *_DEEPSEEK))
    raise ConfigError(f"{origin}: model_type={kind!r} is not an architecture that the planner knows", f"known: {known}")


def _size(table: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = table[name] if default is None else table.get(name)
    value = default if value is None else value
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(name)
    return value


def _llama(table: Mapping[str, Any]) -> PlannedModel:
    heads, hidden = _size(table, "num_attention_heads"), _size(table, "hidden_size")
    experts = _size(table, "num_local_experts", 0) or _size(table, "num_experts", 0)
    ffn = _size(table, "intermediate_size")
    expert_ffn = _size(table, "moe_intermediate_size", ffn)
    shared = _size(table, "shared_expert_intermediate_size", 0)
    layers = _size(table, "num_hidden_layers")
    return PlannedModel(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_size(table, "num_key_value_heads", heads),
        head_dim=_size(table, "head_dim", hidden // heads),
        ffn=ffn,
        vocab=_size(table, "vocab_size"),
        tied=bool(table.get("tie_word_embeddings", table["model_type"] == "gemma")),
        query_key_value_bias=bool(table.get("attention_bias")) or str(table["model_type"]).startswith("qwen2"),
        head_norms=str(table["model_type"]).startswith("qwen3"),
        query_key_norms=table["model_type"] == "olmo2",
        experts=experts,
        experts_per_token=_size(table, "num_experts_per_tok", 2) if experts else 0,
        shared_experts=shared // expert_ffn if experts else 0,
        shared_gate=bool(experts and shared),
        expert_ffn=expert_ffn if experts else 0,
        dense_layers=_layers_without_experts(table, layers) if experts else 0,
    )


def _layers_without_experts(table: Mapping[str, Any], layers: int) -> int:
    """Return how many layers of a Qwen mixture are dense: those in `mlp_only_layers`, and all but each n-th."""
    step, dense = _size(table, "decoder_sparse_step", 1), table.get("mlp_only_layers") or []
    return sum(layer in dense or (layer + 1) % step != 0 for layer in range(layers))


def _gpt2(table: Mapping[str, Any]) -> PlannedModel:
    hidden, heads = _size(table, "n_embd"), _size(table, "n_head")
    return PlannedModel(
        layers=_size(table, "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=_size(table, "n_inner", 4 * hidden),
        vocab=_size(table, "vocab_size"),
        gated=False,
        tied=bool(table.get("tie_word_embeddings", True)),
        biases=True,
        positions=_size(table, "n_positions", 1024),
    )


def _gpt_neox(table: Mapping[str, Any]) -> PlannedModel:
    hidden, heads = _size(table, "hidden_size"), _size(table, "num_attention_heads")
    return PlannedModel(
        layers=_size(table, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=_size(table, "intermediate_size"),
        vocab=_size(table, "vocab_size"),
        gated=False,
        tied=bool(table.get("tie_word_embeddings", False)),
        biases=True,
    )


def _deepseek(table: Mapping[str, Any]) -> PlannedModel:
    """Return a DeepSeek mixture of experts; the attention of the first generation is that of Llama."""
    heads, hidden, layers = (_size(table, name) for name in ("num_attention_heads", "hidden_size", "num_hidden_layers"))
    model = PlannedModel(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_size(table, "num_key_value_heads", heads),
        head_dim=hidden // heads,
        ffn=_size(table, "intermediate_size"),
        vocab=_size(table, "vocab_size"),
        tied=bool(table.get("tie_word_embeddings", False)),
        experts=_size(table, "n_routed_experts"),
        experts_per_token=_size(table, "num_experts_per_tok"),
        shared_experts=_size(table, "n_shared_experts", 0),
        expert_ffn=_size(table, "moe_intermediate_size"),
        expert_groups=_size(table, "topk_group", 0) if _size(table, "n_group", 1) > 1 else 0,
        dense_layers=_deepseek_dense_layers(table, layers),
        prediction_layers=_size(table, "num_nextn_predict_layers", 0),
    )
    if table["model_type"] == "deepseek":
        return model
    rotary = _size(table, "qk_rope_head_dim")
    return replace(
        model,
        kv_heads=heads,
        head_dim=_size(table, "qk_nope_head_dim") + rotary,
        value_dim=_size(table, "v_head_dim"),
        latent=LatentAttention(_size(table, "q_lora_rank", 0), _size(table, "kv_lora_rank"), rotary),
    )


def _deepseek_dense_layers(table: Mapping[str, Any], layers: int) -> int:
    """Return how many layers are dense: the first ones and, after them, all but each n-th."""
    first, step = _size(table, "first_k_dense_replace", 0), _size(table, "moe_layer_freq", 1)
    return sum(layer < first or layer % step != 0 for layer in range(layers))
