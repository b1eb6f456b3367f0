"""What data parallelism sends in a step: ddp, zero1, zero2, zero3, each over all data ranks or over rows of them.

n is the number of ranks that share out, P the bytes of the rank's parameters in float32 (of its pipeline stages, of its
tp slice), A the micro-batches of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

from frog.plan.flow import Flow
from frog.plan.layout import FLOAT_BYTES, Layout, UnitSizes, join


@dataclass(frozen=True)
class PlannedGroup:
    """Parameters that the same ranks have in common: all; where `ep` shares experts out, these and the rest agroup."""

    axis: str
    size: int
    replicate: int
    """Copies of a row of ranks that share out, with hybrid sharding."""
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
        """Hybrid sharding: an all-reduce of each rank's share of the gradient over the copies: 2(r-1)/r P/n."""
        share = self.num_bytes / self.size
        return Flow("replicate", "all_reduce", self.replicate, share, num_messages, "gradients of the share")


def planned_groups(layout: Layout) -> list[PlannedGroup]:
    """What a rank's data parallelism is made of."""
    is_ddp = layout.config.strategy.name == "ddp"
    axis, size = (layout.data_axis, layout.data) if is_ddp else (layout.shard_axis, layout.shard)
    replicate = 1 if is_ddp else layout.replicate
    if layout.config.strategy.ep == 1:
        return [PlannedGroup(axis, size, replicate, layout.root, layout.layers)]
    dense = [UnitSizes(layer.matrices[:-2], layer.vectors) for layer in layout.layers]
    experts = [UnitSizes(layer.matrices[-2:], ()) for layer in layout.layers]
    return [
        PlannedGroup(axis, size, replicate, layout.root, dense),
        PlannedGroup("expert_data", layout.num_expert_copies, 1, UnitSizes((), ()), experts, "experts' "),
    ]


def data(layout: Layout) -> list[Flow]:
    """All flows of a rank's data parallelism."""
    plan = {"ddp": _ddp, "zero1": _zero1, "zero2": _zero2, "zero3": _zero3}[layout.config.strategy.name]
    return [flow for group in planned_groups(layout) for flow in plan(group, layout)]


def _ddp(group: PlannedGroup, layout: Layout) -> list[Flow]:
    """One all-reduce of the whole gradient, in buckets, whatever the number of micro-batches: 2(n-1)/n P.

    Source:  Li et al. 2020, section 3.
    """
    strategy, whole = layout.config.strategy, join(group.units)
    naive = strategy.reduction == "naive"
    messages = len(whole.matrices) + len(whole.vectors) if naive else num_buckets(whole, strategy.bucket_mb * 1e6)
    return [group.flow("all_reduce", group.num_bytes, messages, "gradients")]


def _zero1(group: PlannedGroup, layout: Layout) -> list[Flow]:
    """Reduce-scatter of the gradients, all-gather of the updated parameters: 2(n-1)/n P, as ddp.

    Source:  Rajbhandari et al. 2020, section 7.1.
    """
    return [
        group.flow("reduce_scatter", group.num_bytes, 1, "gradients"),
        group.flow("all_gather", group.num_bytes, 1, "parameters"),
        group.over_replicas(1),
    ]


def _zero2(group: PlannedGroup, layout: Layout) -> list[Flow]:
    """A reduce-scatter of the gradients in every micro-batch, one all-gather of the parameters: (A + 1)(n-1)/n P.

    Source:  Rajbhandari et al. 2020, section 7.1, where A is 1.
    """
    micros, num_units = layout.num_micro, len(group.units)
    return [
        group.flow("reduce_scatter", micros * group.num_bytes, micros * num_units, "gradients"),
        group.flow("all_gather", group.num_bytes, num_units, "parameters"),
        group.over_replicas(num_units),
    ]


def _zero3(group: PlannedGroup, layout: Layout) -> list[Flow]:
    """In every micro-batch an all-gather of the parameters in the forward pass and again in the backward pass, then a
    reduce-scatter of the gradients: A (3P - R)(n-1)/n. R, the root and the last layer, stays whole in between.

    Source:  Rajbhandari et al. 2020, section 7.2, which has 3P: nothing stays.
    """
    micros, num_units, again = layout.num_micro, len(group.units), group.layers[:-1]
    gathered = group.num_bytes + FLOAT_BYTES * sum(unit.numel for unit in again)
    return [
        group.flow("all_gather", micros * gathered, micros * (num_units + len(again)), "parameters"),
        group.flow("reduce_scatter", micros * group.num_bytes, micros * num_units, "gradients"),
        group.over_replicas(num_units),
    ]


def num_buckets(unit: UnitSizes, bucket_bytes: float) -> int:
    """Into how many buckets ddp cuts a gradient: from the last matrix to the first, and one of all vectors.

    Assumes: `parallel/ddp.py`'s rule, without the 64 bytes to which it rounds up where each parameter starts.
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
    """How many elements of vectors this rank updates, buffer by buffer. In a buffer they lie behind the matrices."""
    name, n = layout.config.strategy.name, layout.shard
    at = layout.data_rank % n
    if name == "ddp":
        return [sum(layout.whole.vectors)]
    found = []
    for unit in [layout.whole] if name == "zero1" else [layout.root, *layout.layers]:
        length = -(-unit.numel // n)
        start, end = at * length, min((at + 1) * length, unit.numel)
        found.append(max(0, end - max(start, sum(unit.matrices))))
    return found
