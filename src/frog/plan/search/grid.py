"""All valid layouts of a model on a number of GPUs, as columns of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

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
CHOICES = (*AXES, "expert_tp", "recompute_layers")
"""What a search varies next to dp, the batch, sharding and recomputation, if the program has options for it: the axes,
how many tp ranks split an expert, and recomputation of some layers (`fewest_layers`).
"""
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Grid:
    """Layouts, one in each place of the columns."""

    dp: Column
    tp: Column
    pp: Column
    cp: Column
    ep: Column
    expert_tp: Column
    """Ranks that split an expert; of a model without experts, tp."""
    micro_batch: Column
    virtual_stages: Column
    zero: Column
    zero_group: Column
    recompute: Column
    """Places in RECOMPUTE."""
    recompute_layers: Column
    """Layers of each chunk that full recomputation computes again; 0: all."""

    def __len__(self) -> int:
        return len(self.dp)

    @property
    def num_gpus(self) -> Column:
        return self.dp * self.tp * self.pp * self.cp

    def __getitem__(self, chosen: Column) -> Grid:
        return Grid(*(column[chosen] for column in vars(self).values()))

    def columns(self, base: Layout) -> Layout:
        """Return all layouts as one, whose sizes are columns; its recomputation is that of `base`."""
        sizes = {name: column for name, column in vars(self).items() if not name.startswith("recompute")}
        return replace(base, **sizes, sequence_parallel=self.tp > 1)

    def layout(self, place: int, base: Layout) -> Layout:
        """Return one layout, with the batch, sequence, precision and traits of `base`."""
        values = {field.name: int(getattr(self, field.name)[place]) for field in fields(self)}
        usual = 1 if values["ep"] > 1 else values["tp"]
        changes: dict[str, Any] = {
            **values,
            "expert_tp": None if values["expert_tp"] == usual else values["expert_tp"],
            "recompute": RECOMPUTE[values["recompute"]],
            "recompute_layers": values["recompute_layers"] or None,
            "sequence_parallel": values["tp"] > 1,
        }
        return replace(base, **changes)


def joined(grids: Sequence[Grid]) -> Grid:
    """Return the layouts of several grids, one grid after another."""
    return Grid(*(np.concatenate(columns) for columns in zip(*(vars(grid).values() for grid in grids), strict=True)))


def layout_grid(
    model: PlannedModel,
    cluster: Cluster,
    num_gpus: int,
    base: Layout,
    zeros: Sequence[int] = ALL_ZEROS,
    axes: Sequence[str] = CHOICES,
) -> Grid:
    """Return all layouts that a model can have on so many GPUs, with the batch and sequence of `base`.

    `zeros` are the kinds of sharding that the program has, `axes` those of CHOICES. Recomputation of some layers is not
    among them, since memory decides of how many. ZeRO 2 is only for one
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
                    chosen = _choices(model, cluster, base, zeros, (dp, tp, pp, cp), axes)
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
    axes: Sequence[str],
) -> list[Column]:
    """Return the columns of all layouts of one mesh."""
    dp, tp, pp, cp = sizes
    local = base.global_batch // dp
    micros = [n for n in _MICRO_BATCHES if local % n == 0 and (pp == 1 or local // n >= pp)]
    chunks = [1] + [n for n in range(2, _MOST_CHUNKS + 1) if pp > 1 and model.layers % (pp * n) == 0]
    ranks = dp * cp * tp
    experts = _expert_sizes(model, ranks, tp, axes)
    data = dp * cp
    groups = sorted({0, max(1, cluster.nvlink_domain // tp)}) if data > 1 else [0]
    sharding = [(zero, group) for zero in zeros for group in groups if not group or _is_hybrid(zero, group, data)]
    recompute = range(3) if base.traits.attention == "scores" else (0, 2)
    choices = [np.array(choice, dtype=np.int64) for choice in (micros, chunks, range(len(sharding)), recompute)]
    held, micro, chunk, shard, again = (
        choice.ravel() for choice in np.meshgrid(np.arange(len(experts)), *choices, indexing="ij")
    )
    ep, expert_tp = np.array(experts, dtype=np.int64).reshape(-1, 2).T
    ep, expert_tp = ep[held], expert_tp[held]
    zero, group = np.array(sharding, dtype=np.int64).reshape(-1, 2).T
    num_micro = local // micro
    valid = ((chunk == 1) | (num_micro % pp == 0)) & ((zero[shard] != 2) | (num_micro == 1))
    if base.traits.overlaps_experts:  # next to another micro-batch
        valid &= (ep == 1) | (num_micro > 1)
    columns = (ep, expert_tp, micro, chunk, zero[shard], group[shard], again, np.zeros_like(again))
    mesh = [np.full(int(valid.sum()), n) for n in sizes]
    return [*mesh, *(column[valid] for column in columns)]


def _expert_sizes(model: PlannedModel, ranks: int, tp: int, axes: Sequence[str]) -> list[tuple[int, int]]:
    """Return ep and the number of ranks that split an expert, for each way to hold the experts of a layer."""
    if not model.experts:
        return [(1, tp)]
    sizes = []
    for ep in divisors(model.experts) if "ep" in axes else [1]:
        splits = divisors(tp) if "expert_tp" in axes else [1 if ep > 1 else tp]
        sizes += [(ep, n) for n in splits if ranks % (ep * n) == 0 and model.expert_ffn % n == 0]
    return sizes


def _is_hybrid(zero: int, group: int, data: int) -> bool:
    return zero > 0 and 1 < group < data and data % group == 0


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def fewest_layers(grid: Grid, fits: Column, layers: int, fitting: Callable[[Grid], Column]) -> Grid:
    """Return the layouts that fit if all layers are computed again, but not if none are, with the fewest layers that
    must be computed again; not those that need all.

    A step takes longer and needs less memory, the more layers are computed again, so that bisection finds their number.

    fits: if each layout of the grid fits.
    layers: of the model.
    fitting: returns which layouts of a grid fit.
    """
    none, full = (np.flatnonzero(grid.recompute == RECOMPUTE.index(name)) for name in ("none", "full"))
    tight = grid[full[fits[full] & ~fits[none]]]  # a grid has both of each layout, in the same order
    stage = -(-layers // tight.pp)
    too_few, enough = np.zeros_like(stage), -(-stage // tight.virtual_stages)
    while (unknown := np.flatnonzero(enough - too_few > 1)).size:
        middle = (too_few[unknown] + enough[unknown]) // 2
        fit = fitting(replace(tight[unknown], recompute_layers=middle))
        enough[unknown] = np.where(fit, middle, enough[unknown])
        too_few[unknown] = np.where(fit, too_few[unknown], middle)
    some = enough * tight.virtual_stages < stage
    return replace(tight, recompute_layers=enough)[some]
