"""Convert a model's sizes to and from Hugging Face's config.json."""

from __future__ import annotations

from typing import Any

from frog.core.config.model import ModelConfig
from frog.core.schema import shortened

_FIXED: dict[str, tuple[Any, ...]] = {
    "architectures": (["LlamaForCausalLM"], ["MixtralForCausalLM"], ["Qwen3ForCausalLM"]),
    "model_type": ("llama", "mixtral", "qwen3"),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "attention_dropout": (0, 0.0),
    "rope_scaling": (None,),
    "pretraining_tp": (1,),
    "router_jitter_noise": (0, 0.0),
    "sliding_window": (None,),
    "use_sliding_window": (False,),
}
"""Keys of a Hugging Face config.json for fixed properties of Frog's model, with the values that Frog allows."""

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<\uff5cend\u2581of\u2581sentence\uff5c>")
"""What tokenizers call the token that ends a text: GPT-2 and Qwen, Llama 3, BLOOM and Mistral, Gemma, DeepSeek."""

_MIXTRAL_EXPERTS = 8
"""Number of experts of a Mixtral whose config.json does not specify it."""

_IGNORED = {
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "layer_types",
    "max_window_layers",
    "output_router_logits",
    "pad_token_id",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "_name_or_path",
}


def to_hugging_face(config: ModelConfig) -> dict[str, Any]:
    """Return the content of the config.json from which `transformers` builds the same model."""
    dense = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "mlp_bias": False}
    if config.qk_norm:
        dense = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False}
    mixture = {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": config.num_local_experts,
        "num_experts_per_tok": config.num_experts_per_tok,
        "router_aux_loss_coef": config.router_aux_loss_coef,
        "sliding_window": None,
    }
    return {
        **(dense if config.num_local_experts is None else mixture),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "initializer_range": config.initializer_range,
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": 0,
        "dtype": "float32",
    }


def from_hugging_face(table: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """Remove from a config.json the fixed properties of Frog's model; note a problem if one has another value."""
    table = {key: value for key, value in table.items() if key not in _IGNORED}
    if table.get("model_type") == "mixtral":
        table.setdefault("num_local_experts", _MIXTRAL_EXPERTS)
    elif table.get("model_type") == "llama" and table.get("num_local_experts") is not None:
        problems.append(
            f"model.num_local_experts={_short(table['num_local_experts'])}: model_type='llama' has no experts; "
            "for a mixture of experts add --set model.model_type=mixtral"
        )
    if "model_type" in table and table["model_type"] != "qwen3" and table.get("qk_norm"):
        problems.append(
            f"model.qk_norm=true: model_type={_short(table['model_type'])} has none; add --set model.model_type=qwen3"
        )
    elif table.get("model_type") == "qwen3":
        table.setdefault("qk_norm", True)
    for key, allowed in _FIXED.items():
        if key in table and (value := table.pop(key)) not in allowed:
            problems.append(f"model.{key}={_short(value)}: Frog's model has {allowed[0]!r}")
    rope = table.pop("rope_parameters", None)
    if rope is not None and not isinstance(rope, dict):
        problems.append(f"model.rope_parameters={_short(rope)}: must be an object")
    if isinstance(rope, dict):
        if rope.get("rope_type", "default") != "default":
            problems.append(f"model.rope_parameters.rope_type={_short(rope['rope_type'])}: Frog's model has 'default'")
        if "rope_theta" in rope:
            table.setdefault("rope_theta", rope["rope_theta"])
    heads, hidden, head_dim = (table.get(k) for k in ("num_attention_heads", "hidden_size", "head_dim"))
    table.pop("head_dim", None)
    if head_dim is not None and not isinstance(head_dim, int):
        problems.append(f"model.head_dim={_short(head_dim)}: must be a whole number")
    elif head_dim is not None and isinstance(heads, int) and isinstance(hidden, int) and heads * head_dim != hidden:
        problems.append(
            f"model.head_dim={head_dim} x num_attention_heads={heads} is not hidden_size={hidden}: "
            "Frog's model divides the width evenly among its heads"
        )
    if "num_attention_heads" in table:
        table.setdefault("num_key_value_heads", table["num_attention_heads"])
    return table


def _short(value: Any) -> str:
    """Shorten a value for an error message."""
    return shortened(repr(value))
