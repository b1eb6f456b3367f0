"""Combine the strategies from scratch: the mesh, then model parallelism, then data parallelism on the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from frog.core.config import RunConfig
from frog.core.config.model import split_dim
from frog.core.env import variable
from frog.train.comm import Axis
from frog.train.comm.local_shard import LocalShard, slice_shards, whole_copy
from frog.train.data import Batch
from frog.train.model.transformer import TinyTransformer
from frog.train.parallel.data.flat import Partition, square_sum, wide_dtype
from frog.train.parallel.groups import ParameterGroup, build_groups
from frog.train.parallel.mesh import Mesh
from frog.train.parallel.strategy import Agreement, MakeOptimizer, Span, Strategy, broadcast_weights, no_span

if TYPE_CHECKING:  # each way to split a model is loaded by the runs that use it
    from frog.train.parallel.model.pipeline import Pipeline


NamedPart = tuple[str, tuple[int, ...], tuple[int, ...], Tensor, Tensor | None]
"""A part of a parameter: the parameter's name, the part's first element, the parameter's shape, values, gradient."""


class FromScratch(Strategy):
    """Any product of the strategies in this folder."""

    def __init__(
        self,
        config: RunConfig,
        mesh: Mesh,
        model: TinyTransformer,
        make_optimizer: MakeOptimizer,
        autocast: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.config, self.mesh, self.model = config.strategy, mesh, model
        self._state_names = config.optimizer.state
        self._meets = config.meets
        self._autocast = autocast or nullcontext()
        self.shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        broadcast_weights(model, mesh)
        if mesh.tp.size > 1:
            from frog.train.parallel.model.tensor import split_model

            split_model(model, mesh.tp, self.config.sequence_parallel)
        if mesh.cp.size > 1:
            from frog.train.parallel.model.context import use_context

            use_context(model, mesh.cp)
        self._experts: set[str] = set()
        if config.model.num_local_experts is not None:
            from frog.train.parallel.model.expert import balance_over, expert_names, shard_experts

            balance_over(model, mesh.data)
            shard_experts(model, mesh.ep)
            self._experts = set(expert_names(model)) if mesh.ep.size > 1 else set()
        self.pipeline = _pipeline(config, mesh, model, self._autocast) if mesh.pp.size > 1 else None
        self.groups = build_groups(self.config, mesh, model, self._experts)
        self._run: Callable[..., Any] = torch.compile(model) if config.train.compile else model
        self.optimizer = make_optimizer(
            [updated for group in self.groups for partition in group.data.partitions for updated in partition.tensors]
        )
        if variable("FROG_CHECK"):  # its flat tensors say nothing to an observer of the optimizer
            vars(self.optimizer).update(named_parts=self.named_parts, whole_model=model)

    # ---- one step ----------------------------------------------------------------------------------------------------

    def forward_backward(self, batch: Batch, scale: Callable[[Tensor], Tensor], span: Span = no_span) -> Tensor:
        if self.mesh.cp.size > 1:
            from frog.train.parallel.model.context import local_part

            tokens_ABt, labels_ABt, positions_t = local_part(batch.tokens_ABT, batch.labels_ABT, self.mesh.cp)
            batch = replace(batch, tokens_ABT=tokens_ABt, labels_ABT=labels_ABt)
        else:
            positions_t = None
        if self.pipeline is not None:
            return self.pipeline.run(batch, scale, span, self)
        total = torch.zeros((), device=self.mesh.world.device)
        for micro, share in enumerate(batch.loss_weight_A):
            with span("forward", micro), self._autocast:
                loss = self._run(batch.tokens_ABT[micro], batch.labels_ABT[micro], positions_t) * share
            with span("backward", micro):
                self.before_backward(last=micro == len(batch.loss_weight_A) - 1)
                scale(loss).backward()  # type: ignore[no-untyped-call]
                self.after_backward()
            total += loss.detach()
        return total

    def before_backward(self, last: bool) -> None:
        """Notify all groups before gradients are computed."""
        for group in self.groups:
            group.data.before_backward(last)

    def after_backward(self) -> None:
        """Notify all groups after gradients are computed."""
        for group in self.groups:
            group.data.after_backward()

    def reduces(self, step: int) -> bool:
        return self._meets(step) and all(group.data.reduces(step) for group in self.groups)

    def reduce(self, loss: Tensor, stop: bool) -> Agreement:
        dense, grads = self.groups[0].data, [group.data.local_gradient() for group in self.groups]
        own = [grad for grad in grads if grad is not None]
        is_there = len(own) == len(grads)
        local = math.sqrt(sum(square_sum(grad).item() for grad in own)) if is_there else None
        slots = self._slots(loss, stop)
        if self.pipeline is not None and is_there:
            self.pipeline.reduce_tied()
        if not dense.finish(slots if self.mesh.model.size == 1 else None):
            self.mesh.world.axis.all_reduce(slots)
        for group in self.groups[1:]:
            group.data.finish()
        if self.pipeline is not None and not is_there:
            self.pipeline.reduce_tied()
        self._sum_repeated()
        return replace(self._agreement(slots, local), own_gradient=self.config.entry.trains_locally)

    def _sum_repeated(self) -> None:
        """Sum the norms' gradients: with sequence parallelism each tp rank has only those of its own positions."""
        if self.mesh.tp.size > 1 and self.config.sequence_parallel:
            for group in self.groups:
                for partition in group.data.partitions:
                    for updated in partition.tensors:
                        if updated.tensor.grad is not None and not updated.decayed:
                            self.mesh.tp.all_reduce(updated.tensor.grad)

    def norm(self) -> float:
        total = torch.zeros((), dtype=wide_dtype(self.mesh.world.device), device=self.mesh.world.device)
        for group in self.groups:
            own = torch.zeros_like(total)
            for partition in group.data.partitions:
                own += self._square_sum(partition)
            for axis in group.sharded_over:
                axis.all_reduce(own)
            total += own
        self.mesh.model.all_reduce(total)
        return math.sqrt(total.item())

    def _square_sum(self, partition: Partition) -> Tensor:
        if self.mesh.model.size == 1:
            return square_sum(partition.grad)
        total = torch.zeros((), dtype=wide_dtype(partition.grad.device), device=partition.grad.device)
        for updated in partition.tensors:
            for run in updated.slices:
                if self._counts(run.name) and updated.tensor.grad is not None:
                    total += square_sum(updated.tensor.grad[run.start : run.end])
        return total

    def clip(self, norm: float, max_norm: float) -> None:
        if "named_parts" in vars(self.optimizer):
            vars(self.optimizer).update(clipped=(norm, max_norm))
        if norm > max_norm:
            for group in self.groups:
                for partition in group.data.partitions:
                    partition.grad.mul_(max_norm / norm)

    def step(self, scaler: torch.amp.GradScaler) -> None:
        scaler.step(self.optimizer)
        for group in self.groups:
            group.data.gather()

    def zero(self) -> None:
        for group in self.groups:
            group.data.zero()

    @torch.no_grad()
    def loss(self, tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
        cp = self.mesh.cp
        positions_t = None
        if cp.size > 1:
            from frog.train.parallel.model.context import local_part

            tokens_BT, labels_BT, positions_t = local_part(tokens_BT, labels_BT, cp)
        if self.pipeline is not None:
            loss = self.pipeline.loss(tokens_BT, labels_BT)
        else:
            with self._autocast:
                loss = self._run(tokens_BT, labels_BT, positions_t)
        if cp.size > 1:
            loss = loss / cp.size
            cp.all_reduce(loss)
        return loss

    def train(self, mode: bool = True) -> None:
        self.model.train(mode)
        for group in self.groups:
            group.data.train(mode)

    # ---- local state -------------------------------------------------------------------------------------------------

    def parameter_shards(self) -> list[LocalShard]:
        shards: list[LocalShard] = []
        for name, parameter in self.model.named_parameters():
            group = self._group_of(name)
            if not group.splits_parameters:
                corner, whole = self._corner(name, parameter.shape)
                axis = self.mesh.expert_data if name in self._experts else self.mesh.data
                value = group.data.weights(name, parameter)
                shards.append(LocalShard(name, value, corner, whole, self._copies(name, axis)))
        for group in self.groups:
            if group.splits_parameters:
                shards += self._shards_like(group, lambda tensor: tensor.detach()) + self._frozen(group)
        return shards

    def named_parts(self) -> list[NamedPart]:
        """Return the parts of parameters of which the optimizer's tensors consist."""
        parts: list[NamedPart] = []
        for group in self.groups:
            gradients: Iterable[LocalShard | None] = repeat(None)
            if all(updated.tensor.grad is not None for each in group.data.partitions for updated in each.tensors):
                gradients = self._shards_like(group, lambda tensor: tensor.grad)
            values = self._shards_like(group, lambda tensor: tensor.detach())
            for shard, gradient in zip(values, gradients, strict=False):
                given = None if gradient is None else gradient.tensor
                parts.append((shard.name, shard.offset, shard.whole, shard.tensor, given))
        return parts

    def gradient_shards(self) -> list[LocalShard]:
        return [shard for group in self.groups for shard in self._shards_like(group, lambda tensor: tensor.grad)]

    def moment_shards(self) -> list[LocalShard]:
        state = self.optimizer.state
        shared = [
            whole_copy(f"{kind}/{name}", partition.flat.view(values, name), group.copies)
            for group in self.groups
            for partition in group.data.partitions
            for kind, values in group.data.shared().items()
            for name in partition.flat.spans
        ]
        return shared + [
            replace(shard, name=f"{moment}/{shard.name}")
            for moment in self._state_names
            for group in self.groups
            for shard in self._shards_like(group, lambda tensor, moment=moment: state[tensor][moment])  # type: ignore[misc]
        ]

    def updated_shards(self) -> list[LocalShard]:
        weights = [shard for group in self.groups for shard in self._shards_like(group, lambda tensor: tensor.detach())]
        return [
            *(replace(shard, name=f"model/{shard.name}") for shard in weights),
            *(replace(shard, name=f"optimizer/{shard.name}") for shard in self.moment_shards()),
        ]

    def own(self) -> dict[str, Tensor]:
        data = self.groups[0].data
        tensors = data.own()
        if self.config.entry.trains_locally and self.mesh.data.rank > 0:  # the moments of rank 0 are among the shards
            for partition in data.partitions:
                for updated in partition.tensors:
                    kind, state = "decayed" if updated.decayed else "plain", self.optimizer.state[updated.tensor]
                    tensors |= {f"{moment}/{kind}": state[moment] for moment in self._state_names}
        return {f"{self.config.name}/{name}": tensor for name, tensor in tensors.items()}

    def further_state(self) -> list[Tensor]:
        return [
            tensor
            for group in self.groups
            for kept in (group.data.own(), group.data.shared())
            for tensor in kept.values()
        ]

    def loaded(self, shards: Sequence[LocalShard]) -> None:
        for group in self.groups:
            group.data.loaded()

    def _group_of(self, name: str) -> ParameterGroup:
        return self.groups[-1] if name in self._experts else self.groups[0]

    def _shards_like(self, group: ParameterGroup, values: Callable[[nn.Parameter], Tensor | None]) -> list[LocalShard]:
        """Return the shards of tensors with the layout of those that the optimizer updates."""
        shards: list[LocalShard] = []
        for partition in group.data.partitions:
            for updated in partition.tensors:
                value = values(updated.tensor)
                assert value is not None
                for run in updated.slices:
                    corner, whole = self._corner(run.name, run.shape)
                    copies = self._copies(run.name, group.copies)
                    if group.entry.trains_locally and copies is not None:  # replicas that differ: the first one counts
                        copies = (0, 1) if copies[0] == 0 else None
                    own = value.reshape(-1)[run.start : run.end]
                    shards += slice_shards(run.name, own, run.first, run.shape, corner, whole, copies)
        return shards

    def _frozen(self, group: ParameterGroup) -> list[LocalShard]:
        """Return the shards of the frozen parameters under zero3."""
        shards: list[LocalShard] = []
        for name, run, first, local in group.data.frozen_runs():
            corner, whole = self._corner(name, local)
            shards += slice_shards(name, run, first, local, corner, whole, self._copies(name, group.copies))
        return shards

    def _corner(self, name: str, local: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the offset of a local parameter in the full model's parameter, and the full shape."""
        whole = self.shapes[name]
        corner = [0] * len(whole)
        if name in self._experts:
            corner[0] = self.mesh.ep.rank * local[0]
        elif self.mesh.tp.size > 1 and (dim := split_dim(name)) is not None:
            corner[dim] = self.mesh.tp.rank * local[dim]
        return tuple(corner), whole

    def _copies(self, name: str, axis: Axis) -> tuple[int, int] | None:
        """Return the index of this rank's copy along `axis`; None if another rank of its model counts it."""
        return (axis.rank, axis.size) if self._counts(name) else None

    def _counts(self, name: str) -> bool:
        repeats = self.pipeline is not None and self.pipeline.repeats(name)
        return super()._counts(name) and not repeats


def _pipeline(config: RunConfig, mesh: Mesh, model: TinyTransformer, autocast: AbstractContextManager[Any]) -> Pipeline:
    from frog.train.parallel.model.context import zigzag
    from frog.train.parallel.model.pipeline import Pipeline
    from frog.train.parallel.model.stages import Stages, build_stages, make_tied_axis
    from frog.train.parallel.schedules.schedule import make_schedule

    strategy = config.strategy
    virtual = strategy.virtual_stages if strategy.schedule == "interleaved" else 1
    build_stages(model, mesh.pp, virtual)
    return Pipeline(
        Stages(model, mesh.pp, virtual),
        mesh.pp,
        make_schedule(strategy.schedule, mesh.pp.size, config.train.grad_accum, virtual),
        tied=make_tied_axis(mesh) if config.model.tie_word_embeddings else None,
        token_shards=mesh.tp.size if strategy.sequence_parallel else 1,
        autocast=autocast,
        positions_T=zigzag(config.data.sequence_length, mesh.cp.size, mesh.cp.rank) if mesh.cp.size > 1 else None,
    )
