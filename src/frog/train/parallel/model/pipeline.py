"""Pipeline parallelism: the ranks of `pp` hold the layers in stages, and micro-batches flow through them.

Plan of communication over `pp` (x is B*t*D elements, A micro-batches, S stages), whatever the schedule:
  forward    the output x of every stage but the last goes to the next one: A (S-1) messages of x in all.
  backward   the gradient of every stage's input but the first's goes back: the same number.
  tied       if embedding and head are one weight, one all-reduce of its gradient over the first and the last rank.
No action waits for a message before it needs it: receives are posted ahead, and sends complete in the background. The
rank's program (`programs.py`) decides in advance what is sent when; this file executes the program.

Memory: a micro-batch's activations are freed as soon as its last action on the stage is done.
Equals:  one process that takes the micro-batches one after another: the same sums in the same order, so bit for bit
         (except for a tied weight, whose two parts are summed at the end and not after each micro-batch).
Shapes:  A micro-batches, B batch, T time (sequence), t the positions of a rank between blocks, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from frog.train.comm import Axis, Pending
from frog.train.data import Batch
from frog.train.parallel.data.data_parallel import Listener
from frog.train.parallel.model.deferred import DeferredWeights, Due, add_weight_gradients
from frog.train.parallel.model.stages import TIED, Stages
from frog.train.parallel.schedules.programs import Instruction, program
from frog.train.parallel.schedules.schedule import Action, Schedule
from frog.train.parallel.strategy import Span, no_span


class Pipeline:
    """Runs this rank's program of a schedule on its stages.

    `tied` is the axis of `make_tied_axis` if embedding and head are one weight, `token_shards` the number of ranks
    over which sequence parallelism splits the positions. `autocast` applies to forward passes only.
    """

    def __init__(
        self,
        stages: Stages,
        pp: Axis,
        schedule: Schedule,
        *,
        tied: Axis | None = None,
        token_shards: int = 1,
        autocast: AbstractContextManager[Any] | None = None,
        positions_T: Tensor | None = None,
    ) -> None:
        assert len(schedule.ranks) == pp.size, f"a schedule for {len(schedule.ranks)} ranks, but there are {pp.size}"
        self.stages, self.pp, self.schedule, self.tied = stages, pp, schedule, tied
        self.autocast = autocast or nullcontext()
        self.program = program(schedule, pp.rank)
        self.final = set({(action.kind, action.stage): action for action in schedule.ranks[pp.rank]}.values())
        """The last backward and the last weight action of each stage (and, unused, the last forward)."""
        layers = [layer for own in stages.layers.values() for layer in own]
        self.deferred = DeferredWeights(layers) if schedule.splits_backward else None
        self._token_shards, self._positions_T = token_shards, positions_T
        self.peak_in_flight = 0
        """The most micro-batches that the last run held at a time, counted for each stage."""

    def repeats(self, name: str) -> bool:
        """True if a parameter of this rank is a copy that another rank counts."""
        return name == TIED and self.pp.rank > 0

    def run(
        self,
        batch: Batch,
        scale: Callable[[Tensor], Tensor],
        span: Span = no_span,
        data: Listener | None = None,
    ) -> Tensor:
        """Run forward and backward of all micro-batches; gradients accumulate in the parameters' `grad`.

        `data` is called before and after each action that adds to gradients, with `last` if no later action adds to the
        same parameters. Spans cover only computation, never waiting.

        Shapes:  -> a scalar: this rank's part of the loss. Its sum over `pp` is the loss; the last stage and stages
                 with routers contribute.
        """
        return _Run(self, batch, scale, span, data).execute()

    @torch.no_grad()
    def loss(self, tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
        """Compute the mean loss of some text on every rank: a forward pass from stage to stage, and a broadcast."""
        loss = torch.zeros((), device=self.pp.device)
        y: Tensor | None = None
        for stage in self.stages.layers:
            if stage > 0 and self.pp.size > 1:
                y = self.buffer(tokens_BT)
                self.pp.start_receive(y, self.schedule.rank_of(stage - 1)).wait()
            with self.autocast:
                y, _ = self.forward(stage, y, tokens_BT, labels_BT)
            if stage == self.schedule.num_stages - 1:
                loss.copy_(y)
            else:
                self.pp.start_send(y.contiguous(), self.schedule.rank_of(stage + 1)).wait()
        self.pp.broadcast(loss, source=self.pp.size - 1)
        return loss

    def reduce_tied(self) -> None:
        """Sum the gradient of a tied embedding over its two copies; do nothing if there is only one.

        The sum commutes with averaging over the data ranks: call it when the full gradient is in `grad`.
        """
        if self.tied is not None and self.tied.size > 1:
            weight = self.stages.model.embed_tokens.weight
            if weight.requires_grad:
                assert weight.grad is not None
                self.tied.all_reduce(weight.grad)

    def forward(
        self, stage: int, x_BtD: Tensor | None, tokens_BT: Tensor, labels_BT: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return a stage's output and its routers' loss."""
        y, router_loss = self.stages.forward(stage, x_BtD, tokens_BT, labels_BT, self._positions_T)
        return y, router_loss

    def buffer(self, tokens_BT: Tensor) -> Tensor:
        """Allocate a message: hidden states, or their gradient, of that many tokens.

        Shapes:  -> (B, t, D)
        """
        B, T = tokens_BT.shape
        weight = next(self.stages.model.parameters())
        shape = (B, T // self._token_shards, self.stages.model.config.hidden_size)
        return torch.empty(shape, dtype=weight.dtype, device=self.pp.device)


@dataclass
class _Micro:
    """The tensors of a micro-batch that a stage keeps between its actions."""

    x_BtD: Tensor | None
    roots: list[Tensor]
    """The tensors from which the backward pass starts: the output, and the stage's own loss."""
    due: list[Due] = field(default_factory=list)


class _Run:
    """One execution of a pipeline's program: its state, and the implementation of each instruction."""

    def __init__(
        self,
        pipeline: Pipeline,
        batch: Batch,
        scale: Callable[[Tensor], Tensor],
        span: Span,
        data: Listener | None,
    ) -> None:
        self._pipeline, self._batch, self._span, self._data = pipeline, batch, span, data
        self._pp, self._schedule = pipeline.pp, pipeline.schedule
        self._loss = torch.zeros((), device=self._pp.device)
        self._root = scale(torch.ones((), device=self._pp.device))
        """Return the derivative of the scaled loss by the loss."""
        self._in_flight: dict[tuple[int, int], _Micro] = {}
        self._made: dict[Action, Tensor] = {}
        self._arriving: dict[Action, tuple[Pending, Tensor]] = {}
        self._leaving: dict[Action, tuple[Pending, Tensor]] = {}

    def execute(self) -> Tensor:
        """Execute the program."""
        work = {"F": self._forward, "B": self._backward, "W": self._weights}
        peak = 0
        for instruction in self._pipeline.program:
            if instruction.op == "run":
                work[instruction.action.kind](instruction.action)
                peak = max(peak, len(self._in_flight))
            else:
                self._move(instruction)
        self._pipeline.peak_in_flight = peak
        return self._loss

    def _move(self, instruction: Instruction) -> None:
        """Post a receive or a send, or free a tensor that was sent."""
        if instruction.op == "let_go":
            self._leaving.pop(instruction.action)[0].wait()
            return
        assert instruction.peer is not None
        if instruction.op == "send":
            x_BtD = self._made.pop(instruction.action)
            self._leaving[instruction.action] = (self._pp.start_send(x_BtD, instruction.peer), x_BtD)
        else:
            x_BtD = self._pipeline.buffer(self._batch.tokens_ABT[instruction.action.micro])
            self._arriving[instruction.action] = (self._pp.start_receive(x_BtD, instruction.peer), x_BtD)

    def _take(self, action: Action) -> Tensor:
        """Return the other stage's result that this action needs: wait for the message, or take it from this rank."""
        needed = self._schedule.needs(action)
        assert needed is not None
        if needed in self._made:
            return self._made.pop(needed)
        pending, x_BtD = self._arriving.pop(needed)
        pending.wait()
        return x_BtD

    def _is_last(self, stage: int) -> bool:
        return stage == self._schedule.num_stages - 1

    def _forward(self, action: Action) -> None:
        stage, number, batch = action.stage, action.micro, self._batch
        x_BtD = self._take(action).requires_grad_() if stage > 0 else None
        with self._span("forward", number), self._pipeline.autocast:
            y, loss = self._pipeline.forward(stage, x_BtD, batch.tokens_ABT[number], batch.labels_ABT[number])
            if self._is_last(stage):
                loss = y if loss is None else y + loss
            roots = [] if loss is None else [loss * batch.loss_weight_A[number]]
        self._loss += sum(root.detach() for root in roots)
        if not self._is_last(stage):
            self._made[action] = y.detach().contiguous()
            roots.insert(0, y)
        self._in_flight[stage, number] = _Micro(x_BtD, roots)

    def _backward(self, action: Action) -> None:
        stage = action.stage
        micro = self._in_flight.pop((stage, action.micro))
        gradients = [self._root] * len(micro.roots)
        if not self._is_last(stage):
            gradients[0] = self._take(action)
        with self._span("backward", action.micro), self._gradients_of(action):
            _backward([pair for pair in zip(micro.roots, gradients, strict=True) if pair[0].requires_grad])
        if stage > 0:
            grad_BtD = micro.x_BtD.grad if micro.x_BtD is not None else None
            assert grad_BtD is not None
            self._made[action] = grad_BtD.contiguous()
        if self._pipeline.deferred is not None:
            self._in_flight[stage, action.micro] = _Micro(None, [], self._pipeline.deferred.take())

    def _weights(self, action: Action) -> None:
        micro = self._in_flight.pop((action.stage, action.micro))
        with self._span("backward", action.micro), self._gradients_of(action):
            add_weight_gradients(micro.due)

    @contextmanager
    def _gradients_of(self, action: Action) -> Iterator[None]:
        """Notify the data parallelism before and after gradients are computed."""
        if self._data is not None:
            self._data.before_backward(last=action in self._pipeline.final)
        yield
        if self._data is not None:
            self._data.after_backward()


def _backward(pairs: list[tuple[Tensor, Tensor]]) -> None:
    if pairs:
        roots, gradients = zip(*pairs, strict=True)
        torch.autograd.backward(roots, gradients)
