"""Save and load adapters in the format of `peft`: adapter_config.json, adapter_model.safetensors.

A folder holds only the trained parameters. `peft` loads it over a LlamaForCausalLM, or, if it includes a classification
head, over a LlamaForSequenceClassification; Frog loads what `peft` saved if it is plain LoRA.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from frog.core.config.finetune import ALL_TARGETS, LoraConfig
from frog.core.errors import ConfigError, RunError, ShapeError
from frog.core.files import put_in_place, write_json
from frog.core.schema import Amount, Name, Positive, Typed, convert, read_typed, shortened
from frog.train.model.classifier import Classifier
from frog.train.model.lora import add_lora, lora_layers, trained_parameters
from frog.train.model.transformer import TinyTransformer

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_WRAPPER = "base_model.model."
"""The prefix that peft adds to every name of the model that it wraps."""

_HEAD = "score.weight"
_PLAIN: dict[str, Any] = {
    "bias": "none",
    "fan_in_fan_out": False,
    "use_rslora": False,
    "use_dora": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "layers_to_transform": None,
    "layer_replication": None,
    "exclude_modules": None,
    "target_parameters": None,
    "lora_bias": False,
}
"""peft's options and their values for plain LoRA; Frog does not implement others."""


_COPIED = "was it copied completely?"


class _PeftConfig(Typed, frozen=True):
    """The fields of adapter_config.json that every LoRA adapter has."""

    r: Positive
    lora_alpha: Amount
    target_modules: list[Name] | Name
    peft_type: Name = "LORA"
    modules_to_save: list[Name] | None = None


def save_adapter(
    model: TinyTransformer, config: LoraConfig, folder: Path, *, base: str, labels: Sequence[str], replace: bool = False
) -> None:
    """Write the trained parameters into `folder` atomically: write a staging folder, then rename it.

    Raises:  RunError if the folder exists, unless it may `replace`.
    """
    if folder.exists() and not replace:
        raise RunError(f"{folder}: already exists", "name a new folder")
    staging = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        weights = {_peft_name(name): p.detach().cpu().contiguous() for name, p in trained_parameters(model).items()}
        # peft's configuration has no field for the classes, but the file must say what its rows mean.
        save_file(weights, staging / WEIGHTS_FILE, metadata={"format": "pt", "labels": json.dumps(list(labels))})
        with open(staging / WEIGHTS_FILE, "rb") as file:
            os.fsync(file.fileno())
        write_json(staging / CONFIG_FILE, _peft_config(model, config, base))
        put_in_place(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def load_adapter(model: TinyTransformer, folder: Path) -> LoraConfig:
    """Load a folder's adapters (and its head) into a model that has none yet.

    Raises:  RunError if there is no adapter; ConfigError if it is not plain LoRA; ShapeError if it was made for another
             model.
    """
    config = read_config(folder)
    try:
        add_lora(model, config)
    except ConfigError as error:
        what = f"{folder / CONFIG_FILE}: {error.what}"
        raise ConfigError(what, "load it into the model that it was made for") from None
    if isinstance(model, Classifier):
        model.score.requires_grad_(True)
    weights = {_frog_name(name): tensor for name, tensor in _read_weights(folder).items()}
    expected = trained_parameters(model)
    missing, unexpected = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    if missing or unexpected:
        raise ShapeError(
            f"{folder}: its tensors do not match this model's adapters\n"
            f"  missing: {', '.join(missing[:5]) or 'none'}\n  unexpected: {', '.join(unexpected[:5]) or 'none'}",
            "load it into the model that it was made for",
        )
    with torch.no_grad():
        for name, parameter in expected.items():
            if weights[name].shape != parameter.shape:
                shapes = f"{tuple(weights[name].shape)} in the file, {tuple(parameter.shape)} in this model"
                raise ShapeError(f"{folder}: {name} has shape {shapes}", "load it into the model that it was made for")
            parameter.copy_(weights[name])
    return config


def read_config(folder: Path) -> LoraConfig:
    """Return rank, alpha and targets of a saved adapter.

    Raises:  RunError if there is none, ConfigError naming the options that differ from plain LoRA.
    """
    path = folder / CONFIG_FILE
    try:
        table = read_typed(path, dict[str, Any], _COPIED, RunError)
    except FileNotFoundError:
        raise RunError(f"{folder}: contains no adapter: {CONFIG_FILE} is missing", "name a folder with one") from None
    peft = convert(table, _PeftConfig, str(path), _COPIED, RunError)
    config = LoraConfig(peft.r, peft.lora_alpha, _targets(peft.target_modules))
    problems = config.problems()
    problems += [
        f"{name}={shortened(repr(table[name]))}: Frog supports only {plain!r}"
        for name, plain in _PLAIN.items()
        if name in table and (table[name] or None) != (plain or None)
    ]
    if peft.peft_type != "LORA":
        problems.append(f"peft_type={peft.peft_type!r}: Frog supports only 'LORA'")
    if isinstance(peft.target_modules, str) and peft.target_modules != "all-linear":
        problems.append(f"target_modules={peft.target_modules!r}: a pattern; Frog needs a list of names")
    if set(peft.modules_to_save or []) - {"score"}:
        problems.append(f"modules_to_save={peft.modules_to_save!r}: Frog supports only a head called 'score'")
    if problems:
        listing = "\n".join(f"  - {problem}" for problem in problems)
        raise ConfigError(f"{path}: not plain LoRA\n{listing}", "merge it with peft, and `frog import` the result")
    return config


def _targets(names: list[str] | str) -> tuple[str, ...]:
    return (ALL_TARGETS,) if isinstance(names, str) else tuple(name.removeprefix("model.") for name in sorted(names))


def _peft_config(model: TinyTransformer, config: LoraConfig, base: str) -> dict[str, Any]:
    is_classifier = isinstance(model, Classifier)
    ends = list(dict.fromkeys(name.rpartition(".")[2] for name, _ in lora_layers(model)))
    return {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if is_classifier else "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": int(config.alpha) if config.alpha == int(config.alpha) else config.alpha,
        "lora_dropout": 0.0,
        "target_modules": ends if ALL_TARGETS in config.targets else list(config.targets),
        "modules_to_save": ["score"] if is_classifier else None,
        "init_lora_weights": True,
        "inference_mode": True,
        **_PLAIN,
    }


def _peft_name(name: str) -> str:
    return f"{_WRAPPER}{name}" if name == _HEAD else f"{_WRAPPER}model.{name}"


def _frog_name(name: str) -> str:
    return name.removeprefix(_WRAPPER).removeprefix("model.")


def _read_weights(folder: Path) -> dict[str, Tensor]:
    with _opened(folder) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _opened(folder: Path) -> Any:
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise RunError(f"{folder}: contains no adapter: {WEIGHTS_FILE} is missing", _COPIED)
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, MemoryError) as error:
        raise RunError(f"{path}: cannot be read: {error}", _COPIED) from None
