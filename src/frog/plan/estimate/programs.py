"""What programs do that changes the time and memory of a step, by their names and years. None of it is fitted."""

from __future__ import annotations

from dataclasses import replace

from frog.core.errors import ConfigError
from frog.core.schema import shortened
from frog.plan.estimate.cells import Row, read_choice, read_year, read_yes
from frog.plan.layout import Attention, Traits

_REDUCED = {"bf16": 2, "fp32": 4}
"""Bytes of a number in the reduction of gradients, by the column `reduce_dtype`."""


def traits_of(row: Row) -> Traits:
    """Return what the named program does, and in which precision it reduces gradients if the row says so.

    Raises:  ConfigError for another precision.
    """
    traits, dtype = _usual_traits(row), read_choice(row, "reduce_dtype")
    if not dtype:
        return traits
    if dtype not in _REDUCED:
        raise ConfigError(f"reduce_dtype={shortened(dtype)!r}: must be bf16 or fp32")
    return replace(traits, gradient_bytes=_REDUCED[dtype])


def _usual_traits(row: Row) -> Traits:
    """Return what the named program does, by its documentation:

    Megatron-DeepSpeed, Megatron-LM until 2022    attention with scores and dropout, no overlap
    Megatron-Core, NeMo, Megatron-Bridge          cuDNN's attention; all communication but the experts' overlaps; tp
                                                  splits experts, too, except in Bridge's recipes; NeMo and Bridge
                                                  reduce gradients in 16 bits. Bridge's, of 2025, runs in
                                                  registered buffers, with 6 multiprocessors (NCCL 2.24).
                                                  Bridge's recipes for experts in several NVLink domains overlap their
                                                  all-to-all, except with token drop, and send a token of DeepSeek once
                                                  to a node (DeepEP). Those for MXFP8 of 2026 overlap it always, and
                                                  a CUDA graph has the whole step; other rows name CUDA graphs
    HAI-LLM                                       DeepSeek's: the experts' all-to-all overlaps, tokens leave in float8,
                                                  which a kernel of its own casts
    torchtitan                                    FlashAttention 2, compiled, so that Inductor pads products; async TP
                                                  where the row says so; since 2025 its loss is compiled with the model
    llm-foundry, fms-fsdp                         reduce gradients in 16 bits; FSDP1, whose parameters are views
    InternEvo                                     reduces gradients in 16 bits; AdamW of torch 1.13 on one flat tensor
    Frog                                          float32 weights; gradients overlap if the run file says so
    all until 2023                                FlashAttention 1
    llm-foundry                                   FlashAttention 1 in Triton until 2023; fused loss of flash-attn
    InternEvo, Bridge                             a fused loss, too; NeMo's is partly fused, Megatron's not
    others                                        FlashAttention 2, gradients overlap; FSDP: torch's loss parallelism
    """
    software, year = read_choice(row, "software"), read_year(row)
    own = "hai-llm" in software
    overlaps_experts = read_yes(row, "overlap_moe") or (own and not row.get("overlap_moe"))
    if own:
        return Traits(
            "fused",
            overlaps_parameters=True,
            overlaps_stages=True,
            overlaps_experts=overlaps_experts,
            dispatches_fp8=True,
            scales_tiles=True,
            sends_once_per_node=True,
            loss_bytes=_EAGER_LOSS,
        )
    older = "megatron-deepspeed" in software or ("megatron-lm" in software and year < 2023)
    if older and "flash" not in software:
        half = read_choice(row, "precision") == "fp16"
        return Traits(
            "scores",
            overlaps_gradients=False,
            pads_vocab=True,
            dropout=True,
            gradient_bytes=2 if half else 4,
            loss_bytes=_MEGATRON_LOSS,
        )
    if any(name in software for name in ("nemo", "bridge", "megatron-core")):
        bridge, nemo = "bridge" in software, "nemo" in software
        drops = "token drop" in read_choice(row, "arch_notes") or bool(row.get("capacity_factor"))
        blocks = bridge and read_choice(row, "precision") == "mxfp8"
        newest = blocks and year >= 2026 and not drops
        loss_bytes = _JIT_LOSS if nemo else _MEGATRON_LOSS
        if bridge:
            loss_bytes = _FUSED_LOSS
        return Traits(
            "fused",
            gradient_bytes=2 if nemo or bridge else 4,
            pads_vocab=True,
            splits_experts=not bridge,
            collective_sms=6 if bridge else 20,
            loss_bytes=loss_bytes,
            overlaps_parameters=True,
            overlaps_tensor=True,
            overlaps_stages=True,
            sends_groups_once=bridge,
            overlaps_experts=overlaps_experts or (newest and not row.get("overlap_moe")),
            launches_ahead="cuda graph" in software or (blocks and year >= 2026),
            launches_each_expert=True,
            overlaps_far_experts=bridge and not drops and not row.get("overlap_moe"),
        )
    if "torchtitan" in software:
        overlaps, compiles = "async tp" in software, "compile" in software and year >= 2025
        return Traits(
            overlaps_tensor=overlaps,
            keeps_gathered=True,
            keeps_whole_copy=False,
            parallel_loss=True,
            fuses_loss=compiles,
            loss_bytes=_COMPILED_LOSS if compiles else _PARALLEL_LOSS,
            launches_ahead=True,
            pads_products=True,
        )
    if software.startswith("frog"):
        return Traits(
            overlaps_gradients="overlapped" in software,
            fuses_gate=False,
            keeps_whole_copy=False,
            loss_bytes=_EAGER_LOSS,
        )
    size = 2 if any(name in software for name in ("intern", "llm-foundry", "fms-fsdp")) else 4
    first: Attention = "triton" if "llm-foundry" in software else "flash1"
    whole, flat = "fsdp" not in software, "intern" in software
    return Traits(
        first if year <= 2023 else "flash",
        gradient_bytes=size,
        fuses_gate=whole,
        keeps_whole_copy=whole,
        copies_gathered=not any(name in software for name in ("llm-foundry", "fms-fsdp")),
        pads_vocab="megatron" in software,
        parallel_loss=not whole,
        loss_bytes=_FUSED_LOSS if "llm-foundry" in software or "intern" in software else _EAGER_LOSS,
        fuses_loss="llm-foundry" in software,
        step_bytes=_FLAT_ADAM_BYTES if flat else 0,
        norm_bytes=_NORM_BYTES if flat else 0,
    )


_FUSED_LOSS = 2, 4
"""Bytes that the loss moves for each logit, forward and backward. FlashAttention's and Transformer Engine's read it
twice, and write its gradient in its place."""
_COMPILED_LOSS = 4, 4
"""A compiled loss reads logits for the maximum and for the sum, and again for the gradient."""
_JIT_LOSS = 22, 14
"""Megatron's loss with its operations fused (NeMo): casts to float32, exponentials and their quotients are stored."""
_MEGATRON_LOSS = 38, 14
"""Megatron's `vocab_parallel_cross_entropy`: cast 6, maximum 4, difference 8, exponentials 8, sum 4, quotient 8;
backward the product with the incoming gradient 8 and a cast 6."""
_PARALLEL_LOSS = 38, 34
"""torch's loss parallelism: as many, and backward exponentials 8, difference 12, zeros and their update 8, a cast 6."""
_EAGER_LOSS = 14, 22
"""torch's cross entropy in float32: cast 6, log-softmax 8; backward zeros 4, log-softmax 12, a cast 6."""
_FLAT_ADAM_BYTES = 14
"""InternEvo's `HybridZeroOptimizer._step`: gradients flattened in 16 bits, copied to float32; AdamW of torch 1.13 then
has the root of the second moments and its quotient at once. All have the size of the flat parameter, so that none fits
into a freed block of another. With sharded parameters it has a rank's share of them: `FSDPadaptOptimizer.step` also
copies all gradients to float32 before AdamW begins."""
_NORM_BYTES = 4
"""InternEvo's `compute_norm`, before `_step`: float32 copies of all gradients at once, of the parameters' sizes."""
