"""Step time and memory of many layouts at once: the formulas of `estimate` on columns of numbers.

Layers depend on few numbers (tp, cp, ep, micro-batch, recomputation), so each combination is computed once, by
`estimate` itself. The rest is repeated here for columns; a test compares both on random layouts. Layouts that share a
mesh and its sharding share their data-parallel communication and states, which are computed once for all of them.
Columns are cut into blocks that stay in the processor's cache.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.gpu_memory import (
    ALLOCATOR_SHARE,
    CONTEXT_BYTES,
    kept_room,
    layer_activations,
    loss_bytes,
    stage_activations,
)
from frog.plan.estimate.hardware import Cluster
from frog.plan.estimate.layer_time import Passes
from frog.plan.estimate.step_time import StepModel
from frog.plan.layout import Layout
from frog.plan.model import PlannedModel
from frog.plan.search.grid import Column, Grid
from frog.plan.search.sharing import Rows, Shared, shared_columns

_BLOCK = 1 << 14
"""Layouts that are computed at once: a column of them takes 128 KiB."""


@dataclass(frozen=True)
class Coarse:
    """Columns: seconds of a step, and bytes of the rank that holds most."""

    step_s: Column
    memory: Column


@dataclass(frozen=True)
class _Layers(Rows):
    """Columns of what the layers and the output matrix need: seconds of both passes, bytes of activations and loss."""

    usual: Column
    """A layer; of a model with a mixture of experts, one with experts."""
    extra: Column
    """The output matrix, and the layers that predict further tokens."""
    everything: Column
    """All layers of the model, without these."""
    kept: Column
    whole: Column
    """Activations of a layer that is recomputed."""
    logits: Column
    message: Column
    """Bytes of a micro-batch between two stages."""


def evaluate(model: PlannedModel, cluster: Cluster, base: Layout, grid: Grid, constants: Constants = FITTED) -> Coarse:
    """Return the step time and memory of every layout of a grid."""
    kinds, place = _layer_kinds(model, cluster, base, grid, constants)
    step_s, memory = np.empty(len(grid)), np.empty(len(grid))
    for start in range(0, len(grid), _BLOCK):
        block = slice(start, start + _BLOCK)
        shared, group = shared_columns(model, cluster, base, grid[block], constants)
        run = _Columns(model, cluster, base, grid[block], constants, kinds[place[block]], shared[group])
        step_s[block], memory[block] = run.step_s(), run.memory()
    return Coarse(step_s, memory)


def _layer_kinds(
    model: PlannedModel, cluster: Cluster, base: Layout, grid: Grid, constants: Constants
) -> tuple[_Layers, Column]:
    """Return what each kind of layer needs, and the place of each layout's kind among them."""
    key = grid.tp
    for column in (grid.cp, grid.ep, grid.micro_batch, grid.recompute):
        key = (key << 12) + column
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    seconds = _LayerSeconds(model, cluster, constants)
    found = []
    for one in first:
        layout = grid.layout(one, base)
        dense, mixture, head = seconds.of(layout)
        usual = mixture if model.moe_layers else dense
        found.append(
            (
                usual,
                head + (usual + head) * model.prediction_layers,
                dense * (model.layers - model.moe_layers) + mixture * model.moe_layers,
                stage_activations(model, layout),
                layer_activations(model, layout),
                loss_bytes(model, layout),
                2.0 * layout.tokens * model.hidden / layout.tp,
            )
        )
    return _Layers(*np.array(found, dtype=float).reshape(-1, len(fields(_Layers))).T), place


class _LayerSeconds:
    """Seconds of both passes through a dense layer, one with a mixture, and the output matrix.

    Only a mixture depends on ep, and recomputation leaves the two passes as they are: those are computed once.
    """

    def __init__(self, model: PlannedModel, cluster: Cluster, constants: Constants) -> None:
        self._model, self._cluster, self._constants = model, cluster, constants
        self._layers: dict[tuple[int, ...], dict[str, float]] = {}
        self._heads: dict[tuple[int, ...], float] = {}

    def of(self, layout: Layout) -> tuple[float, float, float]:
        model, shape = self._model, (layout.tp, layout.cp, layout.micro_batch)
        dense = self._layer(layout, (*shape, 0)) if model.layers > model.moe_layers else 0.0
        mixture = self._layer(layout, (*shape, layout.ep)) if model.moe_layers else 0.0
        if shape not in self._heads:
            self._heads[shape] = self._step(layout).head.total.total
        return dense, mixture, self._heads[shape]

    def _layer(self, layout: Layout, key: tuple[int, ...]) -> float:
        """Return the seconds of a layer with a mixture if the last number of the key, ep, is positive."""
        if layout.recompute not in ("none", "full"):
            return self._step(layout).layers.layer(mixture=key[-1] > 0).total.total
        if key not in self._layers:
            passes = self._step(replace(layout, recompute="full")).layers.layer(mixture=key[-1] > 0)
            kept = Passes(passes.forward, passes.backward)
            self._layers[key] = {"full": passes.total.total, "none": kept.total.total}
        return self._layers[key][layout.recompute]

    def _step(self, layout: Layout) -> StepModel:
        return StepModel(self._model, layout, self._cluster, self._constants)


@dataclass(frozen=True)
class _Columns:
    """One block of layouts; methods are named as in `estimate`."""

    model: PlannedModel
    cluster: Cluster
    base: Layout
    grid: Grid
    constants: Constants
    layers: _Layers
    shared: Shared

    @cached_property
    def num_micro(self) -> Column:
        return self.base.global_batch // (self.grid.dp * self.grid.micro_batch)

    def stages(self) -> tuple[Column, Column]:
        """Return the seconds of a micro-batch on the heaviest stage and on a mean one."""
        layers, shared = self.layers, self.shared
        mean = (layers.everything + layers.extra) / shared.pp
        even = layers.usual * shared.even_layers + layers.extra
        uneven = np.maximum(layers.usual * shared.heaviest_layers, mean)
        return np.where(shared.pp == 1, mean, np.where(shared.even_layers > 0, even, uneven)), mean

    # ---- time --------------------------------------------------------------------------------------------------------

    def step_s(self) -> Column:
        grid, shared, constants = self.grid, self.shared, self.constants
        stage, mean = self.stages()
        each = 2 * grid.virtual_stages * (self.layers.message * shared.send_byte_s + shared.send_latency)
        sends = np.where(shared.pp == 1, 0.0, each)
        bubble = (mean * shared.pp - stage + (shared.pp - 1) * sends) / grid.virtual_stages
        exposed = np.maximum(0.0, sends - stage) if self.base.traits.overlaps_stages else sends
        pipeline = self.num_micro * np.where(grid.virtual_stages > 1, exposed, sends)
        parts = stage * self.num_micro + bubble + pipeline + self._data(stage) + shared.optimizer
        return constants.step_s + parts * (1 + constants.jitter * shared.doublings)

    @cached_property
    def _overlap_cost(self) -> float:
        return StepModel(self.model, self.base, self.cluster, self.constants).layers.overlap_cost

    def _data(self, stage: Column) -> Column:
        """Return the exposed data-parallel communication, with what it slows down."""
        keeps = self.base.traits.keeps_gathered & (self.shared.pp > 1)
        sharded = (self.grid.zero == 3) & ~keeps
        seconds = self._data_sharded(stage) if sharded.any() else 0.0
        if not sharded.all():
            seconds = np.where(sharded, seconds, self._data_replicated(stage))
        return np.where(self.shared.data_ranks < 2, 0.0, seconds)

    def _data_replicated(self, stage: Column) -> Column:
        traits, reduce, gathered = self.base.traits, self.shared.reduce, self.shared.gathered
        most = stage * 2 / 3 * self.constants.hidden
        hidden = self._hidden_transfer(reduce, most) if traits.overlaps_gradients else 0.0
        if traits.overlaps_parameters:
            hidden = hidden + self._hidden_transfer(gathered, most / 2)
        return reduce + gathered - hidden + hidden * self._overlap_cost

    def _hidden_transfer(self, seconds: Column, one_pass: Column) -> Column:
        chunks, passes = self.grid.virtual_stages, np.minimum(self.shared.pp, self.num_micro)
        window = one_pass * (passes * (chunks - 1) + 1) / chunks
        return seconds - np.maximum(0.0, np.maximum(seconds - window, (seconds - one_pass) / chunks))

    def _data_sharded(self, stage: Column) -> Column:
        gather, reduce = self.shared.layer_gather, self.shared.layer_reduce
        communication = self.shared.heaviest_layers * (2 * gather + reduce) * self.num_micro
        computation = stage * self.num_micro
        slowed = np.minimum(communication, computation) * self._overlap_cost
        return (gather + reduce) * self.num_micro + np.maximum(0.0, communication - computation) + slowed

    # ---- memory ------------------------------------------------------------------------------------------------------

    def memory(self) -> Column:
        """Return the bytes on the first or the last stage, whichever needs more."""
        layers, shared = self.layers, self.shared
        kept = layers.kept * shared.heaviest_layers
        recomputes = self.grid.recompute == 2
        recomputed = np.where(recomputes, layers.whole, 0.0)
        logits, at_loss = layers.logits, shared.at_loss
        reducing = shared.in_backward + recomputed - np.where(recomputes, 0.0, layers.kept)
        first = kept * self._in_flight() + np.maximum(logits * (shared.pp == 1) + at_loss, reducing)
        last = kept + np.maximum(logits + at_loss, reducing)
        varying = np.where(shared.pp == 1, first, np.maximum(first, last))
        traits = self.base.traits
        varying = np.maximum(varying, traits.step_bytes * shared.updated)
        needed = shared.states + (1 + ALLOCATOR_SHARE) * varying + CONTEXT_BYTES
        kept = np.minimum(traits.norm_bytes * shared.updated, kept_room(self.cluster.gpu.memory, needed))
        return needed + np.maximum(0.0, kept)

    def _in_flight(self) -> Column:
        pp, chunks = self.shared.pp, self.grid.virtual_stages
        most = np.where(chunks > 1, pp * (1 + (pp - 1) / (pp * chunks)), pp)
        return np.minimum(most, self.num_micro)
