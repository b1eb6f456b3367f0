"""Time of a training step: micro-batches through the stages, the exposed communication, the optimizer.

Source: pipeline bubble, Narayanan et al. 2021, section 2.2; sharded states, Rajbhandari et al. 2020, Zhao et al. 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

from frog.plan.columns import Column, always, choose, least, log2, most, never
from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.hardware import Cluster
from frog.plan.estimate.kernels import Kernels
from frog.plan.estimate.layer_time import LayerModel, Passes, Times
from frog.plan.layout import Layout
from frog.plan.links import Group, Links, Route, ring_share
from frog.plan.memory import Memory, step_memory
from frog.plan.model import PlannedModel

OPTIMIZER_BYTES = 36
"""Adam's traffic per parameter: reads of gradient (twice, with its norm), weight and two moments in float32, writes of
the last three, and of the weight in 16 bits; the gradient's reset."""

HOST_BYTES = 30
"""The same of Adam on the host's processors: gradient, weight and two moments read in float32, the last three written,
and the weight in 16 bits."""

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
        groups = {"tensor": Group(layout.tp, 1), "context": Group(layout.cp, layout.tp), "data": data}
        if layout.zero and layout.shard < data.size:
            groups["shards"] = Group(layout.shard, layout.tp)
            groups["replicas"] = Group(data.size // layout.shard, layout.shard * layout.tp)
        return groups

    @cached_property
    def step(self) -> StepTime:
        """Return the time of a step.

        Source:  m micro-batches on the heaviest of p stages, and 1 / v of a pass of each other stage to fill and drain
                 the pipeline, where v is the number of virtual stages; less with a zero-bubble schedule.
        """
        busy = self.stages[0].total * self.layout.num_micro
        data, slowed = self.data
        parts = busy.total + slowed + self.bubble + self.pipeline + data + self.optimizer
        waits = parts * self.constants.jitter * self.doublings
        named = {field.name: getattr(busy, field.name) for field in fields(Times)}
        return StepTime(
            **named,
            pipeline=self.pipeline,
            data=data + slowed,
            bubble=self.bubble,
            optimizer=self.optimizer,
            other=self.constants.step_s + waits,
        )

    @property
    def trained_parameters(self) -> int:
        """Number of parameters that the optimizer updates."""
        return self.model.num_parameters()

    @property
    def model_flops(self) -> float:
        """The model's own operations of both passes for each token."""
        return self.model.model_flops_per_token(self.layout.seq_len)

    @property
    def product_flops(self) -> float:
        """Operations of both passes in products for each token: the backward pass has twice as many."""
        return 3 * self.model.product_flops_per_token()

    @property
    def attention_flops(self) -> float:
        """Operations of both passes in attention for each token."""
        return 3 * self.model.attention_flops_per_token(self.layout.seq_len)

    @cached_property
    def memory(self) -> Memory:
        """The memory of the rank that holds most."""
        return step_memory(self.model, self.layout, self.cluster.gpu.memory)

    @cached_property
    def doublings(self) -> Column:
        """Doublings of the number of nodes."""
        return log2(most(1.0, self.layout.num_gpus / self.cluster.gpus_per_node))

    @property
    def bubble(self) -> Column:
        """Seconds in which the heaviest stage waits while others fill and drain the pipeline."""
        layout = self.layout
        return (self.other_stages + (layout.pp - 1) * self.sends) / layout.virtual_stages * idle_share(layout)

    @property
    def pipeline(self) -> Column:
        """Seconds of messages between stages, as far as they do not hide behind the next micro-batch."""
        layout, sends = self.layout, self.sends
        if layout.traits.overlaps_stages:
            sends = choose(layout.virtual_stages > 1, most(0.0, sends - self.stage_seconds[0]), sends)
        return layout.num_micro * sends

    @property
    def optimizer(self) -> Column:
        """Seconds of the update."""
        updated, offloaded = sum(self.optimizer_parameters), self.layout.offload_optimizer
        seconds = self.kernels.moves(OPTIMIZER_BYTES * updated * (1 - offloaded))
        return seconds + self.offloaded if offloaded else seconds

    @property
    def offloaded(self) -> Column:
        """Seconds of the update on the host: gradients go there, Adam runs, and parameters in 16 bits come back.

        Nothing of that overlaps. The ranks of a node share its memory, each with a link of its own. Rates are data
        sheets' at the constants of the GPU's memory and of NVLink: no run with offloading was measured.

        Source:  Ren et al. 2021, ZeRO-Offload, section 4; Megatron-Core, `HybridDeviceOptimizer`.
        """
        cluster, layout = self.cluster, self.layout
        if cluster.host_link is None or cluster.host_memory is None:
            raise ValueError("rows.py refuses a profile without a host")
        numbers = layout.offload_optimizer * sum(self.optimizer_parameters)
        sent = (layout.traits.gradient_bytes + 2) * numbers / (cluster.host_link * self.constants.link)
        ranks = least(cluster.gpus_per_node, layout.num_gpus)
        return sent + HOST_BYTES * numbers * ranks / (cluster.host_memory * self.constants.memory)

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

    @cached_property
    def stage_seconds(self) -> tuple[Column, Column]:
        """The seconds of both passes through the heaviest stage, and through a mean one."""
        heaviest, mean = (passes.total.total for passes in self.stages)
        return heaviest, mean

    @property
    def other_stages(self) -> Column:
        """Seconds of a micro-batch on all stages but the heaviest."""
        heaviest, mean = self.stage_seconds
        return mean * self.layout.pp - heaviest

    @cached_property
    def head(self) -> Passes:
        """The passes through the embedding, the output matrix and the loss, whose traffic depends on the program."""
        model, layout = self.model, self.layout
        columns = layout.traits.vocab_of_rank(model.vocab, layout.tp)
        kernels = replace(self.kernels, layout=_in_16_bits(layout))
        forward, backward = kernels.linear(layout.tokens, model.hidden, columns)
        sizes = layout.traits.loss_bytes
        memory = [kernels.moves(layout.tokens * (each * columns + 8 * model.hidden)) for each in sizes]
        return Passes(Times(forward, memory=memory[0]), Times(backward, memory=memory[1]))

    @cached_property
    def message_bytes(self) -> Column:
        """Bytes of a micro-batch's message to the next stage; tp ranks send a part each."""
        return 2.0 * self.layout.tokens * self.model.hidden / self.layout.tp

    @cached_property
    def route(self) -> Route:
        """The way of these messages."""
        return self.links.route(self._groups["pp"])

    @cached_property
    def sends(self) -> Column:
        """Seconds of a micro-batch's messages to the next stage and back."""
        each = 2 * self.layout.virtual_stages * self.links.send(self.message_bytes, self.route)
        return choose(self.layout.pp == 1, 0.0, each)

    # ---- data parallelism --------------------------------------------------------------------------------------------

    @cached_property
    def heaviest_layers(self) -> Column:
        """Number of layers on the stage that has most."""
        return self.layout.heaviest_layers(self.model.layers)

    @cached_property
    def stage_parameters(self) -> Column:
        """Number of parameters on the heaviest rank, before data parallelism splits them."""
        return sum(self.stage_parameter_parts)

    @cached_property
    def stage_parameter_parts(self) -> tuple[Column, Column]:
        """The same, of all that data-parallel ranks share, and of the experts, which expert parallelism splits."""
        return self.layout.stage_parameters(self.model)

    @cached_property
    def whole_bytes(self) -> tuple[Column, Column]:
        """Bytes of the heaviest rank's parameters, as FSDP gathers them, and of its gradients, as it reduces them."""
        layout = self.layout
        return layout.gathered_bytes * self.stage_parameters, layout.traits.gradient_bytes * self.stage_parameters

    @cached_property
    def data(self) -> tuple[Column, Column]:
        """The exposed seconds of data-parallel communication, and how much it slows the computation down."""
        alone, gathers = self._groups["dp"].size < 2, self.gathers_layers
        if always(alone):
            return 0.0, 0.0
        exposed, slowed = self._data_replicated() if never(gathers) else self._data_sharded()
        if not (always(gathers) or never(gathers)):
            whole = self._data_replicated()
            exposed, slowed = choose(gathers, exposed, whole[0]), choose(gathers, slowed, whole[1])
        return choose(alone, 0.0, exposed), choose(alone, 0.0, slowed)

    @property
    def gathers_layers(self) -> Column:
        """True if parameters are sharded, and gathered for each layer of each micro-batch."""
        layout = self.layout
        return (layout.zero == 3) & ((not layout.traits.keeps_gathered) | (layout.pp == 1))

    def _data_replicated(self) -> tuple[Column, Column]:
        """Return the same with whole parameters: gradients are reduced during or after the last backward pass."""
        traits = self.layout.traits
        reduce, gathered = self.step_transfers
        backward = self.stage_seconds[0] * 2 / 3 * self.constants.hidden
        hidden = self.hidden_transfer(reduce, backward) if traits.overlaps_gradients else 0.0
        hidden_gather = self.hidden_transfer(gathered, backward / 2) if traits.overlaps_parameters else 0.0
        slowed = 0.0
        for seconds, behind, arrived in zip((reduce, gathered), (hidden, hidden_gather), self.step_bytes, strict=True):
            lost = self.layers.slowed(seconds, arrived, seconds - behind)
            slowed = slowed + choose(behind > 0, lost, 0.0)
        return reduce + gathered - hidden - hidden_gather, slowed

    def hidden_transfer(self, seconds: Column, one_pass: Column) -> Column:
        """Return how much of a step's transfer of gradients or parameters hides behind passes of `one_pass` seconds.

        With one chunk for each rank, all gradients are complete only in the last pass. Interleaved, the last p passes
        through a chunk come one chunk after another, so that those of all other chunks hide the transfer of the first
        one; the transfer of the last chunk hides behind its own last pass. Gathered parameters are the mirror image.
        """
        chunks = self.layout.virtual_stages
        passes = least(self.layout.pp, self.layout.num_micro)
        window = one_pass * (passes * (chunks - 1) + 1) / chunks
        return seconds - most(0.0, most(seconds - window, (seconds - one_pass) / chunks))

    @cached_property
    def step_transfers(self) -> tuple[Column, Column]:
        """Seconds to reduce all gradients once, and to gather the updated parameters.

        ZeRO 1 and 2 reduce-scatter gradients and gather parameters, as many bytes as an all-reduce.
        """
        layout, links = self.layout, self.links
        parts = self.stage_parameter_parts
        groups = self._groups["dp"], Group(layout.num_expert_copies, layout.expert_ranks)
        splits = (layout.zero > 0) & (layout.shard == groups[0].size)
        reduce = 0.0
        for numel, group in zip(parts, groups, strict=True):
            num_bytes = layout.traits.gradient_bytes * numel
            seconds = choose(splits, links.gather(num_bytes, group), links.all_reduce(num_bytes, group))
            reduce = reduce + choose(numel > 0, seconds, 0.0)
        shared, experts = (layout.gathered_bytes * numel for numel in parts)
        gathered = links.gather(shared, Group(layout.shard, layout.tp))
        gathered = gathered + choose(experts > 0, links.gather(experts, groups[1]), 0)
        return reduce, choose(layout.zero > 0, gathered, 0.0)

    @property
    def times_reduced(self) -> Column:
        """How often gradients pass a rank: once in a reduce-scatter over all ranks, twice in an all-reduce."""
        return choose((self.layout.zero > 0) & (self.layout.shard == self.layout.data), 1, 2)

    @cached_property
    def step_bytes(self) -> tuple[Column, Column]:
        """Bytes that arrive at the heaviest rank in these two transfers: all but its own, of an all-reduce twice."""
        layout, reduced, gathered, times = self.layout, 0.0, 0.0, self.times_reduced
        for numel, size in zip(self.stage_parameter_parts, (layout.data, layout.num_expert_copies), strict=True):
            reduced = reduced + times * layout.traits.gradient_bytes * numel * ring_share(size)
            gathered = gathered + layout.gathered_bytes * numel * ring_share(least(layout.shard, size))
        return reduced, gathered

    def _data_sharded(self) -> tuple[Column, Column]:
        """Return the same with sharded parameters (FSDP): each layer's are gathered before its forward and backward
        pass, and its gradients reduce-scattered after, next to the computation of its neighbors.
        """
        gather, *reductions = self.layer_transfers
        reduce = sum(reductions)
        num_micro, copies = self.layout.num_micro, self.copies_s
        communication = self.heaviest_layers * (2 * gather + reduce)
        computation = self.stage_seconds[0] + copies
        exposed = most(0.0, communication - computation)
        slowed = self.layers.slowed(communication, self.sharded_bytes, exposed)
        return (gather + reduce + exposed) * num_micro, (slowed + copies) * num_micro

    @property
    def sharded_bytes(self) -> Column:
        """Bytes that arrive at the heaviest rank in a micro-batch's gathers and reductions."""
        layout, (gathered, reduced) = self.layout, self.whole_bytes
        among_replicas = 2 * ring_share(layout.data // layout.shard) * reduced / layout.shard
        return (2 * gathered + reduced) * ring_share(layout.shard) + among_replicas

    @property
    def copies_s(self) -> Column:
        """Seconds of FSDP's copies in a micro-batch, next to its other computation.

        FSDP2 copies what was gathered into the parameters, twice; parameters of FSDP1 are views of what was gathered.
        Both copy gradients, cast, into the buffer that is reduced. Programs with whole buffers of their own (Megatron,
        DeepSpeed) gather into these.

        Source:  torch's `foreach_all_gather_copy_out` and `foreach_reduce_scatter_copy_in` (FSDP2); `_flat_param.py`.
        """
        traits, (gathered, reduced) = self.layout.traits, self.whole_bytes
        if traits.keeps_whole_copy:
            return 0.0
        copied = 2 * 2 * gathered if traits.copies_gathered else 0.0
        return self.kernels.moves(copied + reduced + 2 * reduced / traits.gradient_bytes)

    @cached_property
    def layer_transfers(self) -> tuple[Column, Column, Column]:
        """Seconds to gather one layer's sharded parameters, to reduce its gradients among the ranks that share it, and,
        with hybrid sharding, then among its replicas.
        """
        layout, links, data = self.layout, self.links, self._groups["dp"]
        held = Group(layout.shard, layout.tp)
        each = self.stage_parameters / self.heaviest_layers
        gather = links.gather(layout.gathered_bytes * each, held)
        reduce = links.gather(layout.traits.gradient_bytes * each, held)
        others = Group(data.size // held.size, held.size * layout.tp)
        again = links.all_reduce(layout.traits.gradient_bytes * each / held.size, others)
        return gather, reduce, choose(held.size == data.size, 0.0, again)

    @cached_property
    def optimizer_parameters(self) -> tuple[Column, Column]:
        """Numbers of parameters that this rank updates: of those that data-parallel ranks share, and of experts."""
        shared, experts = self.stage_parameter_parts
        layout = self.layout
        copies = least(layout.shard, layout.num_expert_copies)
        return (
            choose(layout.zero > 0, shared / layout.shard, shared),
            choose(layout.zero > 0, experts / copies, experts),
        )


def idle_share(layout: Layout) -> float:
    """Return the idle time of a layout's schedule, of 1F1B's."""
    return _IDLE.get(layout.schedule, 1.0)


def _in_16_bits(layout: Layout) -> Layout:
    """Return the layout with the precision of the output matrix, which stays in bfloat16."""
    return replace(layout, precision="bf16") if layout.narrow else layout
