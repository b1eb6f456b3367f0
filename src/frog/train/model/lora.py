"""LoRA: two thin matrices next to a frozen one, trained in its place, and added to it after training.

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models".
Shapes: D input width, F output width, R rank. The adapters are ordinary parameters that require a gradient; the rest
of the model is frozen. A strategy that ignores frozen parameters needs no special case for LoRA.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from frog.core.config.finetune import ALL_TARGETS, LoraConfig
from frog.core.errors import ConfigError
from frog.train.model.transformer import Linear, TinyTransformer


class LoraLinear(Linear):
    """`x W^T + alpha / R * (x A^T) B^T`, W frozen. B starts at zero, so the initial output is unchanged.

    Shapes:  x (..., D), weight (F, D), lora_A.weight (R, D), lora_B.weight (F, R) -> (..., F)
    """

    def __init__(self, base: Linear, rank: int, scaling: float) -> None:
        with torch.device("meta"):  # no memory and no random numbers: the base's own matrix replaces it
            super().__init__(base.in_features, base.out_features)
        self.weight = base.weight
        with base.weight.device:
            self.lora_A = Linear(base.in_features, rank)
            self.lora_B = Linear(rank, base.out_features)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)
        self.scaling = scaling
        self.is_merged = False

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.is_merged else y + self.lora_B(self.lora_A(x)) * self.scaling

    def delta(self) -> Tensor:
        """Return the product that the adapter adds to the matrix.

        Shapes:  -> (F, D)
        """
        return self.lora_B.weight @ self.lora_A.weight * self.scaling

    @torch.no_grad()
    def merge(self) -> None:
        """Add the adapter to the matrix: the same outputs at the base's cost. A second call does nothing."""
        if not self.is_merged:
            self.weight += self.delta()
            self.is_merged = True

    @torch.no_grad()
    def unmerge(self) -> None:
        """Subtract the adapter again, which restores the matrix up to rounding."""
        if self.is_merged:
            self.weight -= self.delta()
            self.is_merged = False


def add_lora(model: TinyTransformer, config: LoraConfig) -> None:
    """Freeze the model and add adapters to the projections that `config.targets` names.

    Raises:  ConfigError if a target does not exist in the model, or the rank is more than a target can have.
    """
    names = target_names(model, config)
    model.requires_grad_(False)
    for name in names:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, LoraLinear(_projection(model, name), config.rank, config.scaling))


def target_names(model: TinyTransformer, config: LoraConfig) -> list[str]:
    """Return the full names of the projections that get an adapter, in the model's order. Targets are name suffixes.

    Raises:  ConfigError with the existing names, or with rank and widths.
    """
    projections = [
        name for name, module in model.named_modules() if name.startswith("layers.") and type(module) is Linear
    ]
    ends = list(dict.fromkeys(name.rpartition(".")[2] for name in projections))

    def matches(name: str, target: str) -> bool:
        return target == ALL_TARGETS or name == target or name.endswith(f".{target}")

    problems = config.problems()
    problems += [
        f"targets={target}: no projection of the layers has that name; available: {', '.join(ends)}"
        for target in config.targets
        if not any(matches(name, target) for name in projections)
    ]
    chosen = [name for name in projections if any(matches(name, target) for target in config.targets)]
    most = {name.rpartition(".")[2]: min(_projection(model, name).weight.shape) for name in chosen}
    thinnest = min(most, key=most.__getitem__, default="")
    if most and config.rank > most[thinnest]:
        problems.append(
            f"rank={config.rank} is above the maximum of {most[thinnest]} for {thinnest}: "
            "no product of two thin matrices has a higher rank than the matrix it is added to"
        )
    if problems:
        listing = "\n".join(f"  - {problem}" for problem in problems)
        raise ConfigError(f"lora: the adapters do not fit the model\n{listing}", f"targets={','.join(ends[:2])}")
    return chosen


def lora_layers(model: nn.Module) -> Iterator[tuple[str, LoraLinear]]:
    """Yield every projection that has an adapter, by its full name."""
    yield from ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLinear))


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained parameters by name: the adapters, and a new head if there is one."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def merge_lora(model: nn.Module) -> None:
    """Add every adapter to its matrix; `unmerge_lora` subtracts them again."""
    for _, layer in lora_layers(model):
        layer.merge()


def unmerge_lora(model: nn.Module) -> None:
    """Invert `merge_lora`, up to rounding."""
    for _, layer in lora_layers(model):
        layer.unmerge()


def unload_lora(model: TinyTransformer) -> None:
    """Merge, then replace the adapters by plain projections: an ordinary model with the base's parameter names."""
    merge_lora(model)
    for name, layer in list(lora_layers(model)):
        with torch.device("meta"):
            plain = Linear(layer.in_features, layer.out_features)
        plain.weight = layer.weight
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, plain)


def _projection(model: nn.Module, name: str) -> Linear:
    module = model.get_submodule(name)
    assert isinstance(module, Linear)
    return module
