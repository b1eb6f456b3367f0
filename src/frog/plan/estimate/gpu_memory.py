"""Memory of a training step on the rank that holds most, by kind, in bytes.

Source: states, Rajbhandari et al. 2020, section 3; activations, Korthikanti et al. 2022, section 4, by operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from frog.plan.estimate.step_time import StepModel
from frog.plan.layout import Layout
from frog.plan.model import PlannedModel

LOGIT_BYTES = 12
"""A logit in 16 bits, in float32, its softmax or gradient in float32, and that in 16 bits."""
FUSED_LOGIT_BYTES = 4
"""A logit and its gradient in 16 bits: a compiled or fused loss computes in float32 without storing it."""
PARALLEL_LOGIT_BYTES = 16
"""A logit with torch's loss parallelism (`_nll_loss_and_log_softmax_backward`): four tensors in float32 at once."""
CONTEXT_BYTES = 1.5e9
"""What a process allocates outside of the allocator: CUDA's context, libraries' workspaces, NCCL's buffers."""
ALLOCATOR_SHARE = 0.06
"""Reserved but unused blocks of the caching allocator, of what varies during a step."""
USABLE = 0.95
"""Fraction of a GPU's memory that a chosen layout may need: predictions of memory are less certain than this."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes by kind."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    temporary: float
    """The logits with their loss or, if that moment needs more, a recomputed layer, or the optimizer's own tensors."""
    communication: float
    """Gathered parameters and unreduced gradients at that moment."""
    allocator: float

    @property
    def states(self) -> float:
        return self.parameters + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        return float(sum(vars(self).values()))


def step_memory(step: StepModel) -> StepMemory:
    """Return the memory of the first stage or the last, whichever needs more."""
    ends = (True,) if step.layout.pp == 1 else (True, False)
    return max((_memory(step, first=first) for first in ends), key=lambda memory: memory.total)


def _memory(step: StepModel, *, first: bool) -> StepMemory:
    """Return the memory at the moment that needs most: at the loss, when the last layer's gradient is reduced, or when
    the optimizer steps.

    When the gradient is reduced, the layer's own activations are free; with recomputation it is counted as computed
    again. When the optimizer steps, all activations are free.
    """
    model, layout = step.model, step.layout
    parameters, gradients, optimizer = _states(step)
    each = stage_activations(model, layout)
    in_flight = activations_in_flight(layout) if first else 1.0
    activations = each * in_flight * layout.heaviest_layers(model.layers)
    logits = loss_bytes(model, layout) if layout.pp == 1 or not first else 0.0
    recomputed = layer_activations(model, layout) if layout.recompute in ("full", "alternate") else 0.0
    updated = _held(step, layout.zero > 0)
    stepping = layout.traits.step_bytes * updated
    at_loss, in_backward = _gathered(step)
    reducing = activations - (0.0 if layout.recompute == "full" else each)
    activations, temporary, communication = max(
        (activations, logits, at_loss), (reducing, recomputed, in_backward), (0.0, stepping, 0.0), key=sum
    )
    varying = activations + temporary + communication
    allocator = ALLOCATOR_SHARE * varying + CONTEXT_BYTES
    needed = parameters + gradients + optimizer + varying + allocator
    allocator += max(0.0, min(layout.traits.norm_bytes * updated, kept_room(step.cluster.gpu.memory, needed)))
    return StepMemory(parameters, gradients, optimizer, activations, temporary, communication, allocator)


def kept_room(gpu_bytes: float, needed: Any) -> Any:
    """Return the bytes of freed blocks that the allocator keeps at most, for numbers or numpy columns; below 0: none.

    It frees them before a GPU is full, so that they make no run fail: here, just below what is usable.
    """
    return (USABLE * gpu_bytes - needed) * 0.999


def _states(step: StepModel) -> tuple[float, float, float]:
    """Return the bytes of parameters, gradients and optimizer state:

    Megatron, DeepSpeed   2 + gradient + 12 (a float32 copy and two moments), of which ZeRO 1, 2, 3 split the last one,
                          two, three
    FSDP                  4 + 4 + 8, all sharded
    """
    layout = step.layout
    splits = (layout.zero >= 3, layout.zero >= 2, layout.zero >= 1)
    sizes = state_bytes(layout).values()
    parameters, gradients, optimizer = (size * _held(step, split) for size, split in zip(sizes, splits, strict=True))
    return parameters, gradients, optimizer


def state_bytes(layout: Layout) -> dict[str, int]:
    """Return the bytes of one parameter by kind of state."""
    traits = layout.traits
    sizes = (2, traits.gradient_bytes, 12) if traits.keeps_whole_copy else (4, 4, 8)
    return dict(zip(("parameters", "gradients", "optimizer"), sizes, strict=True))


def _held(step: StepModel, is_split: bool) -> float:
    """Return the number of parameters of the heaviest rank, whole or split over data-parallel ranks."""
    shared, experts = step.stage_parameter_parts
    return step.layout.split(shared, experts) if is_split else shared + experts


def loss_bytes(model: PlannedModel, layout: Layout) -> float:
    """Return the bytes of the logits and their loss. Loss parallelism also keeps the gathered input of the logits."""
    if layout.traits.parallel_loss and layout.tp > 1:
        return layout.tokens * (PARALLEL_LOGIT_BYTES * model.vocab / layout.tp + 2 * model.hidden)
    each = FUSED_LOGIT_BYTES if layout.traits.fuses_loss else LOGIT_BYTES
    return each * layout.tokens * model.vocab / layout.tp


def _gathered(step: StepModel) -> tuple[float, float]:
    """Return the bytes of gathered parameters and unreduced gradients under ZeRO 3, at the loss and in a layer's
    backward pass.

    What is outside of the layers stays gathered from its forward pass to the end, and so does the output matrix's
    gradient. A layer is gathered while the next one is fetched; its gradient lies next to its copy for the reduction.
    A pipeline that keeps what it gathers has both of all its layers. With one data-parallel rank, FSDP only casts its
    parameters, which takes the same copies.
    """
    model, layout = step.model, step.layout
    if layout.zero < 3 or (layout.shard < 2 and layout.traits.keeps_whole_copy):
        return 0.0, 0.0
    each = 2 + layout.traits.gradient_bytes
    if layout.traits.keeps_gathered and layout.pp > 1:
        return (each * step.stage_parameters,) * 2
    ends, head = ends_parameters(model, layout), output_parameters(model, layout)
    layer = (step.stage_parameters - ends) / layout.heaviest_layers(model.layers)
    return 2 * ends, 2 * ends + 2 * head + layer * (4 + each)


def ends_parameters(model: PlannedModel, layout: Layout) -> float:
    """Return the number of parameters of the first stage that are outside of the layers."""
    head = model.head_parameters() if layout.pp == 1 else 0
    return (model.embedding_parameters() + head) / layout.tp


def output_parameters(model: PlannedModel, layout: Layout) -> float:
    """Return the number of parameters of the output matrix, if the first stage is the last one."""
    return model.vocab * model.hidden / layout.tp if layout.pp == 1 else 0.0


def activations_in_flight(layout: Layout) -> float:
    """Return how many micro-batches' activations the first stage keeps.

    Source:  GPipe all, 1F1B p, interleaved p (1 + (p - 1) / (p v)): Korthikanti et al. 2022, section 4.2.3.
    """
    if layout.schedule == "gpipe" and layout.pp > 1:
        return layout.num_micro
    stages, chunks = layout.pp, layout.virtual_stages
    most = stages * (1 + (stages - 1) / (stages * chunks)) if chunks > 1 else stages
    return min(most, layout.num_micro)


def stage_activations(model: PlannedModel, layout: Layout) -> float:
    """Return the bytes that one layer keeps of a micro-batch for its backward pass."""
    if layout.recompute == "full":
        return 2.0 * layout.tokens * model.hidden / layout.stream_split
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


def layer_activations(model: PlannedModel, layout: Layout) -> float:
    """Return the bytes that one layer needs without recomputation. For each token, in 16 bits (products' inputs in
    float8 with that precision):

    the stream      inputs of the norms, and the outputs of those before a product: 8 D; dropout's masks 2 D
    attention       queries, keys, values and output
    scores          if attention keeps them: 2 H T for the softmax, with dropout 5 H T
    FFN             two tensors of its width (gated: three, or four without a fused kernel); of each of a token's
                    experts also its input and output
    """
    tp, tokens, traits = layout.tp, layout.tokens, layout.traits
    saved = 1 if layout.precision == "fp8" else 2
    split = layout.stream_split
    stream = (2 * model.layer_norms + 2 * traits.dropout) * model.hidden / split
    # Megatron gathers the norms' outputs again in the backward pass; torch's tensor parallelism keeps them gathered.
    stream += 2 * saved * model.hidden / (split if traits.keeps_whole_copy else 1)
    heads = 2 * ((model.heads + model.kv_heads) * model.head_dim + model.kv_heads * model.head_dim + model.value_width)
    keeps_scores = traits.attention == "scores" and layout.recompute != "selective"
    scores = (2 + 3 * traits.dropout) * model.heads * layout.seq_len if keeps_scores else 0.0
    copies = (0 if not model.gated else 2 if traits.fuses_gate else 4) + 2 + saved
    if model.moe_layers:
        active = model.experts_per_token * (copies * model.expert_ffn + 4 * model.hidden)
        ffn = active + model.shared_experts * copies * model.expert_ffn
    else:
        ffn = copies * model.ffn
    return tokens * (stream + (heads + scores + ffn) / tp)
