"""Time of a training step: micro-batches through the stages, the exposed communication, the optimizer.

Source: pipeline bubble, Narayanan et al. 2021, section 2.2; sharded states, Rajbhandari et al. 2020, Zhao et al. 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property

from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.hardware import Cluster
from frog.plan.estimate.kernels import Kernels
from frog.plan.estimate.layer_time import LayerModel, Times
from frog.plan.estimate.layout import PlannedLayout
from frog.plan.estimate.links import Group, Links
from frog.plan.estimate.model import PlannedModel

_OPTIMIZER_BYTES = 36
"""Adam's traffic per parameter: reads of gradient (twice, with its norm), weight and two moments in float32, writes of
the last three, and of the weight in 16 bits; the gradient's reset."""

_IDLE = {"zero_bubble": 1 / 3}
"""Idle time of a schedule, of 1F1B's. Qi et al. 2023, table 1: F + B - W, not F + B + W, which are about equal."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by cause, on the rank that finishes last. Communication is the exposed part."""

    products: float
    attention: float
    memory: float
    launch: float
    tensor: float
    context: float
    expert: float
    pipeline: float
    """Messages between stages."""
    data: float
    """Gathered parameters and reduced gradients."""
    bubble: float
    optimizer: float
    other: float
    """The fixed time of a step, and waiting for the slowest of many nodes."""

    @property
    def total(self) -> float:
        return float(sum(vars(self).values()))


@dataclass(frozen=True)
class StepModel:
    """One run on one cluster."""

    model: PlannedModel
    layout: PlannedLayout
    cluster: Cluster
    constants: Constants = FITTED

    @cached_property
    def links(self) -> Links:
        return Links(self.cluster, self.constants)

    @cached_property
    def kernels(self) -> Kernels:
        return Kernels(self.cluster.gpu, self.layout, self.constants)

    @cached_property
    def _layers(self) -> LayerModel:
        return LayerModel(self.model, self.layout, self.kernels, self.links)

    @cached_property
    def _groups(self) -> dict[str, Group]:
        layout = self.layout
        inner = layout.tp * layout.cp
        return {"dp": Group(layout.dp * layout.cp, layout.tp), "pp": Group(layout.pp, inner * layout.dp)}

    @cached_property
    def step(self) -> StepTime:
        """Return the time of a step.

        Source:  m micro-batches on the heaviest of p stages, and (p - 1) / v passes of a mean stage to fill and drain
                 the pipeline, where v is the number of virtual stages; less with a zero-bubble schedule.
        """
        layout = self.layout
        stage, mean = self._stage()
        sends = self._sends()
        data, slowed = self._data(stage)
        fill = (layout.pp - 1) / layout.virtual_stages * _IDLE.get(layout.schedule, 1.0)
        busy = stage * layout.num_micro
        bubble = fill * (mean.total + sends)
        overlaps = layout.traits.overlaps_stages and layout.virtual_stages > 1
        pipeline = layout.num_micro * (max(0.0, sends - stage.total) if overlaps else sends)
        optimizer = self._optimizer()
        parts = busy.total + slowed + bubble + pipeline + data + optimizer
        waits = parts * self.constants.jitter * self._doublings()
        named = {field.name: getattr(busy, field.name) for field in fields(Times)}
        return StepTime(
            **named,
            pipeline=pipeline,
            data=data + slowed,
            bubble=bubble,
            optimizer=optimizer,
            other=self.constants.step_s + waits,
        )

    def _doublings(self) -> float:
        return math.log2(max(1.0, self.layout.num_gpus / self.cluster.gpus_per_node))

    # ---- one micro-batch on a stage ----------------------------------------------------------------------------------

    def _stage(self) -> tuple[Times, Times]:
        """Return the time of a micro-batch on the heaviest stage, and on a mean one, both passes."""
        model, layout, layers = self.model, self.layout, self._layers
        dense = layers.layer(mixture=False).total if model.layers > model.moe_layers else Times()
        mixture = layers.layer(mixture=True).total if model.moe_layers else Times()
        usual = mixture if model.moe_layers else dense
        extra = self._head() + usual * model.prediction_layers + self._head() * model.prediction_layers
        everything = dense * (model.layers - model.moe_layers) + mixture * model.moe_layers
        if layout.pp == 1:
            return everything + extra, everything + extra
        mean = (everything + extra) * (1 / layout.pp)
        if model.layers % layout.pp == 0:
            return usual * (model.layers // layout.pp) + extra, mean
        # Stages that differ are placed by hand, so that the one with the head has fewer layers.
        heaviest = usual * layout.heaviest_layers(model.layers)
        return max((heaviest, mean), key=lambda times: times.total), mean

    def _head(self) -> Times:
        """Return the time of the embedding, the output matrix and the loss, both passes.

        The loss reads and writes the logits in 16 and 32 bits: 20 bytes for each.
        """
        model, layout = self.model, self.layout
        columns = model.vocab / layout.tp
        kernels = Kernels(self.cluster.gpu, _without_fp8(layout), self.constants)
        products = sum(kernels.linear(layout.tokens, model.hidden, columns))
        return Times(products=products, memory=kernels.moves(layout.tokens * (20 * columns + 16 * model.hidden)))

    def _sends(self) -> float:
        """Return the seconds of a micro-batch's messages to the next stage and back; tp ranks send a part each."""
        layout = self.layout
        if layout.pp == 1:
            return 0.0
        num_bytes = 2.0 * layout.tokens * self.model.hidden / layout.tp
        return 2 * layout.virtual_stages * self.links.send(num_bytes, self._groups["pp"].stride)

    # ---- data parallelism --------------------------------------------------------------------------------------------

    @cached_property
    def stage_parameters(self) -> float:
        """Number of parameters on the heaviest rank, before data parallelism splits them."""
        return sum(self.stage_parameter_parts)

    @cached_property
    def stage_parameter_parts(self) -> tuple[float, float]:
        """The same, of all that data-parallel ranks share, and of the experts, which expert parallelism splits."""
        model, layout = self.model, self.layout
        layers = layout.heaviest_layers(model.layers)
        mixture = min(layers, model.moe_layers)
        dense = (layers - mixture) * model.dense_layer_parameters() + mixture * (
            model.moe_layer_shared_parameters() if model.experts else 0
        )
        ends = model.embedding_parameters() + (model.head_parameters() if layout.pp == 1 else 0)
        split = layout.ep if layout.ep > 1 else layout.tp
        experts = mixture * model.experts * (model.expert_parameters() if model.experts else 0) / split
        return (dense + ends) / layout.tp, experts

    def _data(self, stage: Times) -> tuple[float, float]:
        """Return the exposed seconds of data-parallel communication, and how much it slows the computation down."""
        if self._groups["dp"].size < 2:
            return 0.0, 0.0
        layout = self.layout
        repeats = layout.zero == 3 and not (layout.traits.keeps_gathered and layout.pp > 1)
        return self._data_sharded(stage) if repeats else self._data_replicated(stage)

    def _data_replicated(self, stage: Times) -> tuple[float, float]:
        """Return the same with whole parameters: gradients are reduced once, after or during the last backward pass.

        ZeRO 1 and 2 reduce-scatter gradients and gather parameters, as many bytes as an all-reduce.
        """
        layout, links, traits = self.layout, self.links, self.layout.traits
        shared, experts = self.stage_parameter_parts
        group = self._groups["dp"]
        expert_group = Group(max(1, group.size * layout.tp // layout.ep), layout.ep)
        grads = [(traits.gradient_bytes * shared, group), (traits.gradient_bytes * experts, expert_group)]
        split = layout.zero > 0 and layout.shard == group.size
        reduce = sum(links.gather(size, g) if split else links.all_reduce(size, g) for size, g in grads if size)
        gathered = 0.0
        if layout.zero:
            held = Group(layout.shard, layout.tp)
            gathered = links.gather(2 * shared, held) + (links.gather(2 * experts, expert_group) if experts else 0)
        backward = stage.total * 2 / 3
        hidden = min(reduce, backward * self.constants.hidden) if traits.overlaps_gradients else 0.0
        hidden_gather = min(gathered, backward / 2 * self.constants.hidden) if traits.overlaps_parameters else 0.0
        return reduce + gathered - hidden - hidden_gather, (hidden + hidden_gather) * self._layers.overlap_cost

    def _data_sharded(self, stage: Times) -> tuple[float, float]:
        """Return the same with sharded parameters (FSDP): each layer's are gathered before its forward and backward
        pass, and its gradients reduce-scattered after, next to the computation of its neighbors.
        """
        layout, links = self.layout, self.links
        held = Group(layout.shard, layout.tp)
        layers = layout.heaviest_layers(self.model.layers)
        each = self.stage_parameters / layers
        gather, reduce = links.gather(2 * each, held), links.gather(layout.traits.gradient_bytes * each, held)
        if held.size < self._groups["dp"].size:
            others = Group(self._groups["dp"].size // held.size, held.size * layout.tp)
            reduce += links.all_reduce(layout.traits.gradient_bytes * each / held.size, others)
        communication = layers * (2 * gather + reduce) * layout.num_micro
        computation = stage.total * layout.num_micro
        first = (gather + reduce) * layout.num_micro
        slowed = min(communication, computation) * self._layers.overlap_cost
        return first + max(0.0, communication - computation), slowed

    def _optimizer(self) -> float:
        """Return the seconds of Adam on this rank's part of the states, bound by memory."""
        shared, experts = self.stage_parameter_parts
        layout = self.layout
        if layout.zero:
            shared = shared / layout.shard
            experts = experts / max(1, min(layout.shard, self._groups["dp"].size * layout.tp // layout.ep))
        return self.kernels.moves(_OPTIMIZER_BYTES * (shared + experts))


def _without_fp8(layout: PlannedLayout) -> PlannedLayout:
    """Return the layout with the precision of the output matrix, which stays in bfloat16."""
    return replace(layout, precision="bf16") if layout.precision.startswith("fp8") else layout
