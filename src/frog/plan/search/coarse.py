"""Step time and memory of many layouts at once: the formulas of `StepModel` and of `plan/memory.py` on columns.

Layers depend on few numbers (tp, cp, ep, micro-batch, recomputation), so each combination is computed once, alone.
Layouts that share a mesh and its sharding share their data-parallel communication and states, which are computed once
for all of them. Columns are cut into blocks that stay in the processor's cache.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from frog.plan.columns import Column
from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.hardware import Cluster
from frog.plan.estimate.layer_time import Passes
from frog.plan.estimate.rows import PlannedRun
from frog.plan.estimate.step_time import StepModel
from frog.plan.layout import Layout
from frog.plan.links import Route
from frog.plan.memory import (
    LayerMemory,
    allocator_bytes,
    cluster_states,
    gathered_bytes,
    layer_memory,
    moments,
    updated_parameters,
)
from frog.plan.model import PlannedModel
from frog.plan.search.grid import Grid

_BLOCK = 1 << 14
"""Layouts that are computed at once: a column of them takes 128 KiB."""


@dataclass(frozen=True)
class Coarse:
    """Columns: seconds of a step, and bytes of the rank that holds most."""

    step_s: Column
    memory: Column


@dataclass(frozen=True)
class _Kinds:
    """Columns of what the layers and the output matrix need: seconds of both passes, bytes of activations and loss."""

    usual: Column
    """A layer; of a model with a mixture of experts, one with experts."""
    extra: Column
    """The output matrix, and the layers that predict further tokens."""
    everything: Column
    """All layers of the model, without these."""
    kept: Column
    freed: Column
    recomputed: Column
    logits: Column
    """Bytes, as in `LayerMemory`."""
    usual_again: Column
    extra_again: Column
    everything_again: Column
    """Seconds of full recomputation that the first three columns contain."""

    def __getitem__(self, chosen: Column) -> _Kinds:
        return _Kinds(*(column[chosen] for column in vars(self).values()))


def evaluate(base: Layout, grid: Grid, layers: KnownLayers) -> Coarse:
    """Return the step time and memory of every layout of a grid.

    layers: of the model on the cluster. Those that were computed before are known, and new ones are added.
    """
    step_s, memory = np.empty(len(grid)), np.empty(len(grid))
    for block, run in _blocks(base, grid, layers):
        step_s[block], memory[block] = run.seconds, run.bytes
    return Coarse(step_s, memory)


def evaluate_memory(base: Layout, grid: Grid, layers: KnownLayers) -> Column:
    """Return the memory of every layout of a grid."""
    return np.concatenate([np.zeros(0), *(run.bytes for _, run in _blocks(base, grid, layers))])


def _blocks(base: Layout, grid: Grid, layers: KnownLayers) -> Iterator[tuple[slice, _Columns]]:
    """Yield the places and the columns of each block of a grid."""
    kinds, place = _layer_kinds(base, grid, layers)
    for start in range(0, len(grid), _BLOCK):
        block = slice(start, start + _BLOCK)
        first, group = _mesh_groups(grid[block])
        yield (
            block,
            _Columns(
                layers.model,
                grid[block].columns(base),
                layers.cluster,
                layers.constants,
                layers_of_kind=kinds[place[block]],
                of_group=StepModel(layers.model, grid[block][first].columns(base), layers.cluster, layers.constants),
                group=group,
                recompute_layers=grid.recompute_layers[block],
            ),
        )


def evaluate_each(runs: Iterable[PlannedRun]) -> Coarse:
    """Return the same, from runs that are estimated one by one: of kinds that have no formulas on columns."""
    pairs = [(run.step.step.total, run.step.memory.total) for run in runs]
    return Coarse(*np.array(pairs, dtype=float).reshape(-1, 2).T)


def _layer_kinds(base: Layout, grid: Grid, layers: KnownLayers) -> tuple[_Kinds, Column]:
    """Return what each kind of layer needs, if all layers are computed again or none, and the place of each layout's
    kind among them.
    """
    model, key = layers.model, grid.tp
    for column in (grid.cp, grid.ep, grid.expert_tp, grid.micro_batch, grid.recompute):
        key = key * (1 + column.max(initial=0)) + column
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    rows = []
    for candidate in first:
        layout = replace(grid.layout(candidate, base), recompute_layers=None)
        dense, mixture, head = layers.seconds(layout)
        dense_again, mixture_again = layers.seconds_again(layout)
        usual = mixture if model.moe_layers else dense
        usual_again = mixture_again if model.moe_layers else dense_again
        rows.append(
            (
                usual,
                head + (usual + head) * model.prediction_layers,
                dense * (model.layers - model.moe_layers) + mixture * model.moe_layers,
                *layers.memory(layout),
                usual_again,
                usual_again * model.prediction_layers,
                dense_again * (model.layers - model.moe_layers) + mixture_again * model.moe_layers,
            )
        )
    return _Kinds(*np.array(rows, dtype=float).reshape(-1, len(fields(_Kinds))).T), place


def _mesh_groups(grid: Grid) -> tuple[Column, Column]:
    """Return the places of layouts with different meshes or sharding, and each layout's place among them."""
    changes = np.zeros(len(grid), dtype=bool)
    for column in (grid.dp, grid.tp, grid.pp, grid.cp, grid.ep, grid.expert_tp):
        changes[1:] |= column[1:] != column[:-1]
    key = (np.cumsum(changes) * (1 + grid.zero.max()) + grid.zero) * (1 + grid.zero_group.max()) + grid.zero_group
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    return first, place


class KnownLayers:
    """Seconds of both passes through a dense layer, one with a mixture, and the output matrix; bytes of a layer.

    Only a mixture depends on ep and on how experts are split, and recomputation leaves the two passes as they are: what
    does not differ is computed once.
    """

    def __init__(self, model: PlannedModel, cluster: Cluster, constants: Constants = FITTED) -> None:
        self.model, self.cluster, self.constants = model, cluster, constants
        self._layers: dict[tuple[int, ...], dict[str, float]] = {}
        self._heads: dict[tuple[int, ...], float] = {}
        self._memory: dict[tuple[int | str, ...], list[float]] = {}

    def memory(self, layout: Layout) -> list[float]:
        """Return the numbers of `LayerMemory`."""
        key = layout.tp, layout.cp, layout.micro_batch, layout.recompute, layout.ep, layout.expert_split
        if key not in self._memory:
            self._memory[key] = list(vars(layer_memory(self.model, layout)).values())
        return self._memory[key]

    def seconds(self, layout: Layout) -> tuple[float, float, float]:
        """Return the seconds of a dense layer, of one with a mixture, and of the output matrix."""
        dense, mixture = self._each(layout, layout.recompute)
        shape = layout.tp, layout.cp, layout.micro_batch
        if shape not in self._heads:
            self._heads[shape] = self._step(layout).head.total.total
        return dense, mixture, self._heads[shape]

    def seconds_again(self, layout: Layout) -> tuple[float, float]:
        """Return the seconds of full recomputation in the two kinds of layers; zeros without it."""
        return self._each(layout, "again") if layout.recompute == "full" else (0.0, 0.0)

    def _each(self, layout: Layout, what: str) -> tuple[float, float]:
        model, shape = self.model, (layout.tp, layout.cp, layout.micro_batch)
        dense = self._layer(layout, what, (*shape, 0, 0)) if model.layers > model.moe_layers else 0.0
        mixture = self._layer(layout, what, (*shape, layout.ep, layout.expert_split)) if model.moe_layers else 0.0
        return dense, mixture

    def _layer(self, layout: Layout, what: str, key: tuple[int, ...]) -> float:
        """Return the seconds of a layer with a mixture if the last number of the key is positive.

        what: the recomputation, or "again" for the seconds of full recomputation alone.
        """
        if what not in ("none", "full", "again"):
            return self._step(layout).layers.layer(mixture=key[-1] > 0).total.total
        if key not in self._layers:
            passes = self._step(replace(layout, recompute="full")).layers.layer(mixture=key[-1] > 0)
            kept = Passes(passes.forward, passes.backward)
            again = passes.recomputed.total
            self._layers[key] = {"full": passes.total.total, "none": kept.total.total, "again": again}
        return self._layers[key][what]

    def _step(self, layout: Layout) -> StepModel:
        return StepModel(self.model, layout, self.cluster, self.constants)


@dataclass(frozen=True)
class _Columns(StepModel):
    """One block of layouts, as columns. What depends on layers comes from their kinds, what depends on the mesh and its
    sharding from one layout of each group.
    """

    layers_of_kind: _Kinds = field(kw_only=True)
    of_group: StepModel = field(kw_only=True)
    group: Column = field(kw_only=True)
    """Place of each layout's group."""
    recompute_layers: Column = field(kw_only=True)
    """As in `Grid`."""

    @cached_property
    def seconds(self) -> Column:
        """Seconds of a step: those of `StepModel.step`, added up."""
        data, slowed = self.data
        busy = self.stage_seconds[0] * self.layout.num_micro
        parts = busy + slowed + self.bubble + self.pipeline + data + self.optimizer
        return self.constants.step_s + parts * (1 + self.constants.jitter * self.doublings)

    @cached_property
    def bytes(self) -> Column:
        """Bytes of the first stage or the last, whichever needs more at the moment that needs most."""
        kinds, of_group, layout = self.layers_of_kind, self.of_group, self.layout
        layer = LayerMemory(kinds.kept, kinds.freed, kinds.recomputed, kinds.logits)
        if self.recompute_layers.any():
            layer = self._layer_of_some(layer)
        parts = of_group.stage_parameter_parts
        held = sum(self._of_group(cluster_states(of_group.layout, parts)))
        (updated,) = self._of_group([updated_parameters(of_group.layout, parts)])
        gathered = self._of_group(gathered_bytes(self.model, of_group.layout))
        sums = [
            activations + temporary + communication
            for first in (True, False)
            for activations, temporary, communication in moments(
                layout, self.heaviest_layers, layer, gathered, updated, first=first
            )
        ]
        varying = functools.reduce(np.maximum, sums)
        return held + varying + allocator_bytes(layout, self.cluster.gpu.memory, held, varying, updated)

    @cached_property
    def stage_seconds(self) -> tuple[Column, Column]:
        kinds, layout, layers = self.layers_of_kind, self.layout, self.model.layers
        usual, extra, everything = kinds.usual, kinds.extra, kinds.everything
        if self.recompute_layers.any():
            kept = 1 - self.layers_again / self.heaviest_layers
            usual = usual - kept * kinds.usual_again
            extra = extra - kept * kinds.extra_again
            everything = everything - kept * kinds.everything_again
        mean = (everything + extra) / layout.pp
        most = usual * self.heaviest_layers
        stage = np.where(self.heaviest_layers * layout.pp == layers, most + extra, np.maximum(most, mean))
        return np.where(layout.pp == 1, mean, stage), mean

    @cached_property
    def heaviest_layers(self) -> Column:
        return self.of_group.heaviest_layers[self.group]

    @cached_property
    def layers_again(self) -> Column:
        """Layers of the heaviest stage that full recomputation computes again."""
        asked = self.recompute_layers * self.layout.virtual_stages
        return np.where(asked > 0, np.minimum(asked, self.heaviest_layers), self.heaviest_layers)

    def _layer_of_some(self, layer: LayerMemory) -> LayerMemory:
        """Return the memory of a mean layer, where only some are computed again: `layer_memory` on columns."""
        held, again = self.heaviest_layers, self.layers_again
        some, whole = again < held, layer.recomputed
        return replace(
            layer,
            kept=np.where(some, (again * layer.kept + (held - again) * whole) / held, layer.kept),
            freed=np.where(some, whole, layer.freed),
            recomputed=np.where(some & (held - again > 1), 0.0, whole),
        )

    @cached_property
    def route(self) -> Route:
        return Route(*self._of_group(vars(self.of_group.route).values()))

    @cached_property
    def doublings(self) -> Column:
        return self.of_group.doublings[self.group]

    @cached_property
    def step_transfers(self) -> tuple[Column, Column]:
        return self._of_group(self.of_group.step_transfers)  # type: ignore[no-any-return]

    @cached_property
    def layer_transfers(self) -> tuple[Column, Column, Column]:
        return self._of_group(self.of_group.layer_transfers)  # type: ignore[no-any-return]

    @cached_property
    def whole_bytes(self) -> tuple[Column, Column]:
        return self._of_group(self.of_group.whole_bytes)  # type: ignore[no-any-return]

    @cached_property
    def step_bytes(self) -> tuple[Column, Column]:
        return self._of_group(self.of_group.step_bytes)  # type: ignore[no-any-return]

    @property
    def optimizer(self) -> Column:
        return self.of_group.optimizer[self.group]

    def _of_group(self, columns: Iterable[Column]) -> Any:
        """Return columns of groups as columns of layouts."""
        return tuple(column[self.group] for column in columns)
