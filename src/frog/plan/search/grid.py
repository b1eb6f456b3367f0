"""All valid layouts of a model on a number of GPUs, as columns of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from frog.plan.columns import Column
from frog.plan.estimate.hardware import Cluster
from frog.plan.layout import Layout
from frog.plan.model import PlannedModel

_MICRO_BATCHES = (1, 2, 4, 8, 16)
_MOST_CHUNKS = 12
"""Most chunks of a pipeline rank; published runs have up to 12."""
_MOST_CONTEXT = 64
ALL_ZEROS = (0, 1, 2, 3)
AXES = ("tp", "pp", "cp", "ep")
"""Axes next to dp."""
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Grid:
    """Layouts, one in each place of the columns; `recompute` is a place in RECOMPUTE."""

    dp: Column
    tp: Column
    pp: Column
    cp: Column
    ep: Column
    micro_batch: Column
    virtual_stages: Column
    zero: Column
    zero_group: Column
    recompute: Column

    def __len__(self) -> int:
        return len(self.dp)

    def __getitem__(self, chosen: Column) -> Grid:
        return Grid(*(column[chosen] for column in vars(self).values()))

    def columns(self, base: Layout) -> Layout:
        """Return all layouts as one, whose sizes are columns; its recomputation is that of `base`."""
        sizes = {name: column for name, column in vars(self).items() if name != "recompute"}
        return replace(base, **sizes, sequence_parallel=self.tp > 1)

    def layout(self, place: int, base: Layout) -> Layout:
        """Return one layout, with the batch, sequence, precision and traits of `base`."""
        values = {field.name: int(getattr(self, field.name)[place]) for field in fields(self)}
        recompute = RECOMPUTE[values.pop("recompute")]
        changes = {**values, "recompute": recompute, "sequence_parallel": values["tp"] > 1}
        return replace(base, **changes)  # type: ignore[arg-type]


def joined(grids: Sequence[Grid]) -> Grid:
    """Return the layouts of several grids, one grid after another."""
    return Grid(*(np.concatenate(columns) for columns in zip(*(vars(grid).values() for grid in grids), strict=True)))


def layout_grid(
    model: PlannedModel,
    cluster: Cluster,
    num_gpus: int,
    base: Layout,
    zeros: Sequence[int] = ALL_ZEROS,
    axes: Sequence[str] = AXES,
) -> Grid:
    """Return all layouts that a model can have on so many GPUs, with the batch and sequence of `base`.

    `zeros` are the kinds of sharding that the program has, `axes` its axes next to dp. ZeRO 2 is only for one
    micro-batch: with more, it reduces gradients for each, which `estimate` does not model. Tensor parallelism stays
    inside an NVLink domain and splits whole heads. A pipeline has at least as many micro-batches as stages, and chunks
    of equal numbers of layers.
    """
    columns: list[list[Column]] = [[] for _ in fields(Grid)]
    tensor = [n for n in divisors(num_gpus) if n <= cluster.nvlink_domain and _splits_heads(model, n)]
    context = [n for n in divisors(num_gpus) if n <= _MOST_CONTEXT and (n == 1 or base.seq_len % (2 * n) == 0)]
    for tp in tensor:
        for cp in (n for n in context if num_gpus % (tp * n) == 0):
            for pp in (n for n in divisors(num_gpus // (tp * cp)) if n <= model.layers):
                dp = num_gpus // (tp * cp * pp)
                sizes = {"tp": tp, "pp": pp, "cp": cp}
                if base.global_batch % dp == 0 and all(axis in axes or size == 1 for axis, size in sizes.items()):
                    chosen = _choices(model, cluster, base, zeros, (dp, tp, pp, cp), "ep" in axes)
                    for column, values in zip(columns, chosen, strict=True):
                        column.append(values)
    if not columns[0]:
        empty = np.zeros(0, dtype=np.int64)
        return Grid(*[empty] * len(columns))
    return Grid(*(np.concatenate(column) for column in columns))


def _splits_heads(model: PlannedModel, tp: int) -> bool:
    whole_keys = model.kv_heads % tp == 0 or tp % model.kv_heads == 0
    return model.heads % tp == 0 and whole_keys and model.ffn % tp == 0


def _choices(
    model: PlannedModel,
    cluster: Cluster,
    base: Layout,
    zeros: Sequence[int],
    sizes: tuple[int, int, int, int],
    divides_experts: bool,
) -> list[Column]:
    """Return the columns of all layouts of one mesh."""
    dp, tp, pp, cp = sizes
    local = base.global_batch // dp
    micros = [n for n in _MICRO_BATCHES if local % n == 0 and (pp == 1 or local // n >= pp)]
    chunks = [1] + [n for n in range(2, _MOST_CHUNKS + 1) if pp > 1 and model.layers % (pp * n) == 0]
    ranks = dp * cp * tp
    experts = [1]
    if model.experts and divides_experts:
        experts = [n for n in divisors(model.experts) if ranks % n == 0]
    data = dp * cp
    groups = sorted({0, max(1, cluster.nvlink_domain // tp)}) if data > 1 else [0]
    sharding = [(zero, group) for zero in zeros for group in groups if not group or _is_hybrid(zero, group, data)]
    recompute = range(3) if base.traits.attention == "scores" else (0, 2)
    axes = [np.array(axis, dtype=np.int64) for axis in (experts, micros, chunks, range(len(sharding)), recompute)]
    ep, micro, chunk, shard, again = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    zero, group = np.array(sharding, dtype=np.int64).reshape(-1, 2).T
    num_micro = local // micro
    valid = ((chunk == 1) | (num_micro % pp == 0)) & ((zero[shard] != 2) | (num_micro == 1))
    if base.traits.overlaps_experts:  # next to another micro-batch
        valid &= (ep == 1) | (num_micro > 1)
    ep, micro, chunk, shard, again = (axis[valid] for axis in (ep, micro, chunk, shard, again))
    mesh = [np.full(len(ep), n) for n in sizes]
    return [*mesh, ep, micro, chunk, zero[shard], group[shard], again]


def _is_hybrid(zero: int, group: int, data: int) -> bool:
    return zero > 0 and 1 < group < data and data % group == 0


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
