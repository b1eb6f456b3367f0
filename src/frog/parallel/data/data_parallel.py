"""Data parallelism: what all ways to do it have in common. Each file of one has a `build`, which takes a `GroupSpec`.

In the order in which a step calls them: `before_backward` and `after_backward` around each micro-batch's, `finish`
(every gradient is the mean over the data ranks now), then the optimizer updates `partitions`, `gather`, `zero`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from frog.comm import Axis
from frog.config import StrategyConfig
from frog.parallel.data.flat import Partition


class Listener(Protocol):
    """Wants to know when gradients are about to come, and when they have."""

    def before_backward(self, last: bool) -> None: ...

    def after_backward(self) -> None: ...


@dataclass(frozen=True)
class GroupSpec:
    """Some of a model's parameters, to be kept by the data ranks in one way."""

    config: StrategyConfig
    model: nn.Module
    parameters: Mapping[str, nn.Parameter]
    """Frozen ones too."""
    shard: Axis
    """Ranks that split what there is to split."""
    replicate: Axis
    """Hybrid sharding: ranks that keep the same."""
    num_tail: int = 0
    """How many numbers may ride on the reduction."""

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.parameters.items() if p.requires_grad}


class DataParallel(ABC):
    """How the ranks of the data axis keep the parameters, the gradients and the optimizer's state of a module."""

    partitions: list[Partition]
    """What this rank updates."""

    @abstractmethod
    def before_backward(self, last: bool) -> None:
        """A micro-batch's backward pass begins; `last` if it is the step's last."""

    @abstractmethod
    def after_backward(self) -> None:
        """It has ended."""

    def reduces(self, step: int) -> bool:
        """Whether `finish` is for this step; in others each rank goes on by itself."""
        return True

    @abstractmethod
    def finish(self, tail: Tensor | None = None) -> bool:
        """Finish averaging. `tail`, a few numbers, is summed along if that costs nothing: return whether it was."""

    @abstractmethod
    def gather(self) -> None:
        """The optimizer has run: give every rank the parameters that it works with."""

    @abstractmethod
    def zero(self) -> None:
        """Set the gradients to zero."""

    def local_gradient(self) -> Tensor | None:
        """This rank's own gradient before `finish`, as one vector, where it is there."""
        return None

    def weights(self, name: str, parameter: nn.Parameter) -> Tensor:
        """The value of a parameter that counts: the one that is saved, scored and sampled from."""
        return parameter.detach()

    def train(self, mode: bool) -> None:
        """A time in which the weights that count are to be in the model begins (False) or ends (True)."""
        return

    def shared(self) -> dict[str, Tensor]:
        """What is laid out like the parameters, the same on every rank, and goes into a checkpoint beside them."""
        return {}

    def own(self) -> dict[str, Tensor]:
        """What is this rank's alone, and goes into a checkpoint for it alone."""
        return {}

    def loaded(self) -> None:
        """The parameters' `weights` were filled from a checkpoint."""
        return

    def frozen_runs(self) -> Iterator[tuple[str, Tensor, int, torch.Size]]:
        """Where parameters are split: this rank's elements of those not trained, as `ShardedBuffer.runs` has them."""
        return iter(())
