"""What layouts with the same mesh and sharding share: data-parallel communication, states, and links between stages.

The formulas of `estimate` on columns of numbers, once for each group of layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from frog.plan.estimate.constants import Constants
from frog.plan.estimate.gpu_memory import state_bytes
from frog.plan.estimate.hardware import Cluster
from frog.plan.estimate.step_time import OPTIMIZER_BYTES
from frog.plan.layout import Layout
from frog.plan.links import Group, Links
from frog.plan.model import PlannedModel
from frog.plan.search.grid import Column, Grid


class Rows:
    """Columns of one length, from which rows are chosen together."""

    def __getitem__(self, chosen: Column) -> Self:
        return type(self)(*(column[chosen] for column in vars(self).values()))


@dataclass(frozen=True)
class Shared(Rows):
    """Columns of what layouts with the same mesh and sharding have in common."""

    pp: Column
    heaviest_layers: Column
    even_layers: Column
    """Layers of each stage, if all have the same number; else 0."""
    data_ranks: Column
    doublings: Column
    """Doublings of the number of nodes."""
    send_byte_s: Column
    send_latency: Column
    reduce: Column
    gathered: Column
    """Seconds to reduce all gradients once, and to gather the updated parameters."""
    layer_gather: Column
    layer_reduce: Column
    """Seconds to gather one layer's sharded parameters, and to reduce its gradients."""
    optimizer: Column
    states: Column
    updated: Column
    at_loss: Column
    in_backward: Column
    """Bytes of states, parameters that a rank updates, bytes of gathered ones at the loss and in a backward pass."""


def shared_columns(
    model: PlannedModel, cluster: Cluster, base: Layout, grid: Grid, constants: Constants
) -> tuple[Shared, Column]:
    """Return what groups of layouts share, and the place of each layout's group."""
    mesh = (grid.dp, grid.tp, grid.pp, grid.cp, grid.ep)
    changes = np.zeros(len(grid), dtype=bool)
    for column in mesh:
        changes[1:] |= column[1:] != column[:-1]
    key = (np.cumsum(changes) * (1 + grid.zero.max()) + grid.zero) * (1 + grid.zero_group.max()) + grid.zero_group
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    return _Sharing(model, cluster, base, grid[first], constants).columns(), place


@dataclass(frozen=True)
class _Sharing:
    """Groups of layouts, by one layout of each; methods are named as in `estimate`."""

    model: PlannedModel
    cluster: Cluster
    base: Layout
    grid: Grid
    constants: Constants

    def columns(self) -> Shared:
        grid, layers = self.grid, self.model.layers
        num_nodes = np.maximum(1.0, grid.dp * grid.tp * grid.pp * grid.cp / self.cluster.gpus_per_node)
        return Shared(
            grid.pp,
            self.heaviest_layers,
            np.where(layers % grid.pp == 0, layers // grid.pp, 0),
            self.data_ranks,
            np.log2(num_nodes),
            *self._messages(),
            *self._step_transfers(),
            *self._layer_transfers(),
            self._optimizer(),
            self._states(),
            self._updated(),
            *self._gathered(),
        )

    @cached_property
    def links(self) -> Links:
        return self.cluster.links(self.constants)

    def _messages(self) -> tuple[Column, Column]:
        """Return the mean seconds per byte and latency of a message between stages."""
        grid, links = self.grid, self.links
        group = Group(grid.pp, grid.tp * grid.cp * grid.dp)
        outside = links.outside_share(group)
        byte_s = (1 - outside) / links.link + outside / links.message_network(group)
        return byte_s, (1 - outside) * links.link_latency_s + outside * links.network_latency_s

    @cached_property
    def data_ranks(self) -> Column:
        return self.grid.dp * self.grid.cp

    @cached_property
    def shard(self) -> Column:
        return np.where(self.grid.zero_group > 0, np.minimum(self.grid.zero_group, self.data_ranks), self.data_ranks)

    @cached_property
    def expert_ranks(self) -> Column:
        return np.maximum(1, self.data_ranks * self.grid.tp // self.grid.ep)

    @cached_property
    def heaviest_layers(self) -> Column:
        return -(-self.model.layers // self.grid.pp)

    @cached_property
    def parameters(self) -> tuple[Column, Column]:
        """Parameters of the heaviest rank that all data-parallel ranks share, and of its experts."""
        model, grid = self.model, self.grid
        mixture = np.minimum(self.heaviest_layers, model.moe_layers)
        of_mixture = model.moe_layer_shared_parameters() if model.experts else 0
        shared = (self.heaviest_layers - mixture) * model.dense_layer_parameters() + mixture * of_mixture
        ends = model.embedding_parameters() + np.where(grid.pp == 1, model.head_parameters(), 0)
        each = model.experts * model.expert_parameters() if model.experts else 0
        return (shared + ends) / grid.tp, mixture * each / np.where(grid.ep > 1, grid.ep, grid.tp)

    def _step_transfers(self) -> tuple[Column, Column]:
        grid, traits, links = self.grid, self.base.traits, self.links
        shared, experts = self.parameters
        size, shard = self.data_ranks, self.shard
        split = (grid.zero > 0) & (shard == size)
        reduce = np.zeros(len(grid))
        for numel, group in ((shared, Group(size, grid.tp)), (experts, Group(self.expert_ranks, grid.ep))):
            num_bytes = traits.gradient_bytes * numel
            once, twice = (
                links.gather(num_bytes, group),
                links.all_reduce(num_bytes, group),
            )
            reduce += np.where(numel > 0, np.where(split, once, twice), 0.0)
        gathered = links.gather(self.base.gathered_bytes * shared, Group(shard, grid.tp))
        experts_bytes = self.base.gathered_bytes * experts
        gathered += np.where(experts > 0, links.gather(experts_bytes, Group(self.expert_ranks, grid.ep)), 0.0)
        return reduce, np.where(grid.zero > 0, gathered, 0.0)

    def _layer_transfers(self) -> tuple[Column, Column]:
        grid, links, size, shard = self.grid, self.links, self.data_ranks, self.shard
        gradient = self.base.traits.gradient_bytes
        each = sum(self.parameters) / self.heaviest_layers
        gather = links.gather(self.base.gathered_bytes * each, Group(shard, grid.tp))
        reduce = links.gather(gradient * each, Group(shard, grid.tp))
        replicas = links.all_reduce(gradient * each / shard, Group(size // shard, shard * grid.tp))
        return gather, reduce + np.where(shard < size, replicas, 0.0)

    def _optimizer(self) -> Column:
        return OPTIMIZER_BYTES * self._updated() / (self.cluster.gpu.memory_bandwidth * self.constants.memory)

    def _updated(self) -> Column:
        """Return the number of parameters that a rank updates."""
        whole, split = self._held()
        return np.where(self.grid.zero > 0, split, whole)

    def _states(self) -> Column:
        whole, split = self._held()
        kinds = zip(state_bytes(self.base).values(), (3, 2, 1), strict=True)
        return sum((size * np.where(self.grid.zero >= least, split, whole) for size, least in kinds), np.zeros(1))

    def _held(self) -> tuple[Column, Column]:
        shared, experts = self.parameters
        return shared + experts, shared / self.shard + experts / np.minimum(self.shard, self.expert_ranks)

    def _gathered(self) -> tuple[Column, Column]:
        grid, model, traits = self.grid, self.model, self.base.traits
        each = 2 + traits.gradient_bytes
        is_end = grid.pp == 1
        ends = (model.embedding_parameters() + is_end * model.head_parameters()) / grid.tp
        head = is_end * model.vocab * model.hidden / grid.tp
        layer = (sum(self.parameters) - ends) / self.heaviest_layers
        keeps = traits.keeps_gathered & (grid.pp > 1)
        none = (grid.zero < 3) | ((self.shard < 2) & traits.keeps_whole_copy)
        stage = each * sum(self.parameters)
        moments = (2 * ends, 2 * ends + 2 * head + layer * (4 + each))
        at_loss, in_backward = (np.where(none, 0.0, np.where(keeps, stage, moment)) for moment in moments)
        return at_loss, in_backward
