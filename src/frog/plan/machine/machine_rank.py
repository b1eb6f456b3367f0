"""Measure one machine, as one of several ranks: `... rank RANK WORLD REQUEST FOLDER`.

Groups of 1, 2, 4, ... ranks do the same at once, while the others wait. A block repeats an operation; it takes as long
as its slowest rank. With one thread per rank, a computation's time is that of the processor, shared by as many ranks as
there are for each core: other programs hardly disturb it. A collective and the optimizer follow a computation, as in a
step: the caches are cold, threads that move bytes sleep, and the ranks arrive one after the other.

The speed of a virtual machine changes within seconds. So all groups measure everything in several rounds, and each
sample is the median of its rounds. A third round leaves out what two rounds found alike: the median lies between them.
When the time is up, it leaves out all. Rank 0 writes the samples.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore

from frog.core.config import ModelConfig, OptimizerConfig
from frog.core.config.model import split_dim
from frog.core.env import WorldEnv
from frog.core.machine import keep_freed_memory
from frog.core.processes import leave, leave_with_parent
from frog.plan.machine.costs import Work
from frog.plan.machine.request import LayerSize, Request
from frog.plan.machine.work import head_work, layer_work, moved, optimizer_work
from frog.train.comm import Axis
from frog.train.comm.axis import Silent
from frog.train.comm.backend import Gloo
from frog.train.model.functions import linear
from frog.train.model.transformer import Layer, TinyTransformer
from frog.train.optim.build_optimizer import build_optimizer
from frog.train.optim.tensors import UpdatedTensor
from frog.train.parallel.data.flat import square_sum
from frog.train.parallel.model.tensor import copy_to_ranks, gather_sequence, sum_of_ranks

_CPU = torch.device("cpu")
REFERENCE_WIDTH = 512
"""Width of the product whose speed is the machine's."""
_ALIKE = 0.05
"""Relative difference of two rounds below which a third would hardly change the median."""
_LINK_BLOCK = 2
"""Length of a collective's block, of a computation's: its time cannot be that of the processor."""


_Operation = tuple[str, str, Work]
"""Its kind, its name and its work."""


@dataclass
class Stage:
    """A group of ranks that measure at once."""

    axis: Axis
    request: Request
    threads: int
    started: float = field(default_factory=time.perf_counter)
    rounds: dict[_Operation, list[float]] = field(default_factory=dict)
    """The seconds of each operation, of all rounds."""

    @property
    def slowdown(self) -> float:
        """The ranks of a core, which take turns; 1 if the clock counts that."""
        return max(1.0, self.axis.size / self.request.cores) if self.threads == 1 else 1.0

    def clock(self) -> float:
        """Return the time of computations: the processor's, or with several threads that of the wall."""
        return time.process_time() if self.threads == 1 else time.perf_counter()

    def measure(
        self,
        kind: str,
        name: str,
        work: Work,
        action: Callable[[], object],
        *,
        after: Callable[[], object] | None = None,
        times: int = 1,
    ) -> float:
        """Time an operation, unless it is known well enough, and keep it with its work; return its seconds.

        A call of `action` does it `times` times, after an untimed call of `after`. The first call warms up.
        """
        known = self.rounds.setdefault((kind, name, work), [])
        if len(known) > 1 and self._is_settled(known):
            return known[-1]
        block, length = (self._link_block, _LINK_BLOCK) if kind == "link" else (self._block, 1)
        before = after or _nothing
        start = time.perf_counter()
        before()
        action()
        repeats = torch.tensor(math.ceil(length * self.request.block_s / max(1e-6, time.perf_counter() - start)))
        self.axis.all_reduce(repeats, dist.ReduceOp.MIN)
        seconds = max(1e-9, block(action, before, int(repeats)) / times)
        known.append(seconds)
        return seconds

    def _is_settled(self, known: list[float]) -> bool:
        """Return whether all ranks find that an operation need not be measured again."""
        is_late = time.perf_counter() - self.started > self.request.budget_s
        settled = torch.tensor(int(is_late or _are_alike(known)))
        self.axis.all_reduce(settled, dist.ReduceOp.MIN)
        return bool(settled)

    def samples(self) -> list[dict[str, Any]]:
        """Return one sample for each operation: the median of its rounds, and whether the time was up for a third."""
        return [
            {
                "kind": kind,
                "name": name,
                "work": asdict(work),
                "seconds": statistics.median(each),
                "late": len(each) == 2 and not _are_alike(each),
            }
            for (kind, name, work), each in self.rounds.items()
        ]

    def _block(self, action: Callable[[], object], before: Callable[[], object], count: int) -> float:
        """Return the seconds of a computation on the slowest rank."""
        self.axis.all_reduce(torch.zeros(1))
        took_s, at_once = 0.0, count if before is _nothing else 1
        for _ in range(count // at_once):
            before()
            took_s += self._computed_s(action, at_once)
        slowest = torch.tensor(took_s, dtype=torch.float64)
        self.axis.all_reduce(slowest, dist.ReduceOp.MAX)
        return self.slowdown * slowest.item() / count

    def _computed_s(self, action: Callable[[], object], count: int) -> float:
        start = self.clock()
        for _ in range(count):
            action()
        return self.clock() - start

    def _link_block(self, action: Callable[[], object], before: Callable[[], object], count: int) -> float:
        """Return the seconds that a collective adds to the computations before it, the mean of the ranks."""
        self.axis.all_reduce(torch.zeros(1))
        start, computed_s = time.perf_counter(), 0.0
        for _ in range(count):
            computed_s += self._computed_s(before, 1)
            action()
        added = torch.tensor(time.perf_counter() - start - self.slowdown * computed_s, dtype=torch.float64)
        self.axis.all_reduce(added)
        return added.item() / self.axis.size / count


def _are_alike(seconds: list[float]) -> bool:
    return max(seconds) <= (1 + _ALIKE) * min(seconds)


def _nothing() -> None:
    """Do nothing before an operation."""


def measure_stage(stage: Stage) -> None:
    """Measure everything in one group, once."""
    measure_reference(stage)
    measure_memory(stage)
    for precision in stage.request.precisions:
        for width in stage.request.product_widths:
            measure_product(stage, precision, width)
        for size in stage.request.layers:
            measure_layer(stage, precision, size)
            if size.split == 1:
                measure_head(stage, precision, size)
    between = both_passes(stage.request.layers[0])
    for numel in stage.request.optimizer_numels:
        measure_optimizer(stage, numel, between)
    if stage.axis.size > 1:
        for op, num_bytes, times, action in collectives(stage):
            stage.measure("link", op, moved(num_bytes), action, after=between, times=times)


def measure_reference(stage: Stage) -> float:
    """Return the operations per second of a product by which the speed of this machine is compared."""
    x, w = torch.randn(REFERENCE_WIDTH, REFERENCE_WIDTH), torch.randn(REFERENCE_WIDTH, REFERENCE_WIDTH)
    work = Work(products=2.0 * REFERENCE_WIDTH**3)
    with torch.no_grad():
        return work.products / stage.measure("reference", "product", work, lambda: linear(x, w))


def measure_memory(stage: Stage) -> None:
    """Measure a sum of two long vectors, and the launch of an operation on one number."""
    x, y, one = torch.ones(stage.request.memory_numel), torch.ones(stage.request.memory_numel), torch.ones(1)
    stage.measure("memory", "add", moved(3 * x.nbytes), lambda: x.add_(y))
    stage.measure("launch", "add", moved(0), lambda: one.add_(one))


def measure_product(stage: Stage, precision: str, width: int) -> None:
    """Measure the product of two square matrices."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    x, w = torch.randn(width, width, dtype=dtype), torch.randn(width, width, dtype=dtype)
    with torch.no_grad():
        stage.measure("product", f"{precision} {width}", moved(0), lambda: linear(x, w))


def measure_layer(stage: Stage, precision: str, size: LayerSize) -> None:
    """Measure both passes through a layer of the model."""
    work = layer_work(config_of(size), size.batch * size.length, size.length, size.split)
    stage.measure("layer", precision, work, both_passes(size, precision))


def both_passes(size: LayerSize, precision: str = "fp32") -> Callable[[], None]:
    """Return both passes through a layer of the model; gradients add up in a buffer, as in a strategy."""
    model = config_of(size)
    cos_TC, sin_TC = TinyTransformer(model).rotations(size.length)
    layer = with_gradients(split(Layer(model), size.split))
    x_BTD = torch.randn(size.batch, size.length, size.width, requires_grad=True)
    grad_BTD = torch.randn_like(x_BTD)

    def both() -> None:
        x_BTD.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            y_BTD = layer(x_BTD, cos_TC, sin_TC)
        y_BTD.backward(grad_BTD.to(y_BTD.dtype))

    return both


def measure_head(stage: Stage, precision: str, size: LayerSize) -> None:
    """Measure both passes through the embedding and the loss."""
    model = config_of(size)
    net = TinyTransformer(model)
    with_gradients(net.embed_tokens), with_gradients(net.norm), with_gradients(net.lm_head)
    tokens_BT = torch.randint(0, model.vocab_size, (size.batch, size.length))

    def both() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = net.head(net.embed_tokens(tokens_BT), tokens_BT)
        loss.backward()  # type: ignore[no-untyped-call]

    stage.measure("head", precision, head_work(model, tokens_BT.numel()), both)


def config_of(size: LayerSize) -> ModelConfig:
    """Return a model of one layer of this size."""
    return ModelConfig(
        vocab_size=size.vocab,
        hidden_size=size.width,
        intermediate_size=size.ffn_width,
        num_hidden_layers=1,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=size.length,
    )


def split(layer: Layer, num_ranks: int) -> Layer:
    """Keep the part of each matrix that one of several ranks has with tensor parallelism, without its communication."""
    for name, parameter in layer.named_parameters():
        if num_ranks > 1 and (dim := split_dim(f"layers.0.{name}")) is not None:
            parameter.data = parameter.data.chunk(num_ranks, dim)[0].clone()
    return layer


def with_gradients(module: nn.Module) -> nn.Module:
    """Give each parameter a gradient, so that a backward pass adds to it."""
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return module


def measure_optimizer(stage: Stage, numel: int, before: Callable[[], object]) -> None:
    """Measure what a step does with a flat gradient: norm, clipping, AdamW, reset."""
    flat = nn.Parameter(torch.randn(numel))
    flat.grad = torch.randn(numel)
    grad: Tensor = flat.grad
    optimizer = build_optimizer(OptimizerConfig(), [UpdatedTensor.of("flat", flat)])

    def update() -> None:
        square_sum(grad).item()
        grad.mul_(0.999)
        optimizer.step()
        grad.zero_()

    stage.measure("optimizer", "adamw", optimizer_work(numel), update, after=before)


def collectives(stage: Stage) -> Iterator[tuple[str, int, int, Callable[[], object]]]:
    """Yield the collectives of the strategies at each size: operation, bytes of payload, number of times, call.

    Those of tensor and sequence parallelism contain the autograd functions and copies around them.
    """
    axis = stage.axis
    for num_bytes in stage.request.payload_bytes:
        whole, other = torch.zeros(num_bytes // 4), torch.zeros(num_bytes // 4)
        part = torch.zeros(len(whole) // axis.size)
        yield "all_reduce", num_bytes, 1, partial(axis.all_reduce, whole)
        yield "all_gather", num_bytes, 1, partial(axis.all_gather, whole, part)
        yield "reduce_scatter", num_bytes, 1, partial(axis.reduce_scatter, part, whole)
        yield "all_to_all", num_bytes, 1, partial(axis.all_to_all, other, whole)
        yield "send_recv", num_bytes, 1, partial(_shift, axis, other, whole)
        yield "tensor", num_bytes, 2, partial(_both, lambda x, tp: sum_of_ranks(copy_to_ranks(x, tp), tp), whole, axis)
        yield "sequence", num_bytes, 2, partial(_both, gather_sequence, part.view(2, 1, -1), axis)


def _both(function: Callable[[Tensor, Axis], Tensor], x: Tensor, axis: Axis) -> None:
    """Run a function's two passes, which communicate once each."""
    y = function(x.detach().requires_grad_(), axis)
    y.backward(y.detach())  # type: ignore[no-untyped-call]


def _shift(axis: Axis, received: Tensor, sent: Tensor) -> None:
    axis.start_shift([received], [sent]).wait()


def main() -> None:
    leave_with_parent()
    keep_freed_memory()
    rank, world_size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[4])
    request = Request.of(json.loads(sys.argv[3]))
    env = WorldEnv(rank, world_size, rank, world_size, 0, 1, "127.0.0.1", None, launched=True)
    Gloo().start(env, _CPU, 600, FileStore(str(folder / "store"), world_size))
    groups = {size: dist.new_group(list(range(size))) for size, _ in request.worlds}
    stages = [
        Stage(Axis("group", range(size), rank, _CPU, groups[size], [Silent()], Gloo()), request, threads)
        for size, threads in request.worlds
        if rank < size
    ]
    for _ in range(request.num_rounds):
        for size, threads in request.worlds:
            if rank < size:
                torch.set_num_threads(threads)
                measure_stage(next(stage for stage in stages if stage.axis.size == size))
            dist.barrier()
    if rank == 0:
        worlds = [
            {"world_size": stage.axis.size, "threads": stage.threads, "samples": stage.samples()} for stage in stages
        ]
        (folder / "samples.json").write_text(json.dumps(worlds))
    dist.barrier()
    leave(0)  # gloo may abort a process that unloads torch


if __name__ == "__main__":
    main()
