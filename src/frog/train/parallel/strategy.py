"""The strategy interface that the training loop uses, for strategies from scratch and native ones."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from frog.core.config.model import split_dim
from frog.train.comm.local_shard import LocalShard, assemble
from frog.train.data import Batch
from frog.train.optim.tensors import UpdatedTensor
from frog.train.parallel.mesh import Mesh


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
    """The numbers of a step that all ranks know after its reduction."""

    loss: float
    """Loss of this rank's samples."""
    loss_mean: float
    """Loss of the whole global batch."""
    grad_norm_local: float | None
    """Norm of this rank's own gradient, if it was still available."""
    stop: bool
    """True if a rank was asked to stop."""
    alone: bool = False
    """True if nothing was reduced: the numbers are this rank's own, and no other rank knows them."""
    own_gradient: bool = False
    """True if the gradient, and so its norm, is this rank's own even if the ranks agreed on the rest."""


class Strategy(ABC):
    """A model, distributed over a mesh, and its optimizer.

    A step calls, in this order: `forward_backward`, `reduce`, `norm`, `clip`, `optimizer.step` through `step`,
    `zero`. All of them are collective: every rank calls them, in this order.
    """

    mesh: Mesh
    model: nn.Module
    """This rank's part of the model."""
    optimizer: torch.optim.Optimizer
    shapes: Mapping[str, tuple[int, ...]]
    """The full model's parameters: a tied one once, under the name that `named_parameters` gives."""

    @abstractmethod
    def forward_backward(self, batch: Batch, scale: Callable[[Tensor], Tensor], span: Span = no_span) -> Tensor:
        """Run forward and backward of all micro-batches, in the strategy's order; apply `scale` before backward.

        Shapes:  -> a scalar: the mean loss of this rank's labels; zero on a pipeline stage that is not the last
        """

    @abstractmethod
    def reduce(self, loss: Tensor, stop: bool) -> Agreement:
        """Average the gradient over the data ranks, and let all ranks agree on the rest."""

    def _slots(self, loss: Tensor, stop: bool) -> Tensor:
        """Return the numbers to sum over the world for agreement: data ranks' losses, stop requests."""
        slots = torch.zeros(self.mesh.data.size + 1, device=self.mesh.world.device)
        if self.mesh.tp.rank == 0:  # each pipeline stage has its part of the loss; all tp ranks have the same
            slots[self.mesh.data.rank] = loss
        slots[-1] = float(stop)
        return slots

    def _agreement(self, slots: Tensor, grad_norm_local: float | None) -> Agreement:
        """Interpret the summed slots."""
        *losses, stops = slots.tolist()
        mean = math.fsum(losses) / len(losses)
        return Agreement(losses[self.mesh.data.rank], mean, grad_norm_local, stop=stops > 0)

    def reduces(self, step: int) -> bool:
        """True if the ranks average and agree in this step. Otherwise call `alone` instead of `reduce`."""
        return True

    def alone(self, loss: Tensor) -> Agreement:
        """Return this rank's numbers of a step without reduction. No rank stops there: ranks must stop together."""
        return Agreement(loss.item(), loss.item(), None, stop=False, alone=True)

    @abstractmethod
    def norm(self) -> float:
        """Compute the 2-norm of the full model's reduced gradient, the same on every rank."""

    @abstractmethod
    def clip(self, norm: float, max_norm: float) -> None:
        """Scale the gradient down to `max_norm` if its norm is larger."""

    @abstractmethod
    def step(self, scaler: torch.amp.GradScaler) -> None:
        """Run the optimizer, and give every rank the parameters that it needs."""

    @abstractmethod
    def zero(self) -> None:
        """Set the gradient to zero."""

    @abstractmethod
    def loss(self, tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
        """Compute the mean loss of some text, without gradients; the same on all ranks of a dp coordinate."""

    @abstractmethod
    def parameter_shards(self) -> list[LocalShard]:
        """Return this rank's shards of the parameters."""

    @abstractmethod
    def gradient_shards(self) -> list[LocalShard]:
        """Return this rank's shards of the reduced gradients."""

    def held(self) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Return the parameters' and the gradients' tensors that this rank holds after a backward pass."""
        return [shard.tensor for shard in self.parameter_shards()], [shard.tensor for shard in self.gradient_shards()]

    @abstractmethod
    def moment_shards(self) -> list[LocalShard]:
        """Return this rank's optimizer state, by the optimizer's names: `exp_avg/<parameter>`."""

    def updated_shards(self) -> list[LocalShard]:
        """Return the tensors that this rank updates, and their state: `model/<name>`, `optimizer/<moment>/<name>`."""
        raise NotImplementedError

    def _counts(self, name: str) -> bool:
        """True if this rank counts a parameter, among the ranks that together hold one model."""
        return self.mesh.tp.rank == 0 or split_dim(name) is not None

    def loaded(self, shards: Sequence[LocalShard]) -> None:
        """Handle filled `parameter_shards` and `moment_shards`: if they are copies, copy them back."""
        return

    def own(self) -> dict[str, Tensor]:
        """Return named state that differs between ranks with the same parameters; checkpoints save it for each rank."""
        return {}

    def further_state(self) -> list[Tensor]:
        """Return tensors that take memory in addition to parameters, gradients and the optimizer's own state."""
        return []

    def step_counts(self) -> list[Tensor]:
        """Return the optimizer's step counts, one for each tensor that it updates."""
        return [state["step"] for state in self.optimizer.state.values() if "step" in state]

    @abstractmethod
    def train(self, mode: bool = True) -> None:
        """Switch between training and evaluation, for example activation checkpointing."""

    def whole(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every full parameter, on every rank, one after another. A collective call.

        Comm:    all-reduces of all parameters over the world, unless every rank has them in full.
        """
        shards = self.parameter_shards()
        if all(shard.is_whole for shard in shards) and len(shards) >= len(self.shapes) and self.mesh.model.size == 1:
            yield from ((shard.name, shard.tensor) for shard in shards)
            return
        yield from self.assembled(shards)

    def assembled(self, shards: Sequence[LocalShard]) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter, or its gradient, assembled from all ranks' shards; zeros where no rank has any."""
        yield from assemble(self.shapes, shards, self.mesh.world.axis)


def broadcast_weights(model: nn.Module, mesh: Mesh) -> None:
    """Copy rank 0's weights to all ranks: ranks need not start from the same seed."""
    with torch.no_grad():
        for parameter in model.parameters():
            mesh.world.axis.broadcast(parameter.data)
