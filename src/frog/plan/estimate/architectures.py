"""Hugging Face's config.json of other architectures, as the planner sees a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from frog.core.errors import ConfigError
from frog.plan.model import LatentAttention, PlannedModel

_MOST = 10**8
"""Largest size: above it, a typing mistake."""
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Keys for the number of experts."""
_DEEPSEEK = ("deepseek", "deepseek_v2", "deepseek_v3", "kimi_k2")


@dataclass(frozen=True)
class _Family:
    """What distinguishes an architecture from Llama."""

    norms: int = 2
    """Norms of a layer."""
    query_key_norms: str = ""
    """`head`: a norm for the queries and one for the keys of a head; `whole`: of all heads together."""
    biases: bool = False
    """Queries, keys and values always have biases; otherwise if `attention_bias` is true."""
    output_bias: bool = True
    """`attention_bias` also adds one to attention's output."""
    full_every: int = 0
    """Each n-th layer sees all tokens, the others a window; 0: if there is a window, all layers have it."""
    tied: bool = False
    """The embedding is the output matrix unless the file denies it."""
    usual: Mapping[str, int] = field(default_factory=dict)
    """Values of keys that published files omit."""


_GEMMA_3 = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
}
_LLAMAS = {
    "llama": _Family(),
    "llama4_text": _Family(full_every=4),
    "mistral": _Family(),
    "ministral": _Family(),
    "ministral3": _Family(),
    "mixtral": _Family(),
    "qwen2": _Family(biases=True, output_bias=False),
    "qwen2_moe": _Family(biases=True, output_bias=False),
    "qwen3": _Family(query_key_norms="head"),
    "qwen3_moe": _Family(query_key_norms="head"),
    "gemma": _Family(tied=True),
    "gemma2": _Family(norms=4, full_every=2, tied=True),
    "gemma3_text": _Family(norms=4, query_key_norms="head", full_every=6, tied=True, usual=_GEMMA_3),
    "phi3": _Family(),
    "olmo2": _Family(query_key_norms="whole"),
    "olmo3": _Family(query_key_norms="whole", full_every=4),
    "olmoe": _Family(query_key_norms="whole"),
    "smollm3": _Family(tied=True),
    "seed_oss": _Family(output_bias=False),
    "granite": _Family(),
    "granitemoe": _Family(),
    "gpt_oss": _Family(full_every=2),
    "glm": _Family(output_bias=False),
    "glm4": _Family(norms=4, output_bias=False),
    "glm4_moe": _Family(output_bias=False),
    "exaone4": _Family(query_key_norms="head", full_every=4),
    "hunyuan_v1_dense": _Family(query_key_norms="head"),
    "minimax_m2": _Family(query_key_norms="whole"),
    "ernie4_5": _Family(),
}


def text_of(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config.json that describes the language model of a model for images and text."""
    text = table.get("text_config")
    return text if isinstance(text, dict) and "num_hidden_layers" not in table else table


def model_of(table: Mapping[str, Any], origin: str = "config.json") -> PlannedModel:
    """Return the model that the content of a config.json describes.

    Raises:  ConfigError if a size is missing or the architecture is unknown.
    """
    table = text_of(table)
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
    kind = table["model_type"]
    family = _LLAMAS[kind]
    table = {**family.usual, **table}
    heads, hidden = _size(table, "num_attention_heads"), _size(table, "hidden_size")
    window = _window(table)
    layers = _size(table, "num_hidden_layers")
    model = PlannedModel(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_size(table, "num_key_value_heads", heads),
        head_dim=_size(table, "head_dim", hidden // heads),
        ffn=_size(table, "intermediate_size"),
        vocab=_size(table, "vocab_size"),
        tied=bool(table.get("tie_word_embeddings", family.tied)),
        layer_norms=family.norms,
        window=window,
        windowed_layers=_windowed_layers(table, family, layers) if window else 0,
    )
    model = replace(model, attention_vectors=_attention_vectors(table, family, model))
    return _with_experts(table, model)


def _attention_vectors(table: Mapping[str, Any], family: _Family, model: PlannedModel) -> int:
    """Return the parameters of a layer's attention outside of its matrices."""
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    kind = "head" if table["model_type"] == "glm4_moe" and table.get("use_qk_norm") else family.query_key_norms
    num_parameters = {"": 0, "head": 2 * model.head_dim, "whole": queries + keys}[kind]
    if family.biases or table.get("attention_bias"):
        num_parameters += queries + 2 * keys
    if table.get("attention_out_bias", table.get("attention_bias") and family.output_bias):
        num_parameters += model.hidden
    return num_parameters + (model.heads if table["model_type"] == "gpt_oss" else 0)  # a sink for each head


def _window(table: Mapping[str, Any]) -> int:
    """Return the tokens that a layer with sliding-window attention sees; 0: no layer has it.

    In a chunk, a token sees on average half of the chunk: so many as in a window of half its size.
    """
    if not table.get("use_sliding_window", True):
        return 0
    return _size(table, "sliding_window", 0) or _size(table, "attention_chunk_size", 0) // 2


def _windowed_layers(table: Mapping[str, Any], family: _Family, layers: int) -> int:
    kinds = table.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        return sum(kind != "full_attention" for kind in kinds)
    pattern = table.get("sliding_window_pattern")
    every = pattern if type(pattern) is int else family.full_every
    return layers - layers // every if every else layers


def _with_experts(table: Mapping[str, Any], model: PlannedModel) -> PlannedModel:
    """Add the experts of a mixture; a dense model stays as it is."""
    experts = next((n for key in _EXPERTS if (n := _size(table, key, 0))), 0)
    if not experts:
        return model
    kind, expert_ffn = table["model_type"], _size(table, "moe_intermediate_size", model.ffn)
    shared_width = _size(table, "shared_expert_intermediate_size", 0)
    model = replace(
        model,
        experts=experts,
        experts_per_token=_size(table, "num_experts_per_tok", 2),
        shared_experts=_size(table, "n_shared_experts", shared_width // expert_ffn if expert_ffn else 0),
        router_vectors=model.hidden if shared_width else 0,
        expert_ffn=expert_ffn,
        dense_layers=_layers_without_experts(table, model.layers),
    )
    if kind == "gpt_oss":
        return replace(model, router_vectors=experts * (1 + 2 * expert_ffn + model.hidden))
    if kind == "llama4_text":
        return replace(model, shared_experts=1, ffn=_size(table, "intermediate_size_mlp"))
    return model


def _layers_without_experts(table: Mapping[str, Any], layers: int) -> int:
    """Return how many layers of a mixture are dense: those that the file names, the first, or all but each n-th."""
    mixtures = table.get("moe_layers")
    if isinstance(mixtures, list):
        return layers - len(mixtures)
    dense, first = table.get("mlp_only_layers") or [], _size(table, "first_k_dense_replace", 0)
    step = _size(table, "decoder_sparse_step", 0) or _size(table, "interleave_moe_layer_step", 1)
    return sum(layer in dense or layer < first or (layer + 1) % step != 0 for layer in range(layers))


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
