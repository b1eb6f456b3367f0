"""Models to and from Hugging Face folders: config.json, safetensors, tokenizer.json. Needs no transformers library."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from frog.config import ModelConfig, load_model_config
from frog.core.errors import RunError, ShapeError
from frog.core.files import write_json
from frog.model.mixtral import split_experts, stack_experts
from frog.model.transformer import TinyTransformer

_HEAD = "lm_head.weight"
_EMBEDDING = "embed_tokens.weight"
_IGNORED_SUFFIX = "rotary_emb.inv_freq"
"""A table that old versions of transformers saved with the weights."""


def save_hf(model: TinyTransformer, folder: Path, tokenizer_json: Path | None) -> None:
    """Write what `AutoModelForCausalLM.from_pretrained(folder)` loads, and `AutoTokenizer` if there is a tokenizer."""
    config = model.config
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        _hf_name(part_name): part.contiguous()
        for name, parameter in model.named_parameters()
        for part_name, part in split_experts(name, parameter.detach().cpu()).items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if tokenizer_json is not None:
        shutil.copyfile(tokenizer_json, folder / "tokenizer.json")
        end = json.loads(tokenizer_json.read_text())["added_tokens"][0]["content"]
        write_json(
            folder / "tokenizer_config.json",
            {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "clean_up_tokenization_spaces": False},
        )
    write_json(folder / "config.json", _hf_config(config))


def load_hf(folder: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Read what `save_pretrained` wrote: the sizes, and float32 weights under Frog's names.

    Raises:  ConfigError if the model is no Llama or Mixtral that Frog can build; RunError naming what is missing;
             ShapeError if a tensor's shape is not what the sizes say.
    """
    if not (folder / "config.json").is_file():
        raise RunError(f"{folder}: no config.json there", "name a folder that `save_pretrained` wrote")
    config = load_model_config(folder / "config.json")
    weights = {
        name.removeprefix("model."): tensor.to(torch.float32)
        for path in _weight_files(folder)
        for name, tensor in _read(path).items()
        if not name.endswith(_IGNORED_SUFFIX)
    }
    weights = stack_experts(weights)
    if config.tie_word_embeddings and _EMBEDDING in weights:
        weights[_HEAD] = weights[_EMBEDDING]
    with torch.device("meta"):
        expected = {name: tuple(tensor.shape) for name, tensor in TinyTransformer(config).state_dict().items()}
    missing, unexpected = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    if missing or unexpected:
        raise RunError(
            f"{folder}: its tensors are not those of the model that its config.json describes\n"
            f"  missing: {', '.join(missing[:5]) or 'none'}\n  unexpected: {', '.join(unexpected[:5]) or 'none'}",
            "is that a plain LlamaForCausalLM or MixtralForCausalLM?",
        )
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise ShapeError(f"{folder}: {name} has shape {tuple(weights[name].shape)}, config.json says {shape}")
    return config, weights


def _hf_name(name: str) -> str:
    return name if name == _HEAD else f"model.{name}"


def _hf_config(config: ModelConfig) -> dict[str, Any]:
    dense = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "mlp_bias": False}
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


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    names = _names_in(index) if index.is_file() else ["model.safetensors"]
    for name in names:
        if not (folder / name).is_file():
            raise RunError(
                f"{folder / name}: missing", "Frog reads .safetensors; save the model with safe_serialization"
            )
    return [folder / name for name in names]


def _names_in(index: Path) -> list[str]:
    """The files that an index names. Only files beside it count: an index can come from anywhere."""
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{index}: is no index of weight files", "was it copied whole?") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise RunError(f"{index}: names {name!r}, which is no file beside it")
    return names


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise RunError(f"{path}: cannot be read: {error}", "was it copied whole?") from None
