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
from frog.plan.estimate.layer_time import LayerModel, Passes, Times
from frog.plan.layout import Layout
from frog.plan.links import Group, Links
from frog.plan.model import PlannedModel

OPTIMIZER_BYTES = 36
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
    layout: Layout
    cluster: Cluster
    constants: Constants = FITTED

    @cached_property
    def links(self) -> Links:
        return self.cluster.links(self.constants)

    @cached_property
    def kernels(self) -> Kernels:
        return Kernels(self.cluster.gpu, self.layout, self.constants)

    @cached_property
    def layers(self) -> LayerModel:
        return LayerModel(self.model, self.layout, self.kernels, self.links)

    @cached_property
    def _groups(self) -> dict[str, Group]:
        layout = self.layout
        inner = layout.tp * layout.cp
        return {"dp": Group(layout.data, layout.tp), "pp": Group(layout.pp, inner * layout.dp)}

    @cached_property
    def rings(self) -> dict[str, Group]:
        """The groups whose collectives pass data around a ring, by what they are for."""
        layout, data = self.layout, self._groups["dp"]
        found = {"tensor": Group(layout.tp, 1), "context": Group(layout.cp, layout.tp), "data": data}
        if layout.zero and layout.shard < data.size:
            found["shards"] = Group(layout.shard, layout.tp)
            found["replicas"] = Group(data.size // layout.shard, layout.shard * layout.tp)
        return found

    @cached_property
    def step(self) -> StepTime:
        """Return the time of a step.

        Source:  m micro-batches on the heaviest of p stages, and 1 / v of a pass of each other stage to fill and drain
                 the pipeline, where v is the number of virtual stages; less with a zero-bubble schedule.
        """
        layout = self.layout
        stage = self.stages[0].total
        sends = self.sends
        data, slowed = self.data
        busy = stage * layout.num_micro
        bubble = (self.other_stages + (layout.pp - 1) * sends) / layout.virtual_stages * idle_share(layout)
        overlaps = layout.traits.overlaps_stages and layout.virtual_stages > 1
        pipeline = layout.num_micro * (max(0.0, sends - stage.total) if overlaps else sends)
        optimizer = self.kernels.moves(OPTIMIZER_BYTES * sum(self.optimizer_parameters))
        parts = busy.total + slowed + bubble + pipeline + data + optimizer
        waits = parts * self.constants.jitter * self.doublings
        named = {field.name: getattr(busy, field.name) for field in fields(Times)}
        return StepTime(
            **named,
            pipeline=pipeline,
            data=data + slowed,
            bubble=bubble,
            optimizer=optimizer,
            other=self.constants.step_s + waits,
        )

    @property
    def doublings(self) -> float:
        """Doublings of the number of nodes."""
        return math.log2(max(1.0, self.layout.num_gpus / self.cluster.gpus_per_node))

    # ---- one micro-batch on a stage ----------------------------------------------------------------------------------

    @cached_property
    def stages(self) -> tuple[Passes, Passes]:
        """The passes of a micro-batch through the heaviest stage, and through a mean one."""
        model, layout, layers = self.model, self.layout, self.layers
        dense = layers.layer(mixture=False) if model.layers > model.moe_layers else Passes()
        mixture = layers.layer(mixture=True) if model.moe_layers else Passes()
        usual = mixture if model.moe_layers else dense
        extra = self.head + usual * model.prediction_layers + self.head * model.prediction_layers
        everything = dense * (model.layers - model.moe_layers) + mixture * model.moe_layers
        if layout.pp == 1:
            return everything + extra, everything + extra
        mean = (everything + extra) * (1 / layout.pp)
        if model.layers % layout.pp == 0:
            return usual * (model.layers // layout.pp) + extra, mean
        # Stages that differ are placed by hand, so that the one with the head has fewer layers.
        heaviest = usual * layout.heaviest_layers(model.layers)
        return max((heaviest, mean), key=lambda passes: passes.total.total), mean

    @property
    def other_stages(self) -> float:
        """Seconds of a micro-batch on all stages but the heaviest."""
        heaviest, mean = (passes.total.total for passes in self.stages)
        return mean * self.layout.pp - heaviest

    @cached_property
    def head(self) -> Passes:
        """The passes through the embedding, the output matrix and the loss, whose traffic depends on the program."""
        model, layout = self.model, self.layout
        columns = model.vocab / layout.tp
        kernels = Kernels(self.cluster.gpu, _without_fp8(layout), self.constants)
        forward, backward = kernels.linear(layout.tokens, model.hidden, columns)
        sizes = layout.traits.loss_bytes
        memory = [kernels.moves(layout.tokens * (each * columns + 8 * model.hidden)) for each in sizes]
        return Passes(Times(forward, memory=memory[0]), Times(backward, memory=memory[1]))

    @cached_property
    def sends(self) -> float:
        """Seconds of a micro-batch's messages to the next stage and back; tp ranks send a part each."""
        layout = self.layout
        if layout.pp == 1:
            return 0.0
        num_bytes = 2.0 * layout.tokens * self.model.hidden / layout.tp
        return float(2 * layout.virtual_stages * self.links.send(num_bytes, self._groups["pp"]))

    # ---- data parallelism --------------------------------------------------------------------------------------------

    @cached_property
    def stage_parameters(self) -> float:
        """Number of parameters on the heaviest rank, before data parallelism splits them."""
        return sum(self.stage_parameter_parts)

    @cached_property
    def stage_parameter_parts(self) -> tuple[float, float]:
        """The same, of all that data-parallel ranks share, and of the experts, which expert parallelism splits."""
        return self.layout.stage_parameters(self.model)

    @cached_property
    def data(self) -> tuple[float, float]:
        """The exposed seconds of data-parallel communication, and how much it slows the computation down."""
        stage = self.stages[0].total
        if self._groups["dp"].size < 2:
            return 0.0, 0.0
        return self._data_sharded(stage) if self.gathers_layers else self._data_replicated(stage)

    @property
    def gathers_layers(self) -> bool:
        """True if parameters are sharded, and gathered for each layer of each micro-batch."""
        layout = self.layout
        return layout.zero == 3 and not (layout.traits.keeps_gathered and layout.pp > 1)

    def _data_replicated(self, stage: Times) -> tuple[float, float]:
        """Return the same with whole parameters: gradients are reduced during or after the last backward pass."""
        traits = self.layout.traits
        reduce, gathered = self.step_transfers
        backward = stage.total * 2 / 3 * self.constants.hidden
        hidden = self.hidden_transfer(reduce, backward) if traits.overlaps_gradients else 0.0
        hidden_gather = self.hidden_transfer(gathered, backward / 2) if traits.overlaps_parameters else 0.0
        return reduce + gathered - hidden - hidden_gather, (hidden + hidden_gather) * self.layers.overlap_cost

    def hidden_transfer(self, seconds: float, one_pass: float) -> float:
        """Return how much of a step's transfer of gradients or parameters hides behind passes of `one_pass` seconds.

        With one chunk for each rank, all gradients are complete only in the last pass. Interleaved, the last p passes
        through a chunk come one chunk after another, so that those of all other chunks hide the transfer of the first
        one; the transfer of the last chunk hides behind its own last pass. Gathered parameters are the mirror image.
        """
        chunks = self.layout.virtual_stages
        passes = min(self.layout.pp, self.layout.num_micro)
        window = one_pass * (passes * (chunks - 1) + 1) / chunks
        return seconds - max(0.0, seconds - window, (seconds - one_pass) / chunks)

    @cached_property
    def step_transfers(self) -> tuple[float, float]:
        """Seconds to reduce all gradients once, and to gather the updated parameters.

        ZeRO 1 and 2 reduce-scatter gradients and gather parameters, as many bytes as an all-reduce.
        """
        layout, links, traits = self.layout, self.links, self.layout.traits
        shared, experts = self.stage_parameter_parts
        group = self._groups["dp"]
        expert_group = Group(layout.num_expert_copies, layout.ep)
        grads = [(traits.gradient_bytes * shared, group), (traits.gradient_bytes * experts, expert_group)]
        split = layout.zero > 0 and layout.shard == group.size
        reduce = sum(links.gather(size, g) if split else links.all_reduce(size, g) for size, g in grads if size)
        if not layout.zero:
            return reduce, 0.0
        held, size_of = Group(layout.shard, layout.tp), layout.gathered_bytes
        gathered = links.gather(size_of * shared, held)
        return reduce, gathered + (links.gather(size_of * experts, expert_group) if experts else 0)

    def _data_sharded(self, stage: Times) -> tuple[float, float]:
        """Return the same with sharded parameters (FSDP): each layer's are gathered before its forward and backward
        pass, and its gradients reduce-scattered after, next to the computation of its neighbors.
        """
        gather, *reductions = self.layer_transfers
        reduce = sum(reductions)
        num_micro = self.layout.num_micro
        communication = self.layout.heaviest_layers(self.model.layers) * (2 * gather + reduce) * num_micro
        computation = stage.total * num_micro
        first = (gather + reduce) * num_micro
        slowed = min(communication, computation) * self.layers.overlap_cost
        return first + max(0.0, communication - computation), slowed

    @cached_property
    def layer_transfers(self) -> tuple[float, float, float]:
        """Seconds to gather one layer's sharded parameters, to reduce its gradients among the ranks that share it, and,
        with hybrid sharding, then among its replicas.
        """
        layout, links = self.layout, self.links
        held = Group(layout.shard, layout.tp)
        each = self.stage_parameters / layout.heaviest_layers(self.model.layers)
        gather = links.gather(layout.gathered_bytes * each, held)
        reduce = links.gather(layout.traits.gradient_bytes * each, held)
        if held.size == self._groups["dp"].size:
            return gather, reduce, 0.0
        others = Group(self._groups["dp"].size // held.size, held.size * layout.tp)
        return gather, reduce, links.all_reduce(layout.traits.gradient_bytes * each / held.size, others)

    @property
    def optimizer_parameters(self) -> tuple[float, float]:
        """Numbers of parameters that this rank updates: of those that data-parallel ranks share, and of experts."""
        shared, experts = self.stage_parameter_parts
        layout = self.layout
        if layout.zero:
            shared = shared / layout.shard
            experts = experts / min(layout.shard, layout.num_expert_copies)
        return shared, experts


def idle_share(layout: Layout) -> float:
    """Return the idle time of a layout's schedule, of 1F1B's."""
    return _IDLE.get(layout.schedule, 1.0)


def _without_fp8(layout: Layout) -> Layout:
    """Return the layout with the precision of the output matrix, which stays in bfloat16."""
    return replace(layout, precision="bf16") if layout.precision.startswith("fp8") else layout
