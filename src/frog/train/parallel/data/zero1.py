"""ZeRO stage 1: every rank has all parameters and gradients, but only its partition of the optimizer's state.

Plan of communication, once a step (P bytes of parameters, n ranks over `shard`):
  finish   reduce-scatter of the flat gradient: each rank gets the mean of its part. (n-1)/n P bytes leave each rank.
           With hybrid sharding, then one all-reduce of the partition over `replicate`.
  gather   each rank updates its partition; an all-gather completes the parameters. (n-1)/n P bytes more.
The traffic is that of one all-reduce, which consists of these two; but Adam's two moments take 1/n of the memory.

Source:  Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from frog.train.comm import Axis
from frog.train.parallel.data.data_parallel import DataParallel, GroupSpec
from frog.train.parallel.data.flat import FlatParameters, Partition


def build(spec: GroupSpec) -> DataParallel:
    """Return ZeRO stage 1 of these parameters."""
    return Zero1(spec.trained, spec.shard, spec.replicate)


class Zero1(DataParallel):
    """Sharded optimizer state."""

    def __init__(self, named: Mapping[str, nn.Parameter], shard: Axis, replicate: Axis) -> None:
        self.shard, self.replicate = shard, replicate
        self.flat = FlatParameters(named, multiple=shard.size)
        self.grad = torch.zeros_like(self.flat.data)
        self.flat.view_gradients(self.grad)
        length = self.flat.size // shard.size
        start, end = shard.rank * length, (shard.rank + 1) * length
        self.partitions = [Partition(self.flat, start, end, self.flat.data[start:end], self.grad[start:end])]

    def local_gradient(self) -> Tensor | None:
        return self.grad

    def before_backward(self, last: bool) -> None:
        """Do nothing: gradients accumulate in the buffer."""

    def after_backward(self) -> None:
        """Nothing."""

    def finish(self, tail: Tensor | None = None) -> bool:
        (partition,) = self.partitions
        mean = torch.empty_like(partition.grad)
        self.shard.reduce_scatter(mean, self.grad)
        self.replicate.all_reduce(mean)
        torch.div(mean, self.shard.size * self.replicate.size, out=partition.grad)
        return False

    def gather(self) -> None:
        (partition,) = self.partitions
        if self.shard.size > 1:
            self.shard.all_gather(self.flat.data, partition.data.clone())

    def zero(self) -> None:
        self.grad.zero_()
