"""The strategies from scratch, put together: mesh, then model parallelism, then data parallelism on what is left."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from frog.comm import Axis
from frog.comm.held import Held, held_slice
from frog.config import RunConfig
from frog.data import Batch
from frog.model.transformer import TinyTransformer
from frog.parallel.context import local_part, use_context, zigzag
from frog.parallel.expert import balance_over, expert_names, shard_experts
from frog.parallel.flat import Share, square_sum, wide_dtype
from frog.parallel.mesh import Mesh
from frog.parallel.parts import Part, build_parts
from frog.parallel.pipeline import Pipeline
from frog.parallel.schedules import make_schedule
from frog.parallel.stages import Stages, build_stages, make_tied_axis
from frog.parallel.strategy import MOMENTS, Agreement, MakeOptimizer, Span, Strategy, no_span, share_weights
from frog.parallel.tensor import split_dim, split_model
from frog.parallel.zero3 import Zero3


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
        self._autocast = autocast or nullcontext()
        self.shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        share_weights(model, mesh)
        if mesh.tp.size > 1:
            split_model(model, mesh.tp, self.config.sequence_parallel)
        if mesh.cp.size > 1:
            use_context(model, mesh.cp)
        balance_over(model, mesh.data)
        shard_experts(model, mesh.ep)
        self._experts = set(expert_names(model)) if mesh.ep.size > 1 else set()
        self.pipeline = _pipeline(config, mesh, model, self._autocast) if mesh.pp.size > 1 else None
        self.parts = build_parts(self.config, mesh, model, self._experts)
        self._run: Callable[..., Any] = torch.compile(model) if config.train.compile else model
        shares = [share for part in self.parts for share in part.data.shares]
        self.optimizer = make_optimizer(
            [share.decayed for share in shares if share.decayed.numel()],
            [share.plain for share in shares if share.plain.numel()],
        )

    # ---- one step ----------------------------------------------------------------------------------------------------

    def forward_backward(self, batch: Batch, scale: Callable[[Tensor], Tensor], span: Span = no_span) -> Tensor:
        if self.mesh.cp.size > 1:
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
        """Tell all parts that gradients are about to come."""
        for part in self.parts:
            part.data.before_backward(last)

    def after_backward(self) -> None:
        """Tell all parts that they have."""
        for part in self.parts:
            part.data.after_backward()

    def reduce(self, loss: Tensor, stop: bool) -> Agreement:
        dense, grads = self.parts[0].data, [part.data.local_gradient() for part in self.parts]
        own = [grad for grad in grads if grad is not None]
        is_there = len(own) == len(grads)
        local = math.sqrt(sum(square_sum(grad).item() for grad in own)) if is_there else None
        slots = self._slots(loss, stop)
        if self.pipeline is not None and is_there:
            self.pipeline.reduce_tied()
        if not dense.finish(slots if self.mesh.model.size == 1 else None):
            self.mesh.world.axis.all_reduce(slots)
        for part in self.parts[1:]:
            part.data.finish()
        if self.pipeline is not None and not is_there:
            self.pipeline.reduce_tied()
        self._sum_repeated()
        return self._agreement(slots, local)

    def _sum_repeated(self) -> None:
        """With sequence parallelism each tp rank has the norms' gradients from its own positions alone."""
        if self.mesh.tp.size > 1 and self.config.sequence_parallel:
            for part in self.parts:
                for share in part.data.shares:
                    if share.plain.grad is not None and share.plain.numel():
                        self.mesh.tp.all_reduce(share.plain.grad)

    def norm(self) -> float:
        total = torch.zeros((), dtype=wide_dtype(self.mesh.world.device), device=self.mesh.world.device)
        for part in self.parts:
            own = torch.zeros_like(total)
            for share in part.data.shares:
                own += self._square_sum(share)
            for axis in part.apart:
                axis.all_reduce(own)
            total += own
        self.mesh.model.all_reduce(total)
        return math.sqrt(total.item())

    def _square_sum(self, share: Share) -> Tensor:
        if self.mesh.model.size == 1:
            return square_sum(share.grad)
        total = torch.zeros((), dtype=wide_dtype(share.grad.device), device=share.grad.device)
        for piece in share.slices():
            if self._speaks(piece.name) and piece.tensor.grad is not None:
                total += square_sum(piece.tensor.grad[piece.start : piece.end])
        return total

    def clip(self, norm: float, max_norm: float) -> None:
        if norm > max_norm:
            for part in self.parts:
                for share in part.data.shares:
                    share.grad.mul_(max_norm / norm)

    def step(self, scaler: torch.amp.GradScaler) -> None:
        scaler.step(self.optimizer)
        for part in self.parts:
            part.data.gather()

    def zero(self) -> None:
        for part in self.parts:
            part.data.zero()

    @torch.no_grad()
    def loss(self, tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
        cp = self.mesh.cp
        positions_t = None
        if cp.size > 1:
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

    # ---- what is where -----------------------------------------------------------------------------------------------

    def held_parameters(self) -> list[Held]:
        held: list[Held] = []
        for name, parameter in self.model.named_parameters():
            part = self._part_of(name)
            if part.data.keeps_whole_parameters:
                corner, whole = self._box(name, parameter.shape)
                axis = self.mesh.expert_data if name in self._experts else self.mesh.data
                held.append(Held(name, parameter.detach(), corner, whole, self._copies(name, axis)))
        for part in self.parts:
            if not part.data.keeps_whole_parameters:
                held += self._boxes(part, lambda tensor: tensor.detach()) + self._frozen(part)
        return held

    def held_gradients(self) -> list[Held]:
        return [box for part in self.parts for box in self._boxes(part, lambda tensor: tensor.grad)]

    def held_moments(self) -> list[Held]:
        state = self.optimizer.state
        return [
            replace(box, name=f"{moment}/{box.name}")
            for moment in MOMENTS
            for part in self.parts
            for box in self._boxes(part, lambda tensor, moment=moment: state[tensor][moment])  # type: ignore[misc]
        ]

    def _part_of(self, name: str) -> Part:
        return self.parts[-1] if name in self._experts else self.parts[0]

    def _boxes(self, part: Part, values: Callable[[nn.Parameter], Tensor | None]) -> list[Held]:
        """The boxes of something laid out like the tensors that the optimizer updates."""
        held: list[Held] = []
        for share in part.data.shares:
            for piece in share.slices():
                found = values(piece.tensor)
                assert found is not None
                local = share.flat.parameters[piece.name].shape
                run = found[piece.start : piece.end]
                corner, whole = self._box(piece.name, local)
                copies = self._copies(piece.name, part.copies)
                held += held_slice(piece.name, run, piece.first, local, corner, whole, copies)
        return held

    def _frozen(self, part: Part) -> list[Held]:
        """Under zero3 the shards of the parameters that are not trained."""
        held: list[Held] = []
        if isinstance(part.data, Zero3):
            for name, run, first, local in part.data.frozen_runs():
                corner, whole = self._box(name, local)
                held += held_slice(name, run, first, local, corner, whole, self._copies(name, part.copies))
        return held

    def _box(self, name: str, local: torch.Size) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Where a local parameter begins in the whole model's, and that one's shape."""
        whole = self.shapes[name]
        corner = [0] * len(whole)
        if name in self._experts:
            corner[0] = self.mesh.ep.rank * local[0]
        elif self.mesh.tp.size > 1 and (dim := split_dim(name)) is not None:
            corner[dim] = self.mesh.tp.rank * local[dim]
        return tuple(corner), whole

    def _copies(self, name: str, axis: Axis) -> tuple[int, int] | None:
        """Which of the copies along `axis` this rank's is; None if another rank of its model speaks for it."""
        return (axis.rank, axis.size) if self._speaks(name) else None

    def _speaks(self, name: str) -> bool:
        repeats = self.pipeline is not None and self.pipeline.repeats(name)
        return super()._speaks(name) and not repeats


def _pipeline(config: RunConfig, mesh: Mesh, model: TinyTransformer, autocast: AbstractContextManager[Any]) -> Pipeline:
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
