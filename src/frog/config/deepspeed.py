"""DeepSpeed's JSON file and the run file: one says what the other must not contradict.

What both can say, the run file decides. In the JSON it is `"auto"`, left out, or the same number, so that a file from a
cluster can be taken as it is where the two agree; where they do not, nothing starts. What only DeepSpeed knows (bucket
sizes, overlap, thresholds) is the JSON's alone. docs/development/decisions/0007-native-implementations.md says more.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frog.config import RunConfig
from frog.core.errors import ConfigError
from frog.core.schema import read_typed, shortened
from frog.core.tables import leaves

_NOT_HERE = {
    "scheduler": "the learning rate is the run file's [optimizer]",
    "data_types": "gradients are kept in the weights' precision",
    "zero_optimization.offload_optimizer": "checkpoints look for the optimizer's state on the device",
    "zero_optimization.offload_param": "checkpoints look for the weights on the device",
}
"""Sections that this trainer cannot let DeepSpeed have, and why."""


def deepspeed_path(config: RunConfig) -> Path:
    """Where the file of a run lies: as `strategy.deepspeed_file` says, else config/deepspeed_<name>.json.

    That is looked for here and then where Frog's own sources lie.
    """
    if config.strategy.deepspeed_file is not None:
        return Path(config.strategy.deepspeed_file)
    own = Path("config") / f"deepspeed_{config.strategy.name}.json"
    sources = Path(__file__).parents[3] / own
    return sources if sources.exists() and not own.exists() else own


def read_deepspeed(path: Path) -> dict[str, Any]:
    """The file's content. Raises ConfigError if there is none, or none that is JSON."""
    try:
        return read_typed(path, dict[str, Any], "correct that file", ConfigError)
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such DeepSpeed file",
            "Frog's are config/deepspeed_zero1.json and its kin; or name another: --set strategy.deepspeed_file=PATH",
        ) from None


def fill_deepspeed(
    table: Mapping[str, Any], path: Path, config: RunConfig, world_size: int, optimizer: Mapping[str, Any]
) -> dict[str, Any]:
    """The file's content with everything filled in that the run decides; `optimizer` are AdamW's settings.

    Raises:  ConfigError listing every value that contradicts the run, with both.
    """
    filled = copy.deepcopy(dict(table))
    problems = [f"{key}: not with Frog: {why}" for key, why in _NOT_HERE.items() if _is_on(_find(filled, key))]
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
    """What the run decides."""
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
    """Put a value where the file leaves it to the run; a problem if it says another."""
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
    if given == wanted and isinstance(given, bool) == isinstance(wanted, bool):  # 1 is no true
        return []
    return [f"{key}={shortened(json.dumps(given))}, the run has {json.dumps(value)}"]


def _find(table: Any, key: str) -> Any:
    for part in key.split("."):
        table = table.get(part) if isinstance(table, dict) else None
    return table


def _is_on(section: Any) -> bool:
    """Whether a section asks for something: `{"device": "none"}` and null do not."""
    if isinstance(section, dict):
        return section.get("device") != "none"
    return section is not None
