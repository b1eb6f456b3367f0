"""Save and load models as Hugging Face folders: config.json, safetensors, tokenizer.json. Needs no transformers."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from frog.core.config import ModelConfig, load_model_config
from frog.core.config.hugging_face import END_OF_TEXT, to_hugging_face
from frog.core.errors import RunError, ShapeError
from frog.core.files import write_json
from frog.core.schema import Name, Natural, Typed, read_typed
from frog.train.model.classifier import Classifier
from frog.train.model.mixtral import split_experts, stack_experts
from frog.train.model.transformer import TinyTransformer

_HEAD = "lm_head.weight"
_EMBEDDING = "embed_tokens.weight"
_IGNORED_SUFFIX = "rotary_emb.inv_freq"
"""A buffer that old versions of transformers saved with the weights."""

_COPIED = "was it copied completely?"

_MOST_ABOUT = 64 << 20
"""Limit for the header of a weight file: names and offsets of tensors."""


class _AddedToken(Typed, frozen=True):
    content: Name
    id: Natural = 0


class _TokenizerFile(Typed, frozen=True):
    """The part of tokenizer.json that says which token ends a text."""

    added_tokens: list[_AddedToken]


class _WeightIndex(Typed, frozen=True):
    """model.safetensors.index.json: which file holds which tensor."""

    weight_map: dict[str, Name]


def save_hf(model: TinyTransformer, folder: Path, tokenizer_json: Path | None) -> None:
    """Write a folder for `AutoModelForCausalLM.from_pretrained`, and for `AutoTokenizer` if there is a tokenizer."""
    config = model.config
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        _hf_name(part_name): part.contiguous()
        for name, parameter in model.named_parameters()
        for part_name, part in split_experts(name, parameter.detach().cpu()).items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if tokenizer_json is not None:
        end = _end_of_text(tokenizer_json)
        shutil.copyfile(tokenizer_json, folder / "tokenizer.json")
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        write_json(folder / "tokenizer_config.json", {**settings, "eos_token": end.content if end else None})
    write_json(folder / "config.json", to_hugging_face(config))


def load_hf(folder: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Read a folder that `save_pretrained` wrote: the sizes, and float32 weights under Frog's names.

    Raises:  ConfigError if Frog cannot build the model (Llama, Qwen3 or Mixtral); RunError naming the missing files;
             ShapeError if a tensor's shape does not match the sizes.
    """
    if not (folder / "config.json").exists():
        raise RunError(f"{folder}: contains no config.json", "name a folder that `save_pretrained` wrote")
    config = load_model_config(folder / "config.json")
    files = _weight_files(folder)
    _check_size(config, files)
    weights = {
        name.removeprefix("model."): tensor.to(torch.float32)
        for path in files
        for name, tensor in _read(path).items()
        if not name.endswith(_IGNORED_SUFFIX)
    }
    weights = stack_experts(weights)
    if config.tie_word_embeddings and _EMBEDDING in weights:
        weights[_HEAD] = weights[_EMBEDDING]
    expected = config.shapes()
    missing, unexpected = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    if missing or unexpected:
        raise RunError(
            f"{folder}: its tensors do not match the model that its config.json describes\n"
            f"  missing: {', '.join(missing[:5]) or 'none'}\n  unexpected: {', '.join(unexpected[:5]) or 'none'}",
            "is that a plain LlamaForCausalLM, Qwen3ForCausalLM or MixtralForCausalLM?",
        )
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise ShapeError(f"{folder}: {name} has shape {tuple(weights[name].shape)}, config.json says {shape}")
    return config, weights


def _end_of_text(tokenizer_json: Path) -> _AddedToken | None:
    """Return the added token with a usual name, else the first; None without added tokens."""
    added = read_typed(tokenizer_json, _TokenizerFile, _COPIED).added_tokens
    usual = {token.content: token for token in added}
    return next((usual[name] for name in END_OF_TEXT if name in usual), next(iter(added), None))


def _hf_name(name: str) -> str:
    return name if name == _HEAD else f"model.{name}"


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    names = _names_in(index) if index.exists() else ["model.safetensors"]
    for name in names:
        if not (folder / name).is_file():
            raise RunError(
                f"{folder / name}: missing", "Frog reads .safetensors; save the model with safe_serialization"
            )
    return [folder / name for name in names]


def _check_size(config: ModelConfig, files: list[Path]) -> None:
    """Check before reading that the files can hold so many weights, counting the head even if it is tied."""
    num_weights = config.num_parameters() + config.vocab_size * config.hidden_size
    num_bytes = sum(path.stat().st_size for path in files)
    if num_bytes > _MOST_ABOUT + 8 * num_weights:
        what = f"its weights have {num_bytes} bytes, the model of its config.json {config.num_parameters()} parameters"
        raise RunError(f"{files[0].parent}: {what}", _COPIED)


def _names_in(index: Path) -> list[str]:
    """Return the files that an index names. It may only name files in its own folder: indices come from anywhere."""
    names = sorted(set(read_typed(index, _WeightIndex, _COPIED).weight_map.values()))
    for name in names:
        if Path(name).name != name:
            raise RunError(f"{index}: names {name!r}, which is not a file in the same folder")
    return names


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError, MemoryError) as error:
        raise RunError(f"{path}: cannot be read: {error}", _COPIED) from None


def save_hf_classifier(model: Classifier, folder: Path, tokenizer_json: Path | None, labels: Sequence[str]) -> None:
    """Write a Llama or Mixtral ForSequenceClassification with its class names. The model's adapters must be merged.

    transformers takes the last token that is not padding as a text's last, so texts must be padded with the token that
    ends a text, which no text to be classified contains.
    """
    with torch.device("meta"):  # a causal model around the same layers, so that one function writes both
        causal = TinyTransformer(dataclasses.replace(model.config, tie_word_embeddings=True))
    causal.embed_tokens, causal.layers, causal.norm = model.embed_tokens, model.layers, model.norm
    causal.lm_head.weight = model.embed_tokens.weight
    save_hf(causal, folder, tokenizer_json)
    weights = load_file(folder / "model.safetensors")
    weights["score.weight"] = model.score.weight.detach().cpu().contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = read_typed(folder / "config.json", dict[str, Any])
    end = _end_of_text(tokenizer_json) if tokenizer_json is not None else None
    (causal_name,) = config["architectures"]
    config |= {
        "architectures": [causal_name.replace("ForCausalLM", "ForSequenceClassification")],
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        "pad_token_id": end.id if end else 0,
        "problem_type": "single_label_classification",
    }
    write_json(folder / "config.json", config)
