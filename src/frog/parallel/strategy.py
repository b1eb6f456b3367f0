"""What the training loop sees of a strategy: one interface for those from scratch and the native ones."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from frog.comm.local_shard import LocalShard, assemble
from frog.config.model import split_dim
from frog.data import Batch
from frog.optim.tensors import UpdatedTensor
from frog.parallel.mesh import Mesh


class Span(Protocol):
    """Times a phase of a step: `EventWriter.span` is one."""

    def __call__(self, phase: Any, micro: int = 0, /) -> AbstractContextManager[None]: ...


def no_span(phase: Any, micro: int = 0, /) -> AbstractContextManager[None]:
    """Times nothing."""
    return nullcontext()


MakeOptimizer = Callable[[Sequence[UpdatedTensor]], torch.optim.Optimizer]
"""Makes the optimizer of the tensors that this rank updates."""


@dataclass(frozen=True)
class Agreement:
    """What all ranks know of a step after its reduction."""

    loss: float
    """Of this rank's samples."""
    loss_mean: float
    """Of the whole global batch."""
    grad_norm_local: float | None
    """Of this rank's own gradient, where it was still there to be looked at."""
    stop: bool
    """Whether some rank was asked to stop."""
    alone: bool = False
    """Whether nothing was reduced: then the numbers are this rank's own, and no other knows them."""
    own_gradient: bool = False
    """Whether the gradient, and so its norm, is this rank's own even if the rest was agreed on."""


class Strategy(ABC):
    """A model, spread over a mesh, and its optimizer.

    In the order in which a step calls them: `forward_backward`, `reduce`, `norm`, `clip`, `optimizer.step` by way of
    `step`, `zero`. All of them are collective: every rank calls them, in this order.
    """

    mesh: Mesh
    model: nn.Module
    """What this rank holds of the model."""
    optimizer: torch.optim.Optimizer
    shapes: Mapping[str, tuple[int, ...]]
    """The whole model's parameters: a tied one once, under the name that `named_parameters` gives."""

    @abstractmethod
    def forward_backward(self, batch: Batch, scale: Callable[[Tensor], Tensor], span: Span = no_span) -> Tensor:
        """Forward and backward of all micro-batches, in the strategy's order; `scale` is applied before backward.

        Shapes:  -> a scalar: the mean loss of this rank's labels; zero on a pipeline stage that is not the last
        """

    @abstractmethod
    def reduce(self, loss: Tensor, stop: bool) -> Agreement:
        """Average the gradient over the data ranks, and let all ranks agree on the rest."""

    def _slots(self, loss: Tensor, stop: bool) -> Tensor:
        """What the ranks must agree on, to be summed over the world: data ranks' losses, requests to stop."""
        slots = torch.zeros(self.mesh.data.size + 1, device=self.mesh.world.device)
        if self.mesh.tp.rank == 0:  # pipeline stages each have their part of the loss, tp ranks all the same
            slots[self.mesh.data.rank] = loss
        slots[-1] = float(stop)
        return slots

    def _agreement(self, slots: Tensor, grad_norm_local: float | None) -> Agreement:
        """What the summed slots say."""
        *losses, stops = slots.tolist()
        mean = math.fsum(losses) / len(losses)
        return Agreement(losses[self.mesh.data.rank], mean, grad_norm_local, stop=stops > 0)

    def reduces(self, step: int) -> bool:
        """Whether the ranks average and agree in this step. In others each goes on by itself: `alone` for `reduce`."""
        return True

    def alone(self, loss: Tensor) -> Agreement:
        """What this rank knows of a step in which nothing is reduced. Nobody stops there: ranks must stop together."""
        return Agreement(loss.item(), loss.item(), None, stop=False, alone=True)

    @abstractmethod
    def norm(self) -> float:
        """The 2-norm of the whole model's reduced gradient, the same on every rank."""

    @abstractmethod
    def clip(self, norm: float, max_norm: float) -> None:
        """Scale the gradient down to `max_norm` if its norm is above."""

    @abstractmethod
    def step(self, scaler: torch.amp.GradScaler) -> None:
        """Let the optimizer run, and give every rank the parameters that it needs."""

    @abstractmethod
    def zero(self) -> None:
        """Set the gradient to zero."""

    @abstractmethod
    def loss(self, tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
        """The mean loss of some text, without gradients; the same on all ranks of a dp coordinate."""

    @abstractmethod
    def parameter_shards(self) -> list[LocalShard]:
        """What this rank holds of the parameters."""

    @abstractmethod
    def gradient_shards(self) -> list[LocalShard]:
        """What this rank holds of the reduced gradients."""

    @abstractmethod
    def moment_shards(self) -> list[LocalShard]:
        """The optimizer's state on this rank, by the optimizer's names: `exp_avg/<parameter>`."""

    def updated_shards(self) -> list[LocalShard]:
        """What this rank's optimizer updates, and what it remembers: `model/<name>`, `optimizer/<moment>/<name>`."""
        raise NotImplementedError

    def _counts(self, name: str) -> bool:
        """Whether this rank counts a parameter, of the ranks that together hold one model."""
        return self.mesh.tp.rank == 0 or split_dim(name) is not None

    def loaded(self, shards: Sequence[LocalShard]) -> None:
        """The shards of `parameter_shards` and `moment_shards` were filled: put them in place if they are copies."""
        return

    def own(self) -> dict[str, Tensor]:
        """What differs between ranks that otherwise hold the same, by name: a checkpoint keeps it for each rank."""
        return {}

    def further_state(self) -> list[Tensor]:
        """What takes memory beside parameters, gradients and the optimizer's own state."""
        return []

    def step_counts(self) -> list[Tensor]:
        """The optimizer's own count of steps, one for each tensor that it updates."""
        return [state["step"] for state in self.optimizer.state.values() if "step" in state]

    @abstractmethod
    def train(self, mode: bool = True) -> None:
        """Switch what differs between training and evaluation: activation checkpointing."""

    def whole(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter whole, on every rank, one after the other. A collective call.

        Comm:    all-reduces of all parameters over the world, unless every rank holds them whole.
        """
        shards = self.parameter_shards()
        if all(shard.is_whole for shard in shards) and len(shards) >= len(self.shapes) and self.mesh.model.size == 1:
            yield from ((shard.name, shard.tensor) for shard in shards)
            return
        yield from self.assembled(shards)

    def assembled(self, shards: Sequence[LocalShard]) -> Iterator[tuple[str, Tensor]]:
        """Each parameter, or its gradient, put together from all ranks' shards; zeros where nobody has any."""
        yield from assemble(self.shapes, shards, self.mesh.world.axis)


def broadcast_weights(model: nn.Module, mesh: Mesh) -> None:
    """Rank 0's weights for everyone: ranks need not start from the same seed."""
    with torch.no_grad():
        for parameter in model.parameters():
            mesh.world.axis.broadcast(parameter.data)
