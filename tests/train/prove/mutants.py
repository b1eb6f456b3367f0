"""Common mistakes in these strategies, planted by patching: the proof must detect every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from frog.train.comm.axis import NOTHING, Axis
from frog.train.parallel import scratch
from frog.train.parallel.data import data_parallel as data
from frog.train.parallel.data import ddp, diloco, zero1, zero2, zero3
from frog.train.parallel.model import context, expert, pipeline, tensor

Patch = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Mutant:
    """A planted mistake."""

    name: str
    strategy: str
    """The strategy's name in `frog prove --strategy`."""
    world_size: int
    plant: Patch
    accumulate: bool = False


def nothing(*args: Any, **kwargs: Any) -> None:
    """Replaces a function that is needed."""


def replaced(owner: Any, name: str, value: Any) -> Patch:
    return lambda: patch.object(owner, name, value)


def forgotten(owner: Any, name: str) -> Patch:
    return replaced(owner, name, nothing)


def summed(kind: type[data.DataParallel]) -> Patch:
    """Use the sum over the ranks instead of their mean."""
    original = kind.finish

    def finish(self: Any, tail: Tensor | None = None) -> bool:
        rides = original(self, tail)
        axis = self.axis if hasattr(self, "axis") else self.shard
        for share in self.partitions:
            share.grad.mul_(axis.size)
        return rides

    return replaced(kind, "finish", finish)


def around(method: str, change: Callable[..., Any]) -> Patch:
    """Replace a collective of every axis by `change(original, axis, *args)`."""
    original = getattr(Axis, method)
    return replaced(Axis, method, lambda self, *args, **kwargs: change(original, self, *args, **kwargs))


def only_on(name: str, instead: Callable[..., Any]) -> Callable[..., Any]:
    """Use `instead` on the axis of that name, the original on others."""
    return lambda original, axis, *args, **kwargs: (
        instead(axis, *args) if axis.name == name else original(axis, *args, **kwargs)
    )


def neighbors_slice(original: Any, axis: Axis, part: Tensor, whole: Tensor) -> Any:
    return original(axis, part, whole.view(axis.size, -1).roll(1, dims=0).contiguous().view(-1))


def slices_swapped(original: Any, axis: Axis, whole: Tensor, part: Tensor) -> Any:
    original(axis, whole, part).wait()
    if axis.size > 1:
        whole.copy_(whole.view(axis.size, -1).roll(1, dims=0).reshape(whole.shape))
    return NOTHING


def without_maximum(original: Any, axis: Axis, x: Tensor, op: Any = dist.ReduceOp.SUM) -> Any:
    return NOTHING if op == dist.ReduceOp.MAX else original(axis, x, op)


def own_slice_unsummed(axis: Axis, part: Tensor, whole: Tensor) -> Any:
    part.view(-1).copy_(whole.reshape(axis.size, -1)[axis.rank])
    return NOTHING


def stays_where_it_is(axis: Axis, received: Any, sent: Any) -> Any:
    for target, source in zip(received, sent, strict=True):
        target.copy_(source)
    return NOTHING


def rows_come_back_in_another_order(original: Any, axis: Axis, received: Tensor, sent: Tensor, *counts: Any) -> Any:
    original(axis, received, sent, *counts).wait()
    if received.dim() == 2 and received.is_floating_point():
        received.copy_(received.roll(1, dims=0))
    return NOTHING


def always_last() -> Patch:
    """Treat every micro-batch as the step's last one."""
    original = ddp.OverlappedDDP.before_backward
    return replaced(ddp.OverlappedDDP, "before_backward", lambda self, last: original(self, True))


def one_gradient_early() -> Patch:
    """Send a bucket before its last gradient has arrived, and reduce it then: no late gradient may slip in."""

    @contextmanager
    def plant() -> Iterator[None]:
        before, send = ddp.OverlappedDDP.before_backward, ddp.OverlappedDDP._send

        def before_backward(self: Any, last: bool) -> None:
            before(self, last)
            self._missing = [max(0, count - 1) for count in self._missing]

        def send_and_wait(self: Any, number: int) -> None:
            send(self, number)
            self._pending[-1].wait()

        with (
            patch.object(ddp.OverlappedDDP, "before_backward", before_backward),
            patch.object(ddp.OverlappedDDP, "_send", send_and_wait),
        ):
            yield

    return plant


def a_bucket_left_out() -> Patch:
    original = ddp.cut_buckets
    return replaced(ddp, "cut_buckets", lambda *args: original(*args)[1:])


def a_parameter_left_out() -> Patch:
    @contextmanager
    def plant() -> Iterator[None]:
        original = ddp.NaiveDDP.finish

        def finish(self: Any, tail: Tensor | None = None) -> bool:
            name = next(iter(self.flat.spans))
            own = self.flat.view(self.grad, name).clone()
            rides = original(self, tail)
            self.flat.view(self.grad, name).copy_(own)
            return rides

        with patch.object(ddp.NaiveDDP, "finish", finish):
            yield

    return plant


def newest_gradient_only() -> Patch:
    """Overwrite the accumulated gradient with a micro-batch's share instead of adding it."""

    def receive(self: Any) -> None:
        if self._sent is not None:
            pending, mine, _ = self._sent
            pending.wait()
            self.partition.grad.copy_(mine)
            self._sent = None

    return replaced(zero2.Unit, "receive", receive)


def never_freed() -> Patch:
    """Reuse the parameters gathered in the first step in the second."""
    original = zero3.ShardedBuffer.free

    def free(self: Any) -> None:
        if not hasattr(self, "was_freed"):
            self.was_freed = True
            original(self)

    return replaced(zero3.ShardedBuffer, "free", free)


def no_backward_sum() -> Patch:
    return replaced(tensor._CopyToRanks, "backward", staticmethod(lambda ctx, grad: (grad, None)))


def labels_of_the_next_micro_batch() -> Patch:
    original = pipeline.Pipeline.run

    def run(self: Any, batch: Any, *args: Any) -> Tensor:
        rolled = scratch.replace(batch, labels_ABT=batch.labels_ABT.roll(1, dims=0))
        return original(self, rolled, *args)

    return replaced(pipeline.Pipeline, "run", run)


def positions_from_zero() -> Patch:
    original = context.local_part

    def local_part(tokens: Tensor, labels: Tensor, cp: Axis) -> tuple[Tensor, Tensor, Tensor]:
        tokens, labels, positions = original(tokens, labels, cp)
        return tokens, labels, torch.arange(len(positions))

    return replaced(context, "local_part", local_part)


def experts_not_averaged() -> Patch:
    original = scratch.build_groups

    def parts(*args: Any) -> list[scratch.ParameterGroup]:
        made = original(*args)
        made[-1].data.finish = nothing  # type: ignore[method-assign]
        return made

    return replaced(scratch, "build_groups", parts)


def summed_twice(axis: Axis, x: Tensor, *op: Any) -> Any:
    dist.all_reduce(x, group=axis.group)
    x.mul_(axis.size)
    return NOTHING


def gradients_averaged_too() -> Patch:
    original = diloco.DiLoCo.finish

    def finish(self: Any, tail: Tensor | None = None) -> bool:
        self.axis.all_reduce(self.grad)
        self.grad.div_(self.axis.size)
        return original(self, tail)

    return replaced(diloco.DiLoCo, "finish", finish)


def without_nesterov() -> Patch:
    """Move the outer weights only by the momentum."""
    original = diloco.DiLoCo.gather

    def gather(self: Any) -> None:
        before, ends_round = self.outer.clone(), self._ends_round
        original(self)
        if ends_round:
            self.outer.copy_(before - self._rate * self._momentum)
            self.flat.data.copy_(self.outer)

    return replaced(diloco.DiLoCo, "gather", gather)


NOT_SHARED = forgotten(scratch, "broadcast_weights")

MUTANTS = [
    *(Mutant("rank 0's weights not shared", name, 2, NOT_SHARED) for name in ("ddp-naive", "zero1", "zero3", "tp")),
    Mutant("sum for average", "ddp-naive", 2, summed(ddp.NaiveDDP)),
    Mutant("a parameter left out", "ddp-naive", 2, a_parameter_left_out()),
    Mutant("sum for average", "ddp-bucketed", 2, summed(ddp.BucketedDDP)),
    Mutant("a bucket left out", "ddp-bucketed", 2, a_bucket_left_out()),
    Mutant("gradient not zeroed", "ddp-bucketed", 2, forgotten(ddp.NaiveDDP, "zero")),
    Mutant("sum for average", "ddp-overlapped", 2, summed(ddp.OverlappedDDP)),
    Mutant("reduced in every micro-batch", "ddp-overlapped", 2, always_last(), accumulate=True),
    Mutant("a bucket leaves a gradient early", "ddp-overlapped", 2, one_gradient_early()),
    Mutant("sum for average", "zero1", 2, summed(zero1.Zero1)),
    Mutant("the neighbor's shard", "zero1", 2, around("start_reduce_scatter", neighbors_slice)),
    Mutant("parameters not gathered", "zero1", 2, forgotten(zero1.Zero1, "gather")),
    Mutant("sum for average", "zero2", 2, summed(zero2.Zero2)),
    Mutant("newest micro-batch only", "zero2", 2, newest_gradient_only(), accumulate=True),
    Mutant("parameters not gathered", "zero2", 2, forgotten(zero2.Zero2, "gather")),
    Mutant("the neighbor's shard", "zero2", 2, around("start_reduce_scatter", neighbors_slice)),
    Mutant("stale parameters", "zero3", 2, never_freed()),
    Mutant("shards in the wrong order", "zero3", 2, around("start_all_gather", slices_swapped)),
    Mutant("the neighbor's shard", "zero3", 2, around("start_reduce_scatter", neighbors_slice)),
    Mutant("rank 0's weights not shared", "diloco", 2, NOT_SHARED),
    Mutant("sum for average", "diloco", 2, around("start_all_reduce", only_on("dp", summed_twice))),
    Mutant("differences stay at home", "diloco", 2, forgotten(diloco.DiLoCo, "_average")),
    Mutant("ranks never meet", "diloco", 2, forgotten(diloco.DiLoCo, "finish")),
    Mutant("gradients averaged too", "diloco", 2, gradients_averaged_too()),
    Mutant("momentum without Nesterov", "diloco", 2, without_nesterov()),
    Mutant("no sum in the backward pass", "tp", 2, no_backward_sum()),
    Mutant("each rank's own largest logit", "tp", 2, around("start_all_reduce", without_maximum)),
    Mutant("norms counted once a rank", "tp", 2, replaced(scratch.FromScratch, "_counts", lambda self, name: True)),
    Mutant("norms' gradients not summed", "tp+sp", 2, forgotten(scratch.FromScratch, "_sum_repeated")),
    Mutant("partial results not summed", "tp+sp", 2, around("start_reduce_scatter", only_on("tp", own_slice_unsummed))),
    Mutant("stretches in the wrong order", "tp+sp", 2, around("start_all_gather", slices_swapped)),
    *(
        Mutant("tied gradient forgotten", name, 2, forgotten(pipeline.Pipeline, "reduce_tied"))
        for name in ("pp-gpipe", "pp-1f1b", "pp-interleaved", "pp-zero-bubble")
    ),
    *(
        Mutant("labels of the next micro-batch", name, 2, labels_of_the_next_micro_batch())
        for name in ("pp-gpipe", "pp-1f1b", "pp-interleaved", "pp-zero-bubble")
    ),
    *(
        Mutant("tied copy counted twice", name, 2, replaced(pipeline.Pipeline, "repeats", lambda self, name: False))
        for name in ("pp-gpipe", "pp-1f1b", "pp-interleaved", "pp-zero-bubble")
    ),
    Mutant("positions from zero", "cp", 2, positions_from_zero()),
    Mutant("keys and values stay at home", "cp", 2, around("start_shift", only_on("cp", stays_where_it_is))),
    Mutant("not averaged over cp", "cp", 2, forgotten(ddp.BucketedDDP, "finish")),
    Mutant("load seen by each rank alone", "ep", 2, forgotten(expert, "balance_over")),
    Mutant("rows come back in another order", "ep", 2, around("start_all_to_all", rows_come_back_in_another_order)),
    Mutant("experts not averaged", "dp x ep", 4, experts_not_averaged()),
    *(
        Mutant(
            "rows of shards not averaged", name, 4, around("start_all_reduce", only_on("replicate", lambda *a: NOTHING))
        )
        for name in ("hybrid zero1", "hybrid zero2", "hybrid zero3")
    ),
    Mutant("norm of one rank alone", "tp x pp", 4, around("start_all_reduce", only_on("model", lambda *a: NOTHING))),
]
"""At least three for each strategy, including those in tests/worlds, such as test_pipeline_world.py."""

MISCONCEPTIONS = {
    "a bucket leaves a gradient early": "2.3 starts-incomplete",
    "a bucket left out": "2.2 last-bucket-lost",
    "a parameter left out": "2.1 some-left-out",
    "differences stay at home": "2.1 never-reduces",
    "each rank's own largest logit": "5.3 own-maximum",
    "experts not averaged": "5.9 not-averaged",
    "gradient not zeroed": "2.1 never-clears",
    "gradients averaged too": "2.4 syncs-every-time",
    "keys and values stay at home": "5.7 own-block-only",
    "labels of the next micro-batch": "1.1 across-samples",
    "load seen by each rank alone": "5.8 balance-of-own-tokens",
    "momentum without Nesterov": "4.10 plain-momentum",
    "newest micro-batch only": "4.3 last-micro-batch",
    "no sum in the backward pass": "5.1 input-gradient-in-parts",
    "norm of one rank alone": "5.11 norm-of-own-part",
    "norms counted once a rank": "4.5 copies-counted-again",
    "norms' gradients not summed": "5.4 gradient-of-slice",
    "not averaged over cp": "5.4 gradient-of-slice",
    "parameters not gathered": "4.2 never-gathered",
    "partial results not summed": "5.4 never-summed",
    "positions from zero": "5.7 places-for-positions",
    "rank 0's weights not shared": "2.17 starts-apart",
    "ranks never meet": "2.1 steps-alone",
    "reduced in every micro-batch": "2.17 no-sync-ignored",
    "rows come back in another order": "5.8 returned-in-expert-order",
    "rows of shards not averaged": "5.9 not-averaged",
    "shards in the wrong order": "4.3 another-shard",
    "stale parameters": "4.12 stale-weights",
    "stretches in the wrong order": "5.7 back-in-order",
    "sum for average": "2.1 sum-is-average",
    "the neighbor's shard": "4.3 another-shard",
    "tied copy counted twice": "4.5 tied-twice",
    "tied gradient forgotten": "5.6 tied-not-summed",
}
"""For each mutant's name, the exercise in which the grader explains the mistake, and the misconception behind it."""
