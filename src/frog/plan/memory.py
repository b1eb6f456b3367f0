"""One rank's memory by formula, in bytes: parameters, gradients, optimizer state, activations.

The first three are what remains between two steps. Zero's units, which are gathered only while they compute, are
counted separately.
"""

from __future__ import annotations

from dataclasses import dataclass

from frog.core.config import RunConfig
from frog.plan.layout import FLOAT_BYTES, RankShare
from frog.train.parallel.schedules.schedule import make_schedule

PARTS = ("parameters", "gradients", "optimizer", "activations")
"""The parts that can be measured, as the `memory` event names them."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    """Peak of the activations."""
    passing: float
    """Gathered units of parameters and full gradients, which exist only for a while."""

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.passing


def step_memory(config: RunConfig, world_size: int, rank: int = 0) -> Memory:
    """Return the memory of a rank in a step.

    Units:   bytes
    Assumes: float32 throughout, one FFN per layer, the model's own attention; a strategy from scratch.
    Source:  Rajbhandari et al. 2020, sections 3 and 5, without the second, half-precision copy.
    """
    share = RankShare(config, world_size, rank)
    splits = config.strategy.entry.splits
    whole, partition = share.parameter_bytes, share.partition_bytes
    return Memory(
        parameters=partition if "parameters" in splits else whole,
        gradients=partition if "gradients" in splits else whole,
        optimizer=len(config.optimizer.state) * (partition if "optimizer" in splits else whole) + share.kept_bytes,
        activations=activation_bytes(share),
        passing=_passing(share),
    )


def _passing(share: RankShare) -> float:
    """Return the memory of zero's gathered units (the root, the computing layer and the next one), and of activations
    that autograd does not keep: those of a recomputed layer, and of deferred weight gradients.

    Assumes: sharded gradients are freed when they are reduced, sharded parameters when they have been used.
    """
    kinds = len(share.config.strategy.entry.splits & {"gradients", "parameters"}) if share.layout.shard > 1 else 0
    units = FLOAT_BYTES * sum(unit.numel for unit in [share.root, *share.layers[:2]])
    return kinds * units + recomputed_bytes(share) + _deferred_bytes(share)


# ---- activations -----------------------------------------------------------------------------------------------------


def activation_bytes(share: RankShare) -> int:
    """Return the activations that autograd keeps of all forward passes in progress, for their backward passes.

    Units:   bytes; a tensor that two formulas need is kept once
    Assumes: `frog.train.model` in float32, in eager mode, on a CPU. With activation checkpointing, without the insides
             of the one layer in its backward pass, which `recomputed_bytes` gives.
    """
    return FLOAT_BYTES * _peak(share, {stage: (stage_activations(share, stage), 0) for stage in share.stages})


def _peak(share: RankShare, numbers: dict[int, tuple[int, int]]) -> int:
    """Return the peak of a rank, if each stage's micro-batch keeps some bytes until its B, and others from B to W."""
    if share.sizes["pp"] == 1:
        return numbers[0][0]
    strategy = share.config.strategy
    schedule = make_schedule(strategy.schedule, share.sizes["pp"], share.num_micro, share.layout.virtual_stages)
    kept_now = peak = 0
    for action in schedule.ranks[share.place["pp"]]:
        kept, deferred = numbers[action.stage]
        kept_now += {"F": kept, "B": deferred * schedule.splits_backward - kept, "W": -deferred}[action.kind]
        peak = max(peak, kept_now)
    return peak


def stage_activations(share: RankShare, stage: int) -> int:
    """Return the numbers that one micro-batch keeps in one stage; without a pipeline the stage is the full model."""
    checkpointing = share.config.train.activation_checkpointing
    each = layer_input(share) if checkpointing else layer_activations(share)
    head = head_activations(share) if stage == share.num_stages - 1 else 0
    return share.stages[stage] * each + rotary_tables(share) + head


def recomputed_bytes(share: RankShare) -> int:
    """Return the numbers that one layer keeps during its backward pass, with activation checkpointing."""
    inside = layer_activations(share) - layer_input(share)
    return FLOAT_BYTES * inside if share.config.train.activation_checkpointing else 0


def _deferred_bytes(share: RankShare) -> int:
    """Return how much the inputs and gradients of the matrices, kept until their W, raise the peak of zero-bubble.

    They are about what a layer keeps without the norms' own: gradients replace q, k and v.
    """
    per_layer = layer_activations(share) - 3 * layer_input(share)
    stages = share.stages
    numbers = {s: (stage_activations(share, s), stages[s] * per_layer) for s in stages}
    return FLOAT_BYTES * _peak(share, numbers) - activation_bytes(share)


def layer_input(share: RankShare) -> int:
    """Return the residual stream before a layer: B*T*D numbers."""
    return share.layout.tokens * share.model.hidden_size // share.layout.stream_split


def layer_activations(share: RankShare) -> int:
    """Return the numbers that one layer keeps. By operation, with N = B*T tokens:

    input norm      its input and its input divided by the root mean squares (2 N D), and the inverses of these (N)
    q, k, v         their common input, the norm's output (N D)
    attention       q (N D), k and v (2 N K C), its output (N D), the log of each softmax' sum (N H)
    o               its input is that output; with ring attention, a copy of it (N D)
    q and k norms   if there are any: 2 C for each of N H and N K heads, and one number
    second norm     as the first
    the FFN         its input (N D), and the numbers that `_ffn` counts

    Sequence parallelism splits the norms' inputs over tp, tensor parallelism the tensors inside the blocks.
    """
    model, tp, tokens = share.model, share.sizes["tp"], share.layout.tokens
    copies_of_output = 2 if share.sizes["cp"] > 1 else 1
    norms = 2 * _norm(share)
    inputs = 2 * tokens * model.hidden_size
    attention = tokens * ((1 + copies_of_output) * model.hidden_size + 2 * model.kv_width + model.num_attention_heads)
    if model.qk_norm:
        attention += tokens * (model.num_attention_heads + model.num_key_value_heads) * (2 * model.head_dim + 1)
    return norms + inputs + (attention + _ffn(share)) // tp


def _norm(share: RankShare) -> int:
    """A norm of the residual stream keeps 2 N D + N."""
    return 2 * layer_input(share) + share.layout.tokens // share.layout.stream_split


def _ffn(share: RankShare) -> int:
    """Return the numbers that SwiGLU keeps: gate, silu(gate), up and their product: 4 N F.

    A mixture of E experts keeps these for each of a token's A experts, and the rows that enter and leave:
    N A (4 F + 2 D); the router keeps the probabilities, and the weights before and after they are scaled to sum to one.
    """
    model, tokens = share.model, share.layout.tokens
    if model.num_local_experts is None:
        return 4 * tokens * model.intermediate_size
    rows = tokens * model.num_experts_per_tok
    return rows * (4 * model.intermediate_size + 2 * model.hidden_size + 2) + tokens * model.num_local_experts


def head_activations(share: RankShare) -> int:
    """Return the numbers that the last norm and the loss keep: the norm as in a layer, and then

    alone           the gradients, which the loss computes in the forward pass: of its input (N D), of the weight (V D)
    with tp         its input (N D), and the gradient of this rank's logits (N V/tp)
    """
    model, tp, tokens = share.model, share.sizes["tp"], share.layout.tokens
    if tp > 1:
        return _norm(share) + tokens * (model.hidden_size + model.vocab_size // tp)
    return _norm(share) + (tokens + model.vocab_size) * model.hidden_size


def rotary_tables(share: RankShare) -> int:
    """Return the size of cosine and sine of each position: the model's own tables, or with context parallelism the rows
    of this rank's positions, 2 T C numbers, which all layers share.
    """
    return 2 * (share.layout.seq_len // share.layout.cp) * share.model.head_dim if share.sizes["cp"] > 1 else 0
