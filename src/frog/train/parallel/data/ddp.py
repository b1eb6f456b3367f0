"""Replicated data parallelism: each rank has the full model and its own part of the batch.

Plan of communication, once a step, over `dp` (P bytes of gradients, n ranks; 2(n-1)/n P bytes leave each rank):
  naive       after the last backward pass, one all-reduce per parameter: many small messages, no overlap.
  bucketed    after the last backward pass, one all-reduce per bucket, a slice of the flat gradient.
  in 8 bits   after the last backward pass, an all-to-all and an all-gather of a quarter of P each: `compression.py`.
              The rounding error is added to the next step's gradient.
  overlapped  during the last backward pass: a hook counts the gradients as they arrive, and a bucket is sent as
              soon as it is full. Buckets go in one fixed order, from the end of the model to its beginning, because
              collectives must start in the same order on every rank, even if a rank leaves a parameter unused.
Micro-batches before the last accumulate locally and send nothing. A tied parameter is in the buffer once, a frozen one
not at all; an unused one has a gradient of zero, and is averaged like any other.

Source:  Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from frog.train.comm import Axis, Pending
from frog.train.parallel.data.compression import Int8Mean
from frog.train.parallel.data.data_parallel import DataParallel, GroupSpec
from frog.train.parallel.data.flat import FlatParameters, Partition


def build(spec: GroupSpec) -> DataParallel:
    """Return the strategy that `strategy.compression` or `strategy.reduction` names."""
    config = spec.config
    if config.compression == "int8":
        return CompressedDDP(spec.trained, spec.shard)
    if config.reduction == "naive":
        return NaiveDDP(spec.trained, spec.shard)
    kind = OverlappedDDP if config.reduction == "overlapped" else BucketedDDP
    return kind(spec.trained, spec.shard, spec.num_tail, config.bucket_mb * 1e6)


class NaiveDDP(DataParallel):
    """One all-reduce per parameter, after the backward pass. `num_tail` is 0: a tail would need one more all-reduce."""

    def __init__(self, named: Mapping[str, nn.Parameter], axis: Axis, num_tail: int = 0) -> None:
        self.axis, self.flat = axis, FlatParameters(named)
        self._buffer = torch.zeros(self.flat.size + num_tail, dtype=self.flat.data.dtype, device=self.flat.data.device)
        self.grad, self.tail = self._buffer[: self.flat.size], self._buffer[self.flat.size :]
        self.flat.view_gradients(self.grad)
        self.partitions = [Partition(self.flat, 0, self.flat.size, self.flat.data, self.grad)]

    def local_gradient(self) -> Tensor | None:
        return self.grad

    def before_backward(self, last: bool) -> None:
        """Do nothing: gradients accumulate in the buffer."""

    def after_backward(self) -> None:
        """Nothing."""

    def finish(self, tail: Tensor | None = None) -> bool:
        riding = tail if len(self.tail) else None
        if riding is not None:
            self.tail.copy_(riding)
        self._sum()
        if self.axis.size > 1:
            self.grad.div_(self.axis.size)
        if riding is not None:
            riding.copy_(self.tail)
        return riding is not None

    def _sum(self) -> None:
        """Sum the gradient, and the tail, over the ranks."""
        for start, count in self.flat.spans.values():
            self.axis.all_reduce(self.grad[start : start + count])

    def gather(self) -> None:
        """Do nothing: every rank has made the same update."""

    def zero(self) -> None:
        self.grad.zero_()


class BucketedDDP(NaiveDDP):
    """One all-reduce per bucket, after the backward pass."""

    def __init__(
        self, named: Mapping[str, nn.Parameter], axis: Axis, num_tail: int = 0, bucket_bytes: float = 25e6
    ) -> None:
        super().__init__(named, axis, num_tail)
        most = max(1, int(bucket_bytes / self._buffer.element_size()))
        self.buckets = cut_buckets(self.flat, most, len(self._buffer))

    def _sum(self) -> None:
        for start, end in self.buckets:
            self.axis.all_reduce(self._buffer[start:end])


class OverlappedDDP(BucketedDDP):
    """One all-reduce per bucket, as soon as the backward pass has filled it."""

    def __init__(
        self, named: Mapping[str, nn.Parameter], axis: Axis, num_tail: int = 0, bucket_bytes: float = 25e6
    ) -> None:
        super().__init__(named, axis, num_tail, bucket_bytes)
        self._missing = [0] * len(self.buckets)
        self._pending: list[Pending] = []
        self._last = False
        self._members = [
            [name for name, (first, _) in self.flat.spans.items() if start <= first < end]
            for start, end in self.buckets
        ]
        for number, members in enumerate(self._members):
            for name in members:
                self.flat.parameters[name].register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    self._arrived(number)
                )

    def local_gradient(self) -> Tensor | None:
        return None  # part of it is already averaged

    def _arrived(self, bucket: int) -> Callable[[Tensor], None]:
        def hook(_: Tensor) -> None:
            if self._last:
                self._missing[bucket] -= 1
                self._send_full()

        return hook

    def before_backward(self, last: bool) -> None:
        self._last = last
        if last:
            self._missing = [len(members) for members in self._members]

    def _send_full(self) -> None:
        """Send the next buckets in order while they are full. The last one waits for `finish`, which adds the tail."""
        while (number := len(self._pending)) < len(self.buckets) - 1 and self._missing[number] == 0:
            self._send(number)

    def _send(self, number: int) -> None:
        start, end = self.buckets[number]
        self._pending.append(self.axis.start_all_reduce(self._buffer[start:end]))

    def _sum(self) -> None:
        self._last = False
        for number in range(len(self._pending), len(self.buckets)):
            self._send(number)
        for pending in self._pending:
            pending.wait()
        self._pending.clear()


class CompressedDDP(NaiveDDP):
    """The whole gradient in 8 bits, after the backward pass."""

    def __init__(self, named: Mapping[str, nn.Parameter], axis: Axis) -> None:
        super().__init__(named, axis)
        self._int8 = Int8Mean(axis, self.flat.size, self.grad.device)

    def finish(self, tail: Tensor | None = None) -> bool:
        self._int8.average(self.grad, tail)
        return tail is not None

    def own(self) -> dict[str, Tensor]:
        return self._int8.own()


def cut_buckets(flat: FlatParameters, most: int, end: int) -> list[tuple[int, int]]:
    """Divide [0, end) into buckets of at least `most` elements (except the last two), in the order in which they fill.

    The backward pass computes the matrices from the last to the first. The vectors, which complete at various times,
    and the tail, which is known last, form the last bucket. If everything fits into one bucket, there is one.
    """
    if end <= most:
        return [(0, end)]
    buckets, upper = [], flat.split
    for name, (first, _) in reversed(flat.spans.items()):
        if flat.parameters[name].dim() >= 2 and (upper - first >= most or first == 0):
            buckets.append((first, upper))
            upper = first
    return [*buckets, (flat.split, end)] if flat.split < end else buckets
