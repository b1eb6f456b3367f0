"""The memory of one rank in a training step, in bytes: states, activations, and tensors that exist for a while.

States are bytes of a parameter by kind, times the parameters that the rank holds (Rajbhandari et al. 2020, sections 3
and 5). Activations are the tensors that each operation keeps for its backward pass (Korthikanti et al. 2022, section
4). Both are the same formulas for all programs: the layout's `Traits` have the sizes of numbers and the tensors that a
program keeps.

`rank_memory` counts a rank of a run of Frog's as its events measure it, with the passes in the schedule's order.
`step_memory` is the heaviest rank's of any program on GPUs, at the moment that needs most, with the allocator's share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frog.core.config import RunConfig
from frog.plan.columns import Column, choose, least, most
from frog.plan.layout import FLOAT_BYTES, Layout, RankShare
from frog.plan.model import PlannedModel, from_model_config
from frog.train.parallel.schedules.schedule import make_schedule

PARTS = ("parameters", "gradients", "optimizer", "activations")
"""The parts that can be measured, as the `memory` event names them."""

STATES = PARTS[:3]

LOGIT_BYTES = 12
"""A logit in 16 bits, in float32, its softmax or gradient in float32, and that in 16 bits."""
FUSED_LOGIT_BYTES = 4
"""A logit and its gradient in 16 bits: a compiled or fused loss computes in float32 without storing it."""
PARALLEL_LOGIT_BYTES = 16
"""A logit with torch's loss parallelism (`_nll_loss_and_log_softmax_backward`): four tensors in float32 at once."""
PRODUCT_BYTES = {"fp8": 1.0, "mxfp8": 1 + 1 / 32, "nvfp4": 1 / 2 + 1 / 16}
"""An input of a product as it is kept for the backward pass, by precision, with its part of a scale: a byte a block."""
CONTEXT_BYTES = 1.5e9
"""What a process allocates outside of the allocator: CUDA's context, libraries' workspaces, NCCL's buffers."""
ALLOCATOR_SHARE = 0.06
"""Reserved but unused blocks of the caching allocator, of what varies during a step."""
USABLE = 0.95
"""Fraction of a GPU's memory that a chosen layout may need: predictions of memory are less certain than this."""


def fit_warning(num_bytes: float, gpu_bytes: float) -> str:
    """Return words about a rank's memory that its GPU does not have, or may not have; empty if it fits."""
    if num_bytes > gpu_bytes:
        return "DOES NOT FIT"
    return "MAY NOT FIT" if num_bytes > USABLE * gpu_bytes else ""


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank by kind."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    temporary: float
    """Recomputed or deferred tensors; on GPUs the logits with their loss or, if that moment needs more, a recomputed
    layer, or the optimizer's own tensors."""
    communication: float
    """Gathered parameters and unreduced gradients."""
    allocator: float = 0.0

    @property
    def states(self) -> float:
        return self.parameters + self.gradients + self.optimizer

    @property
    def passing(self) -> float:
        """Bytes that exist only for a while."""
        return self.temporary + self.communication

    @property
    def total(self) -> float:
        return float(sum(vars(self).values()))


# ---- states ----------------------------------------------------------------------------------------------------------


def state_bytes(layout: Layout, num_moments: int = 2) -> dict[str, int]:
    """Return the bytes of one parameter by kind of state:

    Megatron, DeepSpeed   2 + gradient + 12 (a float32 copy and two moments)
    FSDP, Frog            4 + 4 + 4 for each moment
    """
    traits = layout.traits
    sizes = (2, traits.gradient_bytes, 12) if traits.keeps_whole_copy else (4, 4, 4 * num_moments)
    return dict(zip(STATES, sizes, strict=True))


def states(sizes: dict[str, int], splits: Sequence[Column], whole: Column, split: Column) -> list[Column]:
    """Return the bytes of each kind of state, of `whole` parameters or of those that remain if a kind is split."""
    return [size * choose(is_split, split, whole) for size, is_split in zip(sizes.values(), splits, strict=True)]


# ---- activations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """Tensors of a layer that autograd keeps of a micro-batch for the backward pass."""

    what: str
    numbers: float
    """For each token."""
    num_bytes: float
    """Bytes of one number."""
    split: float = 1
    """Ranks over which they are split."""


def kept_tensors(model: PlannedModel, layout: Layout) -> list[Kept]:
    """Return what a layer keeps without recomputation; what two operations need is kept once.

    Sequence parallelism splits the stream over tp, tensor parallelism the tensors inside the blocks. Megatron gathers
    the norms' outputs again in the backward pass; torch's tensor parallelism and Frog's keep them gathered.
    """
    tp, traits, stream = layout.tp, layout.traits, layout.stream_split
    size, width = traits.number_bytes, model.hidden
    of_product = PRODUCT_BYTES.get(layout.precision, size)
    heads = (model.heads + 2 * model.kv_heads) * model.head_dim + model.value_width
    tensors = [
        Kept("inputs of the norms", model.layer_norms * width, size, stream),
        Kept("inputs of both blocks", 2 * width, of_product, stream if traits.keeps_whole_copy else 1),
        Kept("queries, keys, values and attention's output", heads, size, tp),
    ]
    if traits.dropout:
        tensors.append(Kept("dropout's masks", 2 * width, 1, stream))
    if traits.attention == "scores" and layout.recompute != "selective":
        scores = (2 + 3 * traits.dropout) * model.heads * layout.seq_len
        tensors.append(Kept("scores: softmax in 16 bits; dropout's mask and output", scores, 1, tp))
    inner = float(model.ffn)
    if model.moe_layers:
        active = model.experts_per_token * layout.kept_load(model)
        inner = (active + model.shared_experts) * model.expert_ffn
        # The ranks that split an expert gather their rows.
        tensors.append(Kept("rows that enter and leave experts", 2 * active * width, size, tp / layout.expert_split))
    before = 1
    if model.gated:
        before = 2 if traits.fuses_gate else 3
    tensors.append(Kept("gate, up and activation of the FFN", before * inner, size, tp))
    tensors.append(Kept("input of the FFN's last product", inner, of_product, tp))
    return tensors + (_statistics(model, layout) if traits.keeps_statistics else [])


def _statistics(model: PlannedModel, layout: Layout) -> list[Kept]:
    """Return what eager operations keep next to their inputs: Frog's norms, attention and router.

    A norm keeps its input divided by the root mean squares, and the inverses of these. Ring attention has a copy of its
    output, which is the last product's input.
    """
    size, tp, heads = layout.traits.number_bytes, layout.tp, model.heads
    tensors = [
        Kept("normalized inputs, and inverse roots", model.layer_norms * (model.hidden + 1), size, layout.stream_split),
        Kept("logarithms of the softmax' sums", heads, size, tp),
    ]
    if layout.cp > 1:
        tensors.append(Kept("copy of attention's output", model.value_width, size, tp))
    if model.attention_vectors:
        tensors.append(Kept("norms of heads", (heads + model.kv_heads) * (2 * model.head_dim + 1), size, tp))
    if model.experts:
        # The router's probabilities, and the weights before and after they are scaled to sum to one.
        tensors.append(Kept("router", model.experts + 2 * model.experts_per_token, size, tp))
    return tensors


def layer_activations(model: PlannedModel, layout: Layout) -> float:
    """Return the bytes that one layer keeps of a micro-batch without recomputation."""
    return layout.tokens * sum(kept.numbers * kept.num_bytes / kept.split for kept in kept_tensors(model, layout))


def layer_input(model: PlannedModel, layout: Layout) -> float:
    """Return the bytes of the residual stream before a layer."""
    return layout.traits.number_bytes * layout.tokens * model.hidden / layout.stream_split


def kept_activations(model: PlannedModel, layout: Layout) -> float:
    """Return the bytes that one layer keeps of a micro-batch for its backward pass: a mean layer of the heaviest stage,
    if some layers keep only their inputs.
    """
    if layout.recompute == "full" and layout.recompute_layers is not None:
        held, again = layout.heaviest_layers(model.layers), layout.layers_computed_again(model.layers)
        inputs = layout.kept_layer_inputs(model.layers) * layer_input(model, layout)
        return (inputs + (held - again) * layer_activations(model, layout)) / held
    if layout.recompute == "full":
        return layer_input(model, layout)
    if layout.recompute == "alternate" and not model.moe_layers:
        return _alternate_outputs(model, layout)
    return layer_activations(model, layout) * (0.5 if layout.recompute == "alternate" else 1.0)


def _alternate_outputs(model: PlannedModel, layout: Layout) -> float:
    """Return the bytes of a layer's input and of the outputs that torchtitan's selective recomputation keeps.

    It keeps each second one of the products q, k, v, o, gate, up, down, from the first, and attention's output. With tp
    the last product is a partial sum, in full width, and both reduce-scattered sums are kept.
    """
    tp, split = layout.tp, layout.stream_split
    inside = model.heads * model.head_dim + model.kv_heads * model.head_dim + model.value_width + model.ffn
    outside = model.hidden * ((2 if tp > 1 else 0) / split + 1 / split + (1 if model.gated else 0))
    return 2.0 * layout.tokens * (inside / tp + outside)


def loss_bytes(model: PlannedModel, layout: Layout) -> float:
    """Return the bytes of the logits and their loss.

    Loss parallelism also keeps the gathered input of the logits. Frog's last norm keeps what the others keep; its loss
    computes gradients in the forward pass: of its input and of the weight, or with tp of its logits.
    """
    tokens, traits, logits = layout.tokens, layout.traits, model.vocab / layout.tp
    if traits.loss_keeps_gradients:
        norm = tokens * (2 * model.hidden + 1) / layout.stream_split
        gradient = tokens * logits if layout.tp > 1 else model.vocab * model.hidden
        return traits.number_bytes * (norm + tokens * model.hidden + gradient)
    if traits.parallel_loss and layout.tp > 1:
        return tokens * (PARALLEL_LOGIT_BYTES * model.vocab / layout.tp + 2 * model.hidden)
    each = FUSED_LOGIT_BYTES if traits.fuses_loss else LOGIT_BYTES
    return each * tokens * model.vocab / layout.tp


def activations_in_flight(layout: Layout) -> Column:
    """Return how many micro-batches' activations the first stage keeps.

    Source:  GPipe all, 1F1B p, interleaved p (1 + (p - 1) / (p v)): Korthikanti et al. 2022, section 4.2.3.
    """
    stages, chunks = layout.pp, layout.virtual_stages
    if layout.schedule == "gpipe":
        return choose(stages > 1, layout.num_micro, 1)
    interleaved = stages * (1 + (stages - 1) / (stages * chunks))
    return least(choose(chunks > 1, interleaved, stages), layout.num_micro)


# ---- one rank of a run of Frog's -------------------------------------------------------------------------------------


def rank_memory(config: RunConfig, world_size: int, rank: int = 0) -> Memory:
    """Return the memory of a rank in a step.

    Assumes: float32 throughout, `frog.train.model` in eager mode on a CPU; a strategy from scratch. Sharded gradients
             are freed when they are reduced, sharded parameters when they have been used.
    """
    share = RankShare(config, world_size, rank)
    splits = [kind in config.strategy.entry.splits for kind in STATES]
    sizes = state_bytes(share.layout, len(config.optimizer.state))
    whole, split = share.whole.numel, share.partition_bytes / FLOAT_BYTES
    parameters, gradients, optimizer = states(sizes, splits, whole, split)
    return Memory(
        parameters,
        gradients,
        optimizer + share.kept_bytes,
        activation_bytes(share),
        recomputed_bytes(share) + _deferred_bytes(share),
        _gathered_units(share),
    )


def activation_bytes(share: RankShare) -> int:
    """Return the activations of all forward passes in progress, at their peak.

    With recomputation, without the insides of the one layer in its backward pass, which `recomputed_bytes` gives.
    """
    return _peak(share, {stage: (_stage_bytes(share, stage), 0) for stage in share.stages})


def _stage_bytes(share: RankShare, stage: int) -> int:
    """Return what one micro-batch keeps in one stage; without a pipeline the stage is the full model.

    With context parallelism, all layers share cosine and sine of this rank's positions.
    """
    model, layout = from_model_config(share.model), share.layout
    rotary = FLOAT_BYTES * 2 * (layout.seq_len // layout.cp) * model.head_dim if layout.cp > 1 else 0
    head = loss_bytes(model, layout) if stage == share.num_stages - 1 else 0
    return round(share.stages[stage] * kept_activations(model, layout) + rotary + head)


def recomputed_bytes(share: RankShare) -> int:
    """Return what one layer keeps during its backward pass, with activation checkpointing."""
    model, layout = from_model_config(share.model), share.layout
    if layout.recompute == "none":
        return 0
    return round(layer_activations(model, layout) - layer_input(model, layout))


def _deferred_bytes(share: RankShare) -> int:
    """Return how much the inputs and gradients of the matrices, kept until their W, raise the peak of zero-bubble.

    They are about what a layer keeps without the norms' own: gradients replace q, k and v.
    """
    model, layout = from_model_config(share.model), share.layout
    each = round(layer_activations(model, layout) - 3 * layer_input(model, layout))
    kept = {stage: (_stage_bytes(share, stage), layers * each) for stage, layers in share.stages.items()}
    return _peak(share, kept) - activation_bytes(share)


def _peak(share: RankShare, numbers: dict[int, tuple[int, int]]) -> int:
    """Return the peak of a rank, if each stage's micro-batch keeps some bytes until its B, and others from B to W."""
    if share.layout.pp == 1:
        return numbers[0][0]
    schedule = make_schedule(
        share.config.strategy.schedule, share.layout.pp, share.num_micro, share.layout.virtual_stages
    )
    kept_now = peak = 0
    for action in schedule.ranks[share.place["pp"]]:
        kept, deferred = numbers[action.stage]
        kept_now += {"F": kept, "B": deferred * schedule.splits_backward - kept, "W": -deferred}[action.kind]
        peak = max(peak, kept_now)
    return peak


def _gathered_units(share: RankShare) -> int:
    """Return the bytes of zero's gathered units: the root, the computing layer and the next one."""
    kinds = len(share.config.strategy.entry.splits & {"gradients", "parameters"}) if share.layout.shard > 1 else 0
    return kinds * FLOAT_BYTES * sum(unit.numel for unit in [share.root, *share.layers[:2]])


# ---- the heaviest rank on GPUs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerMemory:
    """Bytes of a micro-batch in one layer, and at the loss."""

    kept: Column
    freed: Column
    """What is free again when the layer's gradient is reduced."""
    recomputed: Column
    """Activations of a layer that is computed again."""
    logits: Column


def layer_memory(model: PlannedModel, layout: Layout) -> LayerMemory:
    """Return the bytes of one layer; with recomputation its own activations count as computed again."""
    kept, logits = kept_activations(model, layout), loss_bytes(model, layout)
    if layout.recompute != "full":
        recomputed = layer_activations(model, layout) if layout.recompute == "alternate" else 0.0
        return LayerMemory(kept, kept, recomputed, logits)
    return LayerMemory(kept, *_freed_and_recomputed(model, layout), logits)


def _freed_and_recomputed(model: PlannedModel, layout: Layout) -> tuple[float, float]:
    """Return what is free when a layer's gradient is reduced, and what was computed again for it, with full
    recomputation, at the moment that needs most.

    Layers that keep everything come last in Megatron's chunks, so that they are free before others are computed again.
    """
    whole = layer_activations(model, layout)
    held, again = layout.heaviest_layers(model.layers), layout.layers_computed_again(model.layers)
    if layout.recompute_layers is None or again == held:
        return 0.0, whole * layout.layers_at_once(model.layers)
    return whole, whole if held - again == 1 else 0.0


def step_memory(model: PlannedModel, layout: Layout, gpu_bytes: float) -> Memory:
    """Return the memory of the first stage or the last, whichever needs more, at the moment that needs most."""
    parts = layout.stage_parameters(model)
    layer, gathered = layer_memory(model, layout), gathered_bytes(model, layout)
    parameters, gradients, optimizer = cluster_states(layout, parts)
    updated = updated_parameters(layout, parts)
    num_layers = layout.heaviest_layers(model.layers)
    memories = []
    for first in (True,) if layout.pp == 1 else (True, False):
        moment = max(moments(layout, num_layers, layer, gathered, updated, first=first), key=sum)
        allocator = allocator_bytes(layout, gpu_bytes, parameters + gradients + optimizer, sum(moment), updated)
        memories.append(Memory(parameters, gradients, optimizer, *moment, allocator))
    return max(memories, key=lambda memory: memory.total)


def cluster_states(layout: Layout, parts: tuple[Column, Column]) -> list[Column]:
    """Return the bytes of parameters, gradients and optimizer state, of which ZeRO 3, 2 and 1 split one more. A part of
    the optimizer's may be in the host's memory.
    """
    splits = (layout.zero >= 3, layout.zero >= 2, layout.zero >= 1)
    *others, optimizer = states(state_bytes(layout), splits, sum(parts), layout.split(*parts))
    return [*others, optimizer * (1 - layout.offload_optimizer)]


def updated_parameters(layout: Layout, parts: tuple[Column, Column]) -> Column:
    """Return the number of parameters that the rank updates."""
    return choose(layout.zero > 0, layout.split(*parts), sum(parts))


def moments(
    layout: Layout,
    num_layers: Column,
    layer: LayerMemory,
    gathered: tuple[Column, Column],
    updated: Column,
    *,
    first: bool,
) -> list[tuple[Column, Column, Column]]:
    """Return activations, temporary tensors and gathered parameters at the loss, when the last layer's gradient is
    reduced, and when the optimizer steps.

    When the gradient is reduced, the layer's own activations are free; when the optimizer steps, all are.
    """
    at_loss, in_backward = gathered
    in_flight = activations_in_flight(layout) if first else 1.0
    activations = layer.kept * in_flight * num_layers
    logits = choose(layout.pp == 1, layer.logits, 0.0) if first else layer.logits
    return [
        (activations, logits, at_loss),
        (activations - layer.freed, layer.recomputed, in_backward),
        (0.0, layout.traits.step_bytes * updated, 0.0),
    ]


@dataclass(frozen=True)
class GatheredParameters:
    """Numbers of parameters on the first stage, of which a rank gathers some at a time."""

    stage: Column
    outside: Column
    """Those outside of the layers."""
    output: Column
    """The output matrix, if this stage has it: its gradient is as large."""
    layer: Column


def gathered_parameters(model: PlannedModel, layout: Layout) -> GatheredParameters:
    """Return what ZeRO 3 can gather."""
    is_only_stage, stage = layout.pp == 1, sum(layout.stage_parameters(model))
    outside = (model.embedding_parameters() + choose(is_only_stage, model.head_parameters(), 0)) / layout.tp
    output = choose(is_only_stage, model.vocab * model.hidden, 0) / layout.tp
    return GatheredParameters(stage, outside, output, (stage - outside) / layout.heaviest_layers(model.layers))


def gathered_bytes(model: PlannedModel, layout: Layout) -> tuple[Column, Column]:
    """Return the bytes of gathered parameters and unreduced gradients under ZeRO 3, at the loss and in a layer's
    backward pass.

    What is outside of the layers stays gathered from its forward pass to the end, and so does the output matrix's
    gradient. A layer is gathered while the next one is fetched; its gradient lies next to its copy for the reduction.
    A pipeline that keeps what it gathers has both of all its layers. With one data-parallel rank, FSDP only casts its
    parameters, which takes the same copies.
    """
    traits, gathered = layout.traits, gathered_parameters(model, layout)
    each = 2 + traits.gradient_bytes
    in_backward = 2 * gathered.outside + 2 * gathered.output + gathered.layer * (4 + each)
    keeps = traits.keeps_gathered & (layout.pp > 1)
    gathers = (layout.zero >= 3) & ((layout.shard >= 2) | (not traits.keeps_whole_copy))
    at_loss, in_backward = (
        choose(gathers, choose(keeps, each * gathered.stage, moment), 0.0)
        for moment in (2 * gathered.outside, in_backward)
    )
    return at_loss, in_backward


def allocator_bytes(layout: Layout, gpu_bytes: float, held: Column, varying: Column, updated: Column) -> Column:
    """Return what the allocator and the process add to states that are held, and to what varies in a step.

    The allocator keeps the norm's freed blocks while there is room, and frees them before a GPU is full, so that they
    make no run fail: here, just below what is usable.
    """
    share = ALLOCATOR_SHARE * varying + CONTEXT_BYTES
    room = (USABLE * gpu_bytes - (held + varying + share)) * 0.999
    return share + most(0.0, least(layout.traits.norm_bytes * updated, room))
