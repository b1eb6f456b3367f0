"""ZeRO stage 3: sharded parameters too. A layer's full parameters exist only while it computes.

The model is divided into units as in zero2. Each rank keeps its partition of every unit, frozen parameters included.
Plan of communication, each micro-batch (U bytes of a unit's parameters, n ranks over `shard`, L layers):
  forward    an all-gather of the root unit, which stays gathered until the micro-batch is done; then of each layer, one
             layer ahead of the computation. Then the layer is freed, except the last: the backward pass begins
             with it. L + 1 all-gathers of (n-1)/n U bytes each.
  backward   an all-gather of each layer except the last, one ahead again, L - 1 in all; and zero2's reduce-scatter of
             each unit's gradient, L + 1 in all, after which the layer is freed.
  finish     with hybrid sharding one all-reduce of each partition over `replicate`.
The optimizer step gathers nothing: the next forward pass does. With one micro-batch the total is at most 1.5 times the
traffic of ddp.

To free a unit, the storage of its flat buffer is resized to zero. The parameters, and the tensors that autograd saved,
keep pointing at that storage, and are valid again when it is refilled.

Source:  Rajbhandari et al. 2020, section 5.3; Zhao et al. 2023, "PyTorch FSDP".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from frog.train.comm import Axis, Pending
from frog.train.parallel.data.data_parallel import DataParallel, GroupSpec
from frog.train.parallel.data.flat import FlatParameters, Partition
from frog.train.parallel.data.zero2 import Unit, Zero2, units_of


def build(spec: GroupSpec) -> DataParallel:
    """Return ZeRO stage 3 of these parameters."""
    return Zero3(spec.model, spec.parameters, spec.shard, spec.replicate)


class ShardedBuffer:
    """A flat buffer of which a rank keeps its shard; the full buffer is gathered and freed."""

    def __init__(self, flat: FlatParameters, axis: Axis) -> None:
        length = flat.size // axis.size
        self.flat, self.start, self.end = flat, axis.rank * length, (axis.rank + 1) * length
        self.own = flat.data[self.start : self.end].clone()
        self._axis = axis
        self._whole_bytes = flat.data.untyped_storage().nbytes()
        self._pending: Pending | None = None
        self._is_there = True
        self.free()

    def begin(self) -> None:
        """Start to gather the full buffer, unless it is gathered or on its way."""
        if not self._is_there:
            self._is_there = True
            self.flat.data.untyped_storage().resize_(self._whole_bytes)
            with torch.no_grad():
                self._pending = self._axis.start_all_gather(self.flat.data, self.own)

    def need(self) -> None:
        """Wait until the full buffer is gathered."""
        self.begin()
        if self._pending is not None:
            self._pending.wait()
            self._pending = None

    def runs(self) -> Iterator[tuple[str, Tensor, int, torch.Size]]:
        """Yield the shard's slices of parameters: name, elements, the first one's index, full shape."""
        for name, (first, count) in self.flat.spans.items():
            start, end = max(first, self.start), min(first + count, self.end)
            if start < end:
                run = self.own[start - self.start : end - self.start]
                yield name, run, start - first, self.flat.parameters[name].shape

    def free(self) -> None:
        """Free the memory of the full buffer."""
        if self._is_there:
            self.need()
            self.flat.data.untyped_storage().resize_(0)
            self._is_there = False


class ShardedUnit(Unit):
    """One layer, or the root: its full parameters exist between `need` and `free`."""

    def __init__(self, named: Mapping[str, nn.Parameter], shard: Axis) -> None:
        trained = {name: p for name, p in named.items() if p.requires_grad}
        frozen = {name: p for name, p in named.items() if not p.requires_grad}
        self.is_trained = bool(trained)
        self.buffers: list[ShardedBuffer] = []
        self.frozen: ShardedBuffer | None = None
        if trained:
            super().__init__(trained, shard)
        if frozen:
            self.frozen = ShardedBuffer(FlatParameters(frozen, multiple=shard.size), shard)
            self.buffers.append(self.frozen)

    def make_partition(self, start: int, end: int, grad: Tensor) -> Partition:
        """Return the partition as a separate tensor."""
        buffer = ShardedBuffer(self.flat, self._shard)
        self.buffers.append(buffer)
        return Partition(self.flat, start, end, buffer.own, grad)

    def begin(self) -> None:
        for buffer in self.buffers:
            buffer.begin()

    def need(self) -> None:
        for buffer in self.buffers:
            buffer.need()

    def free(self) -> None:
        for buffer in self.buffers:
            buffer.free()


class Zero3(Zero2):
    """Sharded parameters, gradients and optimizer state."""

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter], shard: Axis, replicate: Axis) -> None:
        self.sharded = {key: ShardedUnit(named, shard) for key, named in units_of(parameters).items()}
        super().__init__([unit for unit in self.sharded.values() if unit.is_trained], shard, replicate)
        self._root = self.sharded[""]
        self._layers = [unit for key, unit in self.sharded.items() if key]
        self._in_backward = False
        model.register_forward_pre_hook(self._begin_forward)
        model.register_forward_hook(self._end_forward)
        for number, key in enumerate(key for key in self.sharded if key):
            layer = model.get_submodule(key)
            layer.register_forward_pre_hook(self._enter(number))
            layer.register_forward_hook(self._leave(number))

    def _begin_forward(self, model: nn.Module, inputs: Any) -> None:
        self._root.need()

    def _end_forward(self, model: nn.Module, inputs: Any, output: Tensor) -> None:
        if not output.requires_grad:
            self._root.free()

    def _enter(self, number: int) -> Any:
        def before(layer: nn.Module, inputs: Any) -> None:
            if not self._in_backward:  # else activation checkpointing recomputes the layer, which is gathered
                self._layers[number].need()
                for ahead in self._layers[number + 1 : number + 2]:
                    ahead.begin()

        return before

    def _leave(self, number: int) -> Any:
        def after(layer: nn.Module, inputs: Any, output: Tensor) -> None:
            if self._in_backward:
                return
            if output.requires_grad:
                output.register_hook(lambda grad: self._enter_backward(number))  # type: ignore[no-untyped-call]
            if not (output.requires_grad and number == len(self._layers) - 1):
                self._layers[number].free()

        return after

    def _enter_backward(self, number: int) -> None:
        """Free the layers above: the gradient of this layer's output has arrived, so they are done."""
        for behind in self._layers[number + 1 : number + 2]:
            behind.free()
        self._layers[number].need()
        if number > 0:
            self._layers[number - 1].begin()

    def before_backward(self, last: bool) -> None:
        super().before_backward(last)
        self._in_backward = True

    def after_backward(self) -> None:
        super().after_backward()
        self._in_backward = False
        for unit in self.sharded.values():
            unit.free()

    def frozen_runs(self) -> Iterator[tuple[str, Tensor, int, torch.Size]]:
        """Yield the runs of this rank's buffers of frozen parameters."""
        for unit in self.sharded.values():
            if unit.frozen is not None:
                yield from unit.frozen.runs()

    def gather(self) -> None:
        """Do nothing: the next forward pass gathers the parameters that it needs."""
