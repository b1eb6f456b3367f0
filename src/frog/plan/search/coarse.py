"""Step time and memory of many layouts at once: the formulas of `estimate` on columns of numbers.

Layers depend on few numbers (tp, cp, ep, micro-batch, recomputation), so each combination is computed once, by
`estimate` itself. The rest is repeated here for columns; a test compares both on random layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.hardware import Cluster
from frog.plan.estimate.layout import PlannedLayout
from frog.plan.estimate.links import message_adapters, ring_adapters
from frog.plan.estimate.memory import (
    ALLOCATOR_SHARE,
    CONTEXT_BYTES,
    layer_activations,
    loss_bytes,
    stage_activations,
    state_bytes,
)
from frog.plan.estimate.model import PlannedModel
from frog.plan.estimate.step_time import OPTIMIZER_BYTES, StepModel
from frog.plan.search.grid import Column, Grid


@dataclass(frozen=True)
class Coarse:
    """Columns: seconds of a step, and bytes of the rank that holds most."""

    step_s: Column
    memory: Column


@dataclass(frozen=True)
class _Links:
    """The formulas of `estimate/links.py`, on columns."""

    cluster: Cluster
    constants: Constants

    def inside(self, size: Column, stride: Column) -> Column:
        return np.maximum(1, np.minimum(size, self.cluster.nvlink_domain // stride))

    def bandwidth(self, size: Column, stride: Column) -> Column:
        inside = self.inside(size, stride)
        link = self.cluster.gpu.link_bandwidth * self.constants.link
        adapters = ring_adapters(self.cluster, size, stride, inside)
        network = adapters * (self.cluster.network_bandwidth_per_gpu * self.constants.network)
        return np.where(inside >= size, link, np.minimum(link, network))

    def gather(self, num_bytes: Column, size: Column, stride: Column) -> Column:
        inside = self.inside(size, stride)
        domains = np.ceil(size / inside)
        latency = (inside - 1) * self.constants.link_latency_s + (domains - 1) * self.constants.network_latency_s
        seconds = (size - 1) / size * num_bytes / self.bandwidth(size, stride) + latency
        return np.where(size < 2, 0.0, seconds)

    def all_reduce(self, num_bytes: Column, size: Column, stride: Column) -> Column:
        inside = self.inside(size, stride)
        domains = np.ceil(size / inside)
        hops = (inside - 1) * self.constants.link_latency_s + np.log2(domains) * self.constants.network_latency_s
        link = self.cluster.gpu.link_bandwidth * self.constants.link
        adapters = ring_adapters(self.cluster, size, stride, inside)
        network = adapters * (self.cluster.network_bandwidth_per_gpu * self.constants.network)
        moved = np.maximum((inside - 1) / inside / link, (domains - 1) / domains / network)
        seconds = 2 * num_bytes * moved + 2 * hops
        return np.where(size < 2, 0.0, seconds)

    def send(self, num_bytes: Column, size: Column, stride: Column) -> Column:
        gpu, constants = self.cluster.gpu, self.constants
        network = message_adapters(self.cluster, size, stride) * self.cluster.network_bandwidth_per_gpu
        near = num_bytes / (gpu.link_bandwidth * constants.link) + constants.link_latency_s
        far = num_bytes / (network * constants.network) + constants.network_latency_s
        return np.where(stride < self.cluster.nvlink_domain, near, far)


@dataclass(frozen=True)
class _Layers:
    """Columns of what one layer needs, and the output matrix: seconds of both passes, bytes of activations and loss."""

    dense: Column
    mixture: Column
    head: Column
    kept: Column
    whole: Column
    logits: Column
    tokens: Column


def evaluate(
    model: PlannedModel, cluster: Cluster, base: PlannedLayout, grid: Grid, constants: Constants = FITTED
) -> Coarse:
    """Return the step time and memory of every layout of a grid."""
    run = _Columns(model, cluster, base, grid, constants, _layer_columns(model, cluster, base, grid, constants))
    return Coarse(run.step_s(), run.memory())


def _layer_columns(
    model: PlannedModel, cluster: Cluster, base: PlannedLayout, grid: Grid, constants: Constants
) -> _Layers:
    key = grid.tp
    for column in (grid.cp, grid.ep, grid.micro_batch, grid.recompute):
        key = (key << 12) + column
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    found = []
    for one in first:
        layout = grid.layout(one, base)
        step = StepModel(model, layout, cluster, constants)
        dense = step.layers.layer(mixture=False).total.total if model.layers > model.moe_layers else 0.0
        mixture = step.layers.layer(mixture=True).total.total if model.moe_layers else 0.0
        kept, whole = stage_activations(model, layout), layer_activations(model, layout)
        found.append(
            (dense, mixture, step.head.total.total, kept, whole, loss_bytes(model, layout), float(layout.tokens))
        )
    return _Layers(*(np.array(column)[place] for column in zip(*found, strict=True)))


@dataclass(frozen=True)
class _Columns:
    """One evaluation; methods are named as in `estimate`."""

    model: PlannedModel
    cluster: Cluster
    base: PlannedLayout
    grid: Grid
    constants: Constants
    layers: _Layers

    @cached_property
    def num_micro(self) -> Column:
        return self.base.global_batch // (self.grid.dp * self.grid.micro_batch)

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

    def memory_rate(self) -> float:
        return self.cluster.gpu.memory_bandwidth * self.constants.memory

    def stages(self) -> tuple[Column, Column]:
        """Return the seconds of a micro-batch on the heaviest stage and on a mean one."""
        model, pp = self.model, self.grid.pp
        usual = self.layers.mixture if model.moe_layers else self.layers.dense
        extra = self.layers.head + (usual + self.layers.head) * model.prediction_layers
        everything = self.layers.dense * (model.layers - model.moe_layers) + self.layers.mixture * model.moe_layers
        mean = (everything + extra) / pp
        even = usual * (model.layers // pp) + extra
        uneven = np.maximum(usual * self.heaviest_layers, mean)
        heaviest = np.where(pp == 1, mean, np.where(model.layers % pp == 0, even, uneven))
        return heaviest, mean

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

    # ---- time --------------------------------------------------------------------------------------------------------

    def step_s(self) -> Column:
        grid, constants, traits = self.grid, self.constants, self.base.traits
        links = _Links(self.cluster, constants)
        stage, mean = self.stages()
        message = 2.0 * self.layers.tokens * self.model.hidden / grid.tp
        each = 2 * grid.virtual_stages * links.send(message, grid.pp, grid.tp * grid.cp * grid.dp)
        sends = np.where(grid.pp == 1, 0.0, each)
        bubble = (mean * grid.pp - stage + (grid.pp - 1) * sends) / grid.virtual_stages
        exposed = np.maximum(0.0, sends - stage) if traits.overlaps_stages else sends
        pipeline = self.num_micro * np.where(grid.virtual_stages > 1, exposed, sends)
        parts = stage * self.num_micro + bubble + pipeline + self._data(links, stage) + self._optimizer()
        doublings = np.log2(np.maximum(1.0, grid.dp * grid.tp * grid.pp * grid.cp / self.cluster.gpus_per_node))
        return constants.step_s + parts * (1 + constants.jitter * doublings)

    def _overlap_cost(self) -> float:
        step = StepModel(self.model, self.base, self.cluster, self.constants)
        return step.layers.overlap_cost

    def _data(self, links: _Links, stage: Column) -> Column:
        """Return the exposed data-parallel communication, with what it slows down."""
        keeps = self.base.traits.keeps_gathered & (self.grid.pp > 1)
        sharded = (self.grid.zero == 3) & ~keeps
        seconds = np.where(sharded, self._data_sharded(links, stage), self._data_replicated(links, stage))
        return np.where(self.data_ranks < 2, 0.0, seconds)

    def _data_replicated(self, links: _Links, stage: Column) -> Column:
        grid, traits = self.grid, self.base.traits
        shared, experts = self.parameters
        size, shard = self.data_ranks, self.shard
        split = (grid.zero > 0) & (shard == size)
        reduce = np.zeros(len(grid))
        for numel, ranks, stride in ((shared, size, grid.tp), (experts, self.expert_ranks, grid.ep)):
            num_bytes = traits.gradient_bytes * numel
            once, twice = links.gather(num_bytes, ranks, stride), links.all_reduce(num_bytes, ranks, stride)
            reduce += np.where(numel > 0, np.where(split, once, twice), 0.0)
        gathered = links.gather(2 * shared, shard, grid.tp)
        gathered += np.where(experts > 0, links.gather(2 * experts, self.expert_ranks, grid.ep), 0.0)
        gathered = np.where(grid.zero > 0, gathered, 0.0)
        most = stage * 2 / 3 * self.constants.hidden
        hidden = self._hidden_transfer(reduce, most) * traits.overlaps_gradients
        hidden = hidden + self._hidden_transfer(gathered, most / 2) * traits.overlaps_parameters
        return reduce + gathered - hidden + hidden * self._overlap_cost()

    def _hidden_transfer(self, seconds: Column, one_pass: Column) -> Column:
        chunks, passes = self.grid.virtual_stages, np.minimum(self.grid.pp, self.num_micro)
        window = one_pass * (passes * (chunks - 1) + 1) / chunks
        return seconds - np.maximum(0.0, np.maximum(seconds - window, (seconds - one_pass) / chunks))

    def _data_sharded(self, links: _Links, stage: Column) -> Column:
        grid, size, shard = self.grid, self.data_ranks, self.shard
        layers, gradient = self.heaviest_layers, self.base.traits.gradient_bytes
        each = sum(self.parameters) / layers
        gather, reduce = links.gather(2 * each, shard, grid.tp), links.gather(gradient * each, shard, grid.tp)
        replicas = links.all_reduce(gradient * each / shard, size // shard, shard * grid.tp)
        reduce = reduce + np.where(shard < size, replicas, 0.0)
        communication = layers * (2 * gather + reduce) * self.num_micro
        computation = stage * self.num_micro
        slowed = np.minimum(communication, computation) * self._overlap_cost()
        return (gather + reduce) * self.num_micro + np.maximum(0.0, communication - computation) + slowed

    def _optimizer(self) -> Column:
        shared, experts = self.parameters
        split = self.grid.zero > 0
        shared = np.where(split, shared / self.shard, shared)
        experts = np.where(split, experts / np.minimum(self.shard, self.expert_ranks), experts)
        return OPTIMIZER_BYTES * (shared + experts) / self.memory_rate()

    # ---- memory ------------------------------------------------------------------------------------------------------

    def memory(self) -> Column:
        """Return the bytes on the first or the last stage, whichever needs more."""
        grid, layers = self.grid, self.layers
        kept = layers.kept * self.heaviest_layers
        recomputed = np.where(grid.recompute == 2, layers.whole, 0.0)
        logits = layers.logits
        at_loss, in_backward = self._gathered()
        reducing = in_backward + recomputed - np.where(grid.recompute == 2, 0.0, layers.kept)
        first = kept * self._in_flight() + np.maximum(logits * (grid.pp == 1) + at_loss, reducing)
        last = kept + np.maximum(logits + at_loss, reducing)
        varying = np.where(grid.pp == 1, first, np.maximum(first, last))
        whole, split = self._held()
        varying = np.maximum(varying, self.base.traits.step_bytes * np.where(grid.zero > 0, split, whole))
        return self._states() + (1 + ALLOCATOR_SHARE) * varying + CONTEXT_BYTES

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
        keeps, none = (
            traits.keeps_gathered & (grid.pp > 1),
            (grid.zero < 3) | ((self.shard < 2) & traits.keeps_whole_copy),
        )
        stage = each * sum(self.parameters)
        moments = (2 * ends, 2 * ends + 2 * head + layer * (4 + each))
        at_loss, in_backward = (np.where(none, 0.0, np.where(keeps, stage, moment)) for moment in moments)
        return at_loss, in_backward

    def _in_flight(self) -> Column:
        pp, chunks = self.grid.pp, self.grid.virtual_stages
        most = np.where(chunks > 1, pp * (1 + (pp - 1) / (pp * chunks)), pp)
        return np.minimum(most, self.num_micro)
