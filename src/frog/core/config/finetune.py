"""Fine-tuning options: the adapters (`--lora rank=8,alpha=16,targets=q_proj,v_proj`) and the data."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from frog.core.errors import ConfigError
from frog.core.schema import convert
from frog.core.user_input import did_you_mean

Head = Literal["classification", "completion"]
HEADS: tuple[str, ...] = get_args(Head)

GUARD = "guard"
"""The labelled data set that comes with Frog."""

ALL_TARGETS = "all"
"""Means every projection in the layers, like `all-linear` in peft."""

_SYNONYMS = {"r": "rank", "lora_alpha": "alpha", "target_modules": "targets"}
"""peft's names."""


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters: each target gets two thin matrices of `rank`, whose product is scaled by alpha / rank."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = (ALL_TARGETS,)
    """Suffixes of module names: `q_proj` is that projection in every layer, `layers.0.mlp.up_proj` a single one."""

    @property
    def scaling(self) -> float:
        return self.alpha / self.rank

    def problems(self) -> list[str]:
        """Return every rule that this breaks regardless of the model; empty if there are none."""
        problems = []
        if self.rank < 1:
            problems.append(f"rank={self.rank}: must be at least 1")
        if not 0 < self.alpha < float("inf"):
            problems.append(f"alpha={self.alpha:g}: must be above 0, and finite")
        if not self.targets:
            problems.append(f"targets: names no projection; {ALL_TARGETS} selects every one")
        return problems


@dataclass(frozen=True)
class FinetuneConfig:
    """The fine-tuning settings that run.json stores, in addition to the configuration of every run."""

    base: str
    """The folder of the run whose weights are the frozen base."""
    base_step: int
    base_sha256: str
    """Hash of those weights: an adapter fits only its own base."""
    data: str
    """`guard`, or a file of labelled lines."""
    data_sha256: str
    head: Head
    labels: tuple[str, ...]
    """The classes, in the order of the head's rows; empty if the data have none."""
    epochs: int
    heldout: float
    lora: LoraConfig = field(default_factory=LoraConfig)


def parse_lora(text: str) -> LoraConfig:
    """Read `rank=8,alpha=16,targets=q_proj,v_proj`. Omitted settings keep their defaults; peft's names work too.

    Raises:  ConfigError listing every mistake.
    """
    values, problems = _split_pairs(text)
    read: dict[str, Any] = {}
    for name, words in values.items():
        if name == "targets":
            read[name] = tuple(ALL_TARGETS if word == "all-linear" else word for word in words)
            continue
        kind = int if name == "rank" else float
        try:
            (word,) = words
            read[name] = kind(word)
        except ValueError:
            expected = "a whole number" if kind is int else "a number"
            problems.append(f"{name}={','.join(words)}: must be {expected}")
    config = LoraConfig(**read)
    if problems := problems + config.problems():
        listing = "\n".join(f"  - {problem}" for problem in problems)
        raise ConfigError(f"--lora {text}: {len(problems)} wrong\n{listing}", "--lora rank=8,alpha=16,targets=all")
    return config


def _split_pairs(text: str) -> tuple[dict[str, list[str]], list[str]]:
    """Parse `a=1,b=x,y` as {"a": ["1"], "b": ["x", "y"]}, noting mistakes; a piece without `=` extends the list."""
    known = [item.name for item in fields(LoraConfig)]
    values: dict[str, list[str]] = {}
    problems: list[str] = []
    words: list[str] | None = None
    for piece in filter(None, (piece.strip() for piece in re.split("[,;]", text))):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not equals:
            if words is None:
                problems.append(f"{piece}: must be NAME=VALUE; names: {', '.join(known)}")
            else:
                words.append(piece)
            continue
        name = _SYNONYMS.get(name, name)
        if name not in known:
            problems.append(f"{name}: unknown; {did_you_mean(name, known)}")
        words = values.setdefault(name, []) if name in known else []
        if value:
            words.append(value)
    return values, problems


def finetune_dict(config: FinetuneConfig) -> dict[str, Any]:
    """Return the settings as plain JSON values, for run.json."""
    return asdict(config)


def finetune_from_dict(table: Any, path: Path = Path("run.json")) -> FinetuneConfig:
    """Invert `finetune_dict`. Raises ConfigError, naming `path`, if this version did not write the table."""
    hint = "fine-tune again"
    config = convert(table, FinetuneConfig, f"{path}: finetune", hint, ConfigError)
    if problems := config.lora.problems():
        raise ConfigError(f"{path}: finetune.lora: {problems[0]}", hint)
    return config
