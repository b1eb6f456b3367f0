"""The interface of data parallelism. Each file that implements it has a `build`, which takes a `GroupSpec`.

A step calls, in this order: `before_backward` and `after_backward` around each micro-batch, `finish`
(after which every gradient is the mean over the data ranks), the optimizer on `partitions`, `gather`, `zero`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from frog.core.config import StrategyConfig
from frog.train.comm import Axis
from frog.train.parallel.data.flat import Partition


class Listener(Protocol):
    """An object to notify before and after gradients are computed."""

    def before_backward(self, last: bool) -> None: ...

    def after_backward(self) -> None: ...


@dataclass(frozen=True)
class GroupSpec:
    """Parameters of a model that the data ranks keep in one way."""

    config: StrategyConfig
    model: nn.Module
    parameters: Mapping[str, nn.Parameter]
    """All of them, including frozen ones."""
    shard: Axis
    """Ranks that shard the state."""
    replicate: Axis
    """Hybrid sharding: ranks with replicas of the same shard."""
    num_tail: int = 0
    """Number of values that the reduction may sum along with the gradient."""

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.parameters.items() if p.requires_grad}


class DataParallel(ABC):
    """A way to keep the parameters, the gradients and the optimizer's state of a module on the data ranks."""

    partitions: list[Partition]
    """The partitions that this rank updates."""
    is_sharded = False
    """True if each rank updates other elements: for a strategy of one's own, whose entry does not know."""

    @abstractmethod
    def before_backward(self, last: bool) -> None:
        """Prepare for a micro-batch's backward pass; `last` if it is the step's last."""

    @abstractmethod
    def after_backward(self) -> None:
        """Finish a micro-batch's backward pass."""

    def reduces(self, step: int) -> bool:
        """True if the ranks average gradients in this step; in other steps each rank trains separately."""
        return True

    @abstractmethod
    def finish(self, tail: Tensor | None = None) -> bool:
        """Finish averaging. If it costs nothing, also sum `tail`, a few numbers; return whether it did."""

    @abstractmethod
    def gather(self) -> None:
        """Give every rank the parameters that it needs, after the optimizer has run."""

    @abstractmethod
    def zero(self) -> None:
        """Set the gradients to zero."""

    def local_gradient(self) -> Tensor | None:
        """Return this rank's own gradient before `finish` as one vector, if it is still available."""
        return None

    def weights(self, name: str, parameter: nn.Parameter) -> Tensor:
        """Return the authoritative value of a parameter: the one that is saved, evaluated and sampled from."""
        return parameter.detach()

    def train(self, mode: bool) -> None:
        """Switch between evaluation with the authoritative weights in the model (False) and training (True)."""
        return

    def shared(self) -> dict[str, Tensor]:
        """Return state with the layout of the parameters that is the same on every rank, to save in a checkpoint."""
        return {}

    def own(self) -> dict[str, Tensor]:
        """Return state that differs between ranks, to save in a checkpoint for each rank."""
        return {}

    def loaded(self) -> None:
        """Handle new values of the parameters' `weights` from a checkpoint."""
        return

    def frozen_runs(self) -> Iterator[tuple[str, Tensor, int, torch.Size]]:
        """If parameters are sharded, yield this rank's elements of the frozen ones, like `ShardedBuffer.runs`."""
        return iter(())
