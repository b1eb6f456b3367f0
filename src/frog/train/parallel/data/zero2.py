"""ZeRO stage 2: sharded optimizer state and gradients. A full gradient exists only until its layer is complete.

The model is divided into units: each layer is one, and the rest (embedding, last norm, head) is the root unit.
Plan of communication (U bytes of a unit's parameters, n ranks over `shard`):
  backward, each micro-batch   when a unit's gradients are complete, a reduce-scatter of them while the backward pass
                               continues: (n-1)/n U bytes. The rank accumulates its part and frees the rest.
  finish                       with hybrid sharding one all-reduce of the partition over `replicate`.
  gather                       once a step an all-gather of each unit's updated parameters: (n-1)/n U bytes.
Units are reduced in one fixed order, from the last to the first, because collectives must start in the same order on
every rank; a gradient that a rank did not compute counts as zero.

Source:  Rajbhandari et al. 2020, section 5.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from frog.train.comm import Axis, Pending
from frog.train.parallel.data.data_parallel import DataParallel, GroupSpec
from frog.train.parallel.data.flat import FlatParameters, Partition


def build(spec: GroupSpec) -> DataParallel:
    """Return ZeRO stage 2 of these parameters."""
    units = [Unit(named, spec.shard) for named in units_of(spec.trained).values() if named]
    return Zero2(units, spec.shard, spec.replicate)


class Unit:
    """The parameters of one layer, of which this rank updates one partition."""

    def __init__(self, named: Mapping[str, nn.Parameter], shard: Axis) -> None:
        self.flat, self._shard = FlatParameters(named, multiple=shard.size), shard
        length = self.flat.size // shard.size
        start, end = shard.rank * length, (shard.rank + 1) * length
        self.partition = self.make_partition(
            start, end, torch.zeros(length, dtype=self.flat.data.dtype, device=shard.device)
        )
        self.missing = 0
        self._sent: tuple[Pending, Tensor, Tensor] | None = None

    def make_partition(self, start: int, end: int, grad: Tensor) -> Partition:
        """Return the partition as a part of the full buffer."""
        return Partition(self.flat, start, end, self.flat.data[start:end], grad)

    def send(self) -> None:
        """Start the reduce-scatter of the gradients, and release them."""
        mine = torch.empty_like(self.partition.grad)
        whole = mine.new_zeros(self.flat.size)  # zeros between the parameters too, because they are summed
        self.flat.collect_gradients(whole)
        self._sent = (self._shard.start_reduce_scatter(mine, whole), mine, whole)

    def receive(self) -> None:
        """Add the result of the reduce-scatter to this rank's partition."""
        if self._sent is not None:
            pending, mine, _ = self._sent
            pending.wait()
            self.partition.grad.add_(mine)
            self._sent = None


class Zero2(DataParallel):
    """Sharded optimizer state and gradients."""

    def __init__(self, units: Sequence[Unit], shard: Axis, replicate: Axis) -> None:
        """Take `units` in the order of the forward pass, the root first."""
        self.shard, self.replicate, self.units = shard, replicate, units
        self.partitions = [unit.partition for unit in units]
        self._queue: list[Unit] = []
        """Units whose gradients have not been sent, the next one last."""
        self._sent: list[Unit] = []
        for unit in units:
            for parameter in unit.flat.parameters.values():
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    self._arrived(unit)
                )

    def _arrived(self, unit: Unit) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            unit.missing -= 1
            while self._queue and self._queue[-1].missing == 0:
                self._send(self._queue.pop())

        return hook

    def _send(self, unit: Unit) -> None:
        """Send a unit's gradients; receive those sent before, so that only two units have full gradients at a time."""
        unit.send()
        for earlier in self._sent:
            earlier.receive()
        self._sent = [unit]

    def before_backward(self, last: bool) -> None:
        self._queue = list(self.units)
        for unit in self.units:
            unit.missing = len(unit.flat.parameters)

    def after_backward(self) -> None:
        while self._queue:
            self._send(self._queue.pop())
        for unit in self._sent:
            unit.receive()
        self._sent.clear()

    def finish(self, tail: Tensor | None = None) -> bool:
        for partition in self.partitions:
            self.replicate.all_reduce(partition.grad)
            partition.grad.div_(self.shard.size * self.replicate.size)
        return False

    def gather(self) -> None:
        if self.shard.size == 1:
            return
        pending = [self.shard.start_all_gather(unit.flat.data, unit.partition.data.clone()) for unit in self.units]
        for work in pending:
            work.wait()

    def zero(self) -> None:
        for partition in self.partitions:
            partition.grad.zero_()


def units_of(parameters: Mapping[str, nn.Parameter]) -> dict[str, dict[str, nn.Parameter]]:
    """Return the parameters of each unit, by the name of its module; "" is the root."""
    units: dict[str, dict[str, nn.Parameter]] = {"": {}}
    for name, parameter in parameters.items():
        parts = name.split(".")
        key = ".".join(parts[: parts.index("layers") + 2]) if "layers" in parts else ""
        units.setdefault(key, {})[name] = parameter
    return units
