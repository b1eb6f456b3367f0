"""A data strategy that Frog does not have, added the usual way: an entry, and this file for its code.

It averages the gradient in two visible halves: a reduce-scatter and an all-gather. Every rank keeps everything.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from frog.core.config.strategies import DataStrategyEntry, Transfer
from frog.train.comm import Axis
from frog.train.parallel.data.data_parallel import DataParallel, GroupSpec
from frog.train.parallel.data.flat import FlatParameters, Partition

ENTRY = DataStrategyEntry(
    name="two-halves",
    title="two halves",
    summary="Every data rank has the whole model; gradients are averaged in two halves.",
    use="to see the parts of an all-reduce",
    modules={"frog": "two_halves"},
    transfers=(
        Transfer("reduce_scatter", "gradients", "step", "one"),
        Transfer("all_gather", "gradients", "step", "one"),
    ),
)


def build(spec: GroupSpec) -> DataParallel:
    return TwoHalves(spec.trained, spec.shard)


class TwoHalves(DataParallel):
    def __init__(self, named: Mapping[str, nn.Parameter], axis: Axis) -> None:
        self.axis, self.flat = axis, FlatParameters(named, multiple=axis.size)
        self.grad = torch.zeros_like(self.flat.data)
        self.flat.view_gradients(self.grad)
        self.partitions = [Partition(self.flat, 0, self.flat.size, self.flat.data, self.grad)]

    def before_backward(self, last: bool) -> None:
        return

    def after_backward(self) -> None:
        return

    def finish(self, tail: Tensor | None = None) -> bool:
        own = self.grad.new_empty(self.flat.size // self.axis.size)
        self.axis.reduce_scatter(own, self.grad)
        self.axis.all_gather(self.grad, own.div_(self.axis.size))
        return False

    def gather(self) -> None:
        return

    def zero(self) -> None:
        self.grad.zero_()
