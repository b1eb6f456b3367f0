"""DeepSpeed's JSON file, and the rules that keep it consistent with the run file.

The run file decides every setting that both files have. In the JSON such a setting is `"auto"`, left out, or equal to
the run file's value, so a file from a cluster works unchanged where the two agree. If they disagree, nothing starts.
Settings that only DeepSpeed has (bucket sizes, overlap, thresholds) come from the JSON. See also
docs/development/decisions/0007-native-implementations.md.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frog.core.config import RunConfig
from frog.core.errors import ConfigError
from frog.core.schema import leaves, read_typed, shortened

_NOT_HERE = {
    "scheduler": "the run file's [optimizer] sets the learning rate",
    "data_types": "gradients are kept in the weights' precision",
    "zero_optimization.offload_optimizer": "Frog's checkpoints read the optimizer's state from the device",
    "zero_optimization.offload_param": "Frog's checkpoints read the weights from the device",
}
"""Sections that this trainer does not support, and why."""


def deepspeed_path(config: RunConfig) -> Path:
    """Return the path of a run's DeepSpeed file: `strategy.deepspeed_file`, else config/deepspeed_<name>.json.

    The default is searched in the current directory, then in Frog's own sources.
    """
    if config.strategy.deepspeed_file is not None:
        return Path(config.strategy.deepspeed_file)
    own = Path("config") / f"deepspeed_{config.strategy.name}.json"
    sources = Path(__file__).parents[4] / own
    return sources if sources.exists() and not own.exists() else own


def read_deepspeed(path: Path) -> dict[str, Any]:
    """Return the content of the file. Raises ConfigError if it is missing or not valid JSON."""
    try:
        return read_typed(path, dict[str, Any], "correct that file", ConfigError)
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such DeepSpeed file",
            "Frog has config/deepspeed_zero1.json and similar; for another file: --set strategy.deepspeed_file=PATH",
        ) from None


def fill_deepspeed(
    table: Mapping[str, Any], path: Path, config: RunConfig, world_size: int, optimizer: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the file's content with every value filled in that the run decides; `optimizer` are AdamW's settings.

    Raises:  ConfigError listing every value that contradicts the run, with both values.
    """
    filled = copy.deepcopy(dict(table))
    problems = [f"{key}: not supported by Frog: {why}" for key, why in _NOT_HERE.items() if _is_on(_find(filled, key))]
    for key, value in _decided(config, world_size).items():
        problems += _settle(filled, key, value)
    if "optimizer" in filled:
        problems += _settle(filled, "optimizer.type", "AdamW")
        for name in ("lr", "betas", "eps", "weight_decay"):
            problems += _settle(filled, f"optimizer.params.{name}", optimizer[name])
    problems += [f'{key}="auto": Frog has no value for it' for key, value in leaves(filled) if value == "auto"]
    if problems:
        listing = "".join(f"\n  - {problem}" for problem in problems)
        raise ConfigError(f"{path} contradicts the run:{listing}", 'write "auto" there, or change the run file')
    return filled


def _decided(config: RunConfig, world_size: int) -> dict[str, Any]:
    """Return the values that the run decides, by their DeepSpeed keys."""
    train, clip = config.train, config.optimizer.grad_clip
    return {
        "train_batch_size": train.global_batch_size,
        "train_micro_batch_size_per_gpu": config.micro_batch_size(config.strategy.dp_size(world_size)),
        "gradient_accumulation_steps": train.grad_accum,
        "gradient_clipping": 0.0 if clip == "off" else clip,
        "bf16.enabled": train.precision == "bf16",
        "fp16.enabled": train.precision == "fp16",
        "zero_optimization.stage": config.strategy.entry.zero_stage,
    }


def _settle(table: dict[str, Any], key: str, value: Any) -> list[str]:
    """Fill in a value that the file leaves to the run; return a problem if the file has another value."""
    *sections, name = key.split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            return [f"{section}={shortened(repr(table))}: must be an object"]
    given = table.get(name, "auto")
    if given == "auto":
        table[name] = list(value) if isinstance(value, tuple) else value
        return []
    wanted = list(value) if isinstance(value, tuple) else value
    if given == wanted and isinstance(given, bool) == isinstance(wanted, bool):  # 1 is not true
        return []
    return [f"{key}={shortened(json.dumps(given))}, the run has {json.dumps(value)}"]


def _find(table: Any, key: str) -> Any:
    for part in key.split("."):
        table = table.get(part) if isinstance(table, dict) else None
    return table


def _is_on(section: Any) -> bool:
    """True if a section turns a feature on: `{"device": "none"}` and null do not."""
    if isinstance(section, dict):
        return section.get("device") != "none"
    return section is not None
