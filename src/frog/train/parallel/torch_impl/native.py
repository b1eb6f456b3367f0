"""The common base of strategies that torch or DeepSpeed implement: the same interface, the same view of state.

A rank's state is exposed as shards of the full model's tensors, like that of the strategies from scratch, so that
proofs and checkpoints do not depend on the implementation. The numbers that all ranks must agree on, and the norm, use
Frog's own axes. The rest of the communication happens inside torch; each file says which of it is in the events.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from frog.core.config import RunConfig, StrategyConfig
from frog.core.errors import CommError, ConfigError, ErrorFacts
from frog.train.comm import Axis, World
from frog.train.comm.local_shard import LocalShard
from frog.train.data import Batch
from frog.train.model.transformer import TinyTransformer
from frog.train.optim.tensors import UpdatedTensor
from frog.train.parallel.mesh import Mesh
from frog.train.parallel.model.expert import balance_over
from frog.train.parallel.strategy import Agreement, MakeOptimizer, Span, Strategy, broadcast_weights, no_span


class Native(Strategy):
    """A strategy that torch implements. `parameters` are updated by the optimizer: plain tensors or DTensors."""

    model: TinyTransformer
    parameters: Mapping[str, nn.Parameter]

    def __init__(
        self,
        config: RunConfig,
        mesh: Mesh,
        model: TinyTransformer,
        make_optimizer: MakeOptimizer,
        autocast: AbstractContextManager[Any] | None = None,
    ) -> None:
        if config.train.compile:
            check_compile(config.strategy)
        self.config, self.mesh, self.model = config.strategy, mesh, model
        self._state_names = config.optimizer.state
        self.shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        self._autocast = autocast or nullcontext()
        self._run: Callable[..., Any] = model
        broadcast_weights(model, mesh)
        balance_over(model, mesh.data)
        if config.train.compile:
            for layer in model.layers:
                layer.compile()
        self._set_up(config, make_optimizer)

    @abstractmethod
    def _set_up(self, config: RunConfig, make_optimizer: MakeOptimizer) -> None:
        """Distribute the model over the mesh, and create the optimizer of this rank's part."""

    def _begin_optimizer(self, parameters: Mapping[str, nn.Parameter], make_optimizer: MakeOptimizer) -> None:
        self.parameters = parameters
        self.optimizer = make_optimizer(self.updated_tensors())

    def updated_tensors(self) -> list[UpdatedTensor]:
        """Return the trained parameters."""
        return [UpdatedTensor.of(name, p) for name, p in self.parameters.items() if p.requires_grad]

    # ---- one step ----------------------------------------------------------------------------------------------------

    def forward_backward(self, batch: Batch, scale: Callable[[Tensor], Tensor], span: Span = no_span) -> Tensor:
        total = torch.zeros((), device=self.mesh.world.device)
        with explained(self.mesh.world, "the forward or backward pass"):
            for micro, share in enumerate(batch.loss_weight_A):
                with self._micro_batch(last=micro == len(batch.loss_weight_A) - 1):
                    with span("forward", micro), self._autocast:
                        loss = self._run(batch.tokens_ABT[micro], batch.labels_ABT[micro]) * share
                    with span("backward", micro):
                        self._backward(scale(loss))
                total += loss.detach()
        return total

    def _micro_batch(self, last: bool) -> AbstractContextManager[Any]:
        """Return the context of a micro-batch; `last` if its gradient is the step's last."""
        return nullcontext()

    def _backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def reduce(self, loss: Tensor, stop: bool) -> Agreement:
        """Agree on losses and stop requests; torch has averaged the gradient during the backward pass."""
        slots = self._slots(loss, stop)
        self.mesh.world.axis.all_reduce(slots)
        return self._agreement(slots, grad_norm_local=None)

    def norm(self) -> float:
        total = nn.utils.get_total_norm(self._own_gradients()).to(self.mesh.world.device, torch.float64).square()
        if self._shards:
            self.mesh.shard.all_reduce(total)
        self.mesh.model.all_reduce(total)
        return math.sqrt(total.item())

    def _own_gradients(self) -> list[Tensor]:
        """Return the part of the reduced gradient that this rank counts, among the ranks that together hold one."""
        return [local(p.grad) for name, p in self.parameters.items() if p.grad is not None and self._counts(name)]

    def clip(self, norm: float, max_norm: float) -> None:
        gradients = [local(p.grad) for p in self.parameters.values() if p.grad is not None]
        if norm > max_norm and gradients:
            torch._foreach_mul_(gradients, max_norm / norm)

    def step(self, scaler: torch.amp.GradScaler) -> None:
        with explained(self.mesh.world, "the optimizer's step"):
            scaler.step(self.optimizer)

    def zero(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def loss(self, tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
        with explained(self.mesh.world, "the forward pass"), self._autocast:
            loss: Tensor = self._run(tokens_BT, labels_BT)
        return loss

    def train(self, mode: bool = True) -> None:
        self.model.train(mode)

    # ---- local state -------------------------------------------------------------------------------------------------

    @property
    def _shards(self) -> bool:
        """True if the data ranks of a row shard parameters and gradients."""
        return False

    def parameter_shards(self) -> list[LocalShard]:
        return self.shards({name: p.detach() for name, p in self.parameters.items()})

    def gradient_shards(self) -> list[LocalShard]:
        return self.shards({name: p.grad for name, p in self.parameters.items() if p.grad is not None})

    def moment_shards(self) -> list[LocalShard]:
        return [shard for moment in self._state_names for shard in self._shards_of_moment(moment)]

    def _shards_of_moment(self, moment: str) -> list[LocalShard]:
        state = self.optimizer.state
        return self.shards({name: state[p][moment] for name, p in self.parameters.items() if p in state}, f"{moment}/")

    def shards(self, named: Mapping[str, Tensor], prefix: str = "", along: Axis | None = None) -> list[LocalShard]:
        """Return this rank's shards of tensors laid out like the named parameters; replicated `along` an axis."""
        axis = along or (self.mesh.replicate if self._shards else self.mesh.data)
        shards = []
        for name, tensor in named.items():
            copies = (axis.rank, axis.size) if self._counts(name) else None
            own, whole = local(tensor), self.shapes[name]
            if own.numel() > 0:
                shards.append(LocalShard(prefix + name, own, offset_of(tensor), whole, copies))
        return shards


def check_compile(strategy: StrategyConfig) -> None:
    """Raise ConfigError if the implementation of the strategy does not support torch.compile."""
    causes = {
        "strategy.implementation='deepspeed'": strategy.implementation == "deepspeed"
        and "the engine's hooks break the compiled graph",
        f"strategy.tp={strategy.tp} by torch": strategy.tp > 1
        and "the backward pass of a compiled layer passes plain gradients to DTensors",
        "strategy.schedule='zero_bubble' by torch": strategy.pp > 1
        and strategy.schedule == "zero_bubble"
        and "the backward pass of a compiled layer cannot be split in two",
    }
    for what, why in causes.items():
        if why:
            raise ConfigError(f"train.compile=true with {what}: {why}", "--set train.compile=false")


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, as a view; a plain tensor unchanged."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def offset_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the offset of this rank's part in the full tensor."""
    if not isinstance(tensor, DTensor):
        return (0,) * tensor.dim()
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(offset)


@contextmanager
def explained(world: World, during: str) -> Iterator[None]:
    """Report a failure of torch's own communication like Frog's own."""
    try:
        yield
    except RuntimeError as error:
        if not world.backend.owns(error):
            raise
        raise CommError(
            f"communication inside torch failed in {during} [rank {world.rank} of {world.size}]: "
            f"{world.backend.shorten(error)}",
            "another rank has exited or hangs; its log shows why",
            ErrorFacts(cause=world.backend.cause_of(error)),
        ) from error
