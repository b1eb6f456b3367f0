"""Data parallelism: what the four ways to do it (ddp, zero1, zero2, zero3) have in common.

In the order in which a step calls them: `before_backward` and `after_backward` around each micro-batch's, `finish`
(every gradient is the mean over the data ranks now), then the optimizer updates `partitions`, `gather`, `zero`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from torch import Tensor

from frog.parallel.flat import Partition


class Listener(Protocol):
    """Wants to know when gradients are about to come, and when they have."""

    def before_backward(self, last: bool) -> None: ...

    def after_backward(self) -> None: ...


class DataParallel(ABC):
    """How the ranks of the data axis keep the parameters, the gradients and the optimizer's state of a module."""

    partitions: list[Partition]
    """What this rank updates."""
    keeps_whole_parameters = True
    """Whether every rank holds every parameter, and so can write any of them into a checkpoint."""
    keeps_whole_gradients = False
    """Whether every rank holds the whole gradient after `finish`."""

    @abstractmethod
    def before_backward(self, last: bool) -> None:
        """A micro-batch's backward pass begins; `last` if it is the step's last."""

    @abstractmethod
    def after_backward(self) -> None:
        """It has ended."""

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
