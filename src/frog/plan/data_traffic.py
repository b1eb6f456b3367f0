"""The traffic of data parallelism in a step: the transfers of a strategy's entry, over all data ranks or rows of them.

n is the number of ranks that shard, P the bytes of the rank's parameters in float32 (of its pipeline stages, of its
tp slice), A the micro-batches of a step. If the strategy trains separate replicas, the step is one that synchronizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from frog.core.config import StrategyConfig
from frog.plan.flow import Flow
from frog.plan.layout import FLOAT_BYTES, Layout, UnitSizes, join

_BLOCK = 1024
"""Numbers that share a scale."""


@dataclass(frozen=True)
class PlannedGroup:
    """Parameters that the same ranks share: all of them, or, if `ep` splits the experts, the experts or the rest."""

    axis: str
    size: int
    replicate: int
    """Number of replicas, with hybrid sharding."""
    root: UnitSizes
    layers: list[UnitSizes]
    what: str = ""

    @property
    def units(self) -> list[UnitSizes]:
        return [unit for unit in (self.root, *self.layers) if unit.numel]

    @property
    def num_bytes(self) -> int:
        return FLOAT_BYTES * sum(unit.numel for unit in self.units)

    def flow(self, op: str, num_bytes: float, num_messages: int, what: str) -> Flow:
        return Flow(self.axis, op, self.size, num_bytes, num_messages, self.what + what)

    def over_replicas(self, num_messages: int) -> Flow:
        """Return hybrid sharding's all-reduce of each rank's shard of the gradient over the replicas: 2(r-1)/r P/n."""
        share = self.num_bytes / self.size
        return Flow("replicate", "all_reduce", self.replicate, share, num_messages, "gradients of the share")


def planned_groups(layout: Layout) -> list[PlannedGroup]:
    """Return the parameter groups of a rank's data parallelism."""
    splits = bool(layout.config.strategy.entry.splits)
    axis, size = (layout.shard_axis, layout.shard) if splits else (layout.data_axis, layout.data)
    replicate = layout.replicate if splits else 1
    if layout.config.strategy.ep == 1:
        return [PlannedGroup(axis, size, replicate, layout.root, layout.layers)]
    dense, experts = layout.layers_of(experts=False), layout.layers_of(experts=True)
    return [
        PlannedGroup(axis, size, replicate, layout.root, dense),
        PlannedGroup("expert_data", layout.num_expert_copies, 1, UnitSizes((), ()), experts, "experts' "),
    ]


def data(layout: Layout) -> list[Flow]:
    """Return all flows of a rank's data parallelism."""
    return [flow for group in planned_groups(layout) for flow in _flows(group, layout)]


def _flows(group: PlannedGroup, layout: Layout) -> Iterator[Flow]:
    strategy = layout.config.strategy
    for transfer in strategy.entry.transfers:
        if strategy.compression == "int8":
            num_bytes = _int8_bytes(join(group.units).numel, group.size)
            yield group.flow("all_to_all", num_bytes, 1, transfer.what)
            yield group.flow("all_gather", num_bytes, 1, transfer.what)
            continue
        times = layout.num_micro if transfer.every == "micro-batch" else 1
        elements, messages = _pieces(transfer.pieces, group, strategy)
        yield group.flow(transfer.op, times * FLOAT_BYTES * elements, times * messages, transfer.what)
        if transfer.op == "reduce_scatter":
            yield group.over_replicas(messages)


def _int8_bytes(numel: int, n: int) -> int:
    """Return the bytes of a vector in 8 bits, with a scale for each block of its n slices.

    Assumes: the rule of `train/parallel/data/compression.py`, without aligning each parameter's start to 64 bytes.
    """
    return -(-numel // (n * _BLOCK)) * n * (_BLOCK + FLOAT_BYTES)


def _pieces(pieces: str, group: PlannedGroup, strategy: StrategyConfig) -> tuple[int, int]:
    """Return the number of elements, and of messages: see `Transfer`."""
    whole, inner = join(group.units), group.layers[:-1]
    num_tensors = len(whole.matrices) + len(whole.vectors)
    num_messages = {
        "buckets": num_tensors if strategy.reduction == "naive" else num_buckets(whole, strategy.bucket_mb * 1e6),
        "one": 1,
        "layers": len(group.units),
        "layers but the last": len(inner),
    }
    return (join(inner) if pieces == "layers but the last" else whole).numel, num_messages[pieces]


def num_buckets(unit: UnitSizes, bucket_bytes: float) -> int:
    """Return the number of buckets into which ddp divides a gradient: matrices from last to first, then all vectors.

    Assumes: the rule of `train/parallel/data/ddp.py`, without aligning each parameter's start to 64 bytes.
    """
    most = max(1, int(bucket_bytes / FLOAT_BYTES))
    if unit.numel <= most:
        return 1
    num, filled = 1, 0
    for place, size in reversed(list(enumerate(unit.matrices))):
        filled += size
        if filled >= most or place == 0:
            num, filled = num + 1, 0
    return num


def partition_vectors(layout: Layout) -> list[int]:
    """Return how many elements of vectors this rank updates, per buffer. In a buffer they follow the matrices."""
    splits, n = layout.config.strategy.entry.splits, layout.shard
    at = layout.data_rank % n
    if not splits:
        return [sum(layout.whole.vectors)]
    found = []
    for unit in [layout.root, *layout.layers] if "gradients" in splits else [layout.whole]:
        length = -(-unit.numel // n)
        start, end = at * length, min((at + 1) * length, unit.numel)
        found.append(max(0, end - max(start, sum(unit.matrices))))
    return found
