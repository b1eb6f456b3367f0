"""A world in which only one rank exists: its collectives move no data, but are recorded as usual.

Each returns the result of equal data on all ranks, so that shapes, sizes and finite numbers are correct.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from frog.core.config import RunConfig
from frog.core.env import WorldEnv
from frog.core.runs.event_schema import CollectiveEvent
from frog.train.comm import Axis, World
from frog.train.comm.axis import NOTHING, Pending
from frog.train.data import Batch
from frog.train.memory import measure_activations, memory_fields
from frog.train.model import TinyTransformer
from frog.train.optim.build_optimizer import build_optimizer
from frog.train.parallel.build_strategy import build_mesh, build_strategy


class Recorder:
    """Records every collective."""

    def __init__(self) -> None:
        self.recorded: list[CollectiveEvent] = []

    def __call__(self, op: str, axis: str, payload_bytes: int) -> Recorder:
        self.recorded.append(
            CollectiveEvent(
                step=1, op=op, axis=axis, payload_bytes=payload_bytes, seq=0, start_ns=0, end_ns=0, wait_ns=0
            )
        )
        return self

    def done(self, end_ns: int, wait_ns: int) -> None:
        return


class SimulatedAxis(Axis):
    """Copies the data that is available without other ranks."""

    def _start(self, op: str, payload_bytes: int, *begins: Callable[[], Any]) -> Pending:
        if self.size > 1:
            self.record(op, self.name, payload_bytes)
        return NOTHING

    def start_all_gather(self, whole: Tensor, part: Tensor) -> Pending:
        whole.view(-1).copy_(part.reshape(-1).repeat(self.size))
        return self._start("all_gather", whole.nbytes)

    def start_reduce_scatter(self, part: Tensor, whole: Tensor) -> Pending:
        part.view(-1).copy_(whole.reshape(self.size, -1)[self.rank])
        return self._start("reduce_scatter", whole.nbytes)

    def start_all_to_all(
        self, received: Tensor, sent: Tensor, counts: tuple[list[int], list[int]] | None = None
    ) -> Pending:
        received.copy_(sent)
        return self._start("all_to_all", sent.nbytes)

    def start_receive(self, x: Tensor, source: int, tag: int = 0) -> Pending:
        x.normal_()
        return super().start_receive(x, source, tag)

    def start_shift(self, received: Sequence[Tensor], sent: Sequence[Tensor]) -> Pending:
        for target, source in zip(received, sent, strict=True):
            target.copy_(source)
        return self._start("send_recv", sum(x.nbytes for x in sent))


class SimulatedWorld(World):
    """Rank `rank` of a world of `size`."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(WorldEnv(rank, size, rank, size, 0, 1, "", None, True), torch.device("cpu"), 1.0)

    @property
    def axis(self) -> Axis:
        return SimulatedAxis("world", range(self.size), self.rank, self.device, None, self._recorder)

    def make_axis(self, name: str, ranks_of_all: Sequence[Sequence[int]]) -> Axis:
        own = next(ranks for ranks in ranks_of_all if self.rank in ranks)
        return SimulatedAxis(name, own, self.rank, self.device, None, self._recorder)


def take_step(config: RunConfig, world_size: int, rank: int) -> tuple[list[CollectiveEvent], dict[str, int]]:
    """Run one optimizer step of one rank; return its collectives, and the fields of a `memory` event."""
    torch.manual_seed(0)
    world, recorder = SimulatedWorld(rank, world_size), Recorder()
    mesh = build_mesh(config, world)
    model = TinyTransformer(config.model, config.train.activation_checkpointing)
    strategy = build_strategy(config, mesh, model, partial(build_optimizer, config.optimizer))
    world.report_to(recorder)
    with measure_activations(model) as meter:
        loss = strategy.forward_backward(_batch(config, world_size), lambda loss: loss, _span)
    strategy.reduce(loss, False)
    strategy.norm()
    strategy.step(torch.amp.GradScaler("cpu", enabled=False))
    strategy.zero()
    return recorder.recorded, memory_fields(strategy, meter.peak_bytes)


def _span(phase: Any, micro: int = 0, /) -> AbstractContextManager[None]:
    return nullcontext()


def _batch(config: RunConfig, world_size: int) -> Batch:
    micros = config.train.grad_accum
    sequences = config.train.global_batch_size // config.strategy.dp_size(world_size) // micros
    shape = (micros, sequences, config.data.sequence_length)
    tokens_ABT = torch.randint(0, config.model.vocab_size, shape)
    return Batch(1, torch.arange(micros * sequences).numpy(), tokens_ABT, tokens_ABT, (1 / micros,) * micros)
