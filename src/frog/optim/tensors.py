"""The tensors that an optimizer updates, and which elements of which parameters lie in them.

torch's DDP and FSDP update each parameter by itself. Frog's own strategies keep many parameters in one flat vector, of
which a rank may hold a partition: then a tensor holds runs of several parameters, some of them cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Slice:
    """A run of elements of one parameter, inside a tensor that the optimizer updates."""

    name: str
    shape: tuple[int, ...]
    """The parameter's shape in this rank's model."""
    first: int
    """The index in the flattened parameter of the run's first element."""
    start: int
    end: int
    """The run is `tensor[start:end]`; the optimizer's state has the same layout."""


@dataclass(frozen=True)
class UpdatedTensor:
    """One tensor that the optimizer updates."""

    tensor: nn.Parameter
    slices: tuple[Slice, ...]
    decayed: bool
    """True if it has weight decay: it holds matrices. Vectors have none."""

    @classmethod
    def of(cls, name: str, parameter: nn.Parameter) -> UpdatedTensor:
        """A parameter that is updated by itself. Its run counts elements of the whole, also if it is a DTensor."""
        run = Slice(name, tuple(parameter.shape), 0, 0, parameter.numel())
        return cls(parameter, (run,), decayed=parameter.dim() >= 2)


def by_decay(tensors: Sequence[UpdatedTensor]) -> list[list[UpdatedTensor]]:
    """The tensors with weight decay, then those without; an empty list is left out."""
    kinds = [[one for one in tensors if one.decayed == decayed] for decayed in (True, False)]
    return [kind for kind in kinds if kind]


def decay_groups(tensors: Sequence[UpdatedTensor], weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups for torch: the tensors with weight decay, then those without.

    Source:  the published trainings of GPT-2 and Llama, which decay matrices alone.
    """
    return [
        {"params": [one.tensor for one in kind], "weight_decay": weight_decay if kind[0].decayed else 0.0}
        for kind in by_decay(tensors)
    ]
