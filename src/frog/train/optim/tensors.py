"""The tensors that an optimizer updates, and the parameter elements that they hold.

torch's DDP and FSDP update each parameter separately. Frog's strategies keep many parameters in one flat vector. If a
rank holds a partition of that vector, a tensor contains runs of several parameters, some of them partial.
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
    """Index of the run's first element in the flattened parameter."""
    start: int
    end: int
    """The run is `tensor[start:end]`; the optimizer's state has the same layout."""


@dataclass(frozen=True)
class UpdatedTensor:
    """One tensor that the optimizer updates."""

    tensor: nn.Parameter
    slices: tuple[Slice, ...]
    decayed: bool
    """True if weight decay applies: to matrices, not to vectors."""

    @classmethod
    def of(cls, name: str, parameter: nn.Parameter) -> UpdatedTensor:
        """Wrap one whole parameter. For a DTensor, the run counts elements of the global tensor."""
        run = Slice(name, tuple(parameter.shape), 0, 0, parameter.numel())
        return cls(parameter, (run,), decayed=parameter.dim() >= 2)


def by_decay(tensors: Sequence[UpdatedTensor]) -> list[list[UpdatedTensor]]:
    """Group the tensors with weight decay, then those without; skip empty groups."""
    kinds = [[updated for updated in tensors if updated.decayed == decayed] for decayed in (True, False)]
    return [kind for kind in kinds if kind]


def decay_groups(tensors: Sequence[UpdatedTensor], weight_decay: float) -> list[dict[str, Any]]:
    """Return parameter groups for torch: the tensors with weight decay, then those without.

    Source:  the published training recipes of GPT-2 and Llama, which decay only matrices.
    """
    return [
        {"params": [updated.tensor for updated in kind], "weight_decay": weight_decay if kind[0].decayed else 0.0}
        for kind in by_decay(tensors)
    ]
