"""ZeRO stage 2: optimizer state and gradients sharded. A gradient lives whole only until its layer's are all there.

The model is cut into units: each layer is one, and all the rest (embedding, last norm, head) is the root unit.
Plan of communication (U bytes of a unit's parameters, n ranks over `shard`):
  backward, each micro-batch   when a unit's gradients are there, a reduce-scatter of them, while the backward pass goes
                               on below: (n-1)/n U bytes. The rank adds its part up and forgets the rest.
  finish                       with hybrid sharding one all-reduce of the partition over `replicate`.
  gather                       once a step an all-gather of each unit's updated parameters: (n-1)/n U bytes.
Units are reduced in one fixed order, from the last to the first, because collectives must start in the same order on
every rank; what a rank left unused counts as zero.

Source:  Rajbhandari et al. 2020, section 5.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from frog.comm import Axis, Pending
from frog.parallel.data.data_parallel import DataParallel, GroupSpec
from frog.parallel.data.flat import FlatParameters, Partition


def build(spec: GroupSpec) -> DataParallel:
    """ZeRO stage 2 of these parameters."""
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
        """The partition is a part of the whole buffer."""
        return Partition(self.flat, start, end, self.flat.data[start:end], grad)

    def send(self) -> None:
        """Begin the reduce-scatter of the gradients, and let go of them."""
        mine = torch.empty_like(self.partition.grad)
        whole = mine.new_zeros(self.flat.size)  # zeros between the parameters too: they are summed along
        self.flat.collect_gradients(whole)
        self._sent = (self._shard.start_reduce_scatter(mine, whole), mine, whole)

    def receive(self) -> None:
        """Add what the reduce-scatter brought to this rank's partition."""
        if self._sent is not None:
            pending, mine, _ = self._sent
            pending.wait()
            self.partition.grad.add_(mine)
            self._sent = None


class Zero2(DataParallel):
    """Optimizer state and gradients sharded."""

    def __init__(self, units: Sequence[Unit], shard: Axis, replicate: Axis) -> None:
        """`units` in the order of the forward pass, the root first."""
        self.shard, self.replicate, self.units = shard, replicate, units
        self.partitions = [unit.partition for unit in units]
        self._queue: list[Unit] = []
        """Units whose gradients are still to be sent, the next one last."""
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
        """Send a unit's gradients; those sent before are taken in, so that two units' at most are whole at a time."""
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
        for one in pending:
            one.wait()

    def zero(self) -> None:
        for partition in self.partitions:
            partition.grad.zero_()


def units_of(parameters: Mapping[str, nn.Parameter]) -> dict[str, dict[str, nn.Parameter]]:
    """The parameters of each unit, by the name of its module; "" is the root."""
    units: dict[str, dict[str, nn.Parameter]] = {"": {}}
    for name, parameter in parameters.items():
        parts = name.split(".")
        key = ".".join(parts[: parts.index("layers") + 2]) if "layers" in parts else ""
        units.setdefault(key, {})[name] = parameter
    return units
