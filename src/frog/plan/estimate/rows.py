"""Rows of a table of runs, in the schema of Frog's measured runs, as models, layouts and clusters.

A row that does not say enough gets a reason instead. What an implementation does (which attention, what overlaps) comes
from its name and year.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from frog.core.errors import ConfigError
from frog.core.schema import shortened
from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.hardware import FAT_TREE, Cluster, default_cluster, fat_tree, similar_gpu
from frog.plan.estimate.layout import Attention, PlannedLayout, Precision, Recompute, Schedule, Traits
from frog.plan.estimate.model import LatentAttention, PlannedModel
from frog.plan.estimate.step_time import StepModel

Row = Mapping[str, str]

_MOST = 10**12
"""Largest number in a cell: above it, a typing mistake."""


@dataclass(frozen=True)
class PlannedRun:
    """A row that can be predicted, and what had to be assumed for it."""

    model: PlannedModel
    layout: PlannedLayout
    cluster: Cluster
    assumed: tuple[str, ...] = ()
    constants: Constants = FITTED

    @cached_property
    def step(self) -> StepModel:
        return StepModel(self.model, self.layout, self.cluster, self.constants)


_USUAL_VOCAB = 50_304
"""GPT-2's vocabulary, padded, for a row that does not state one."""


def read_row(row: Row) -> PlannedRun:
    """Return the run that a row describes.

    Raises:  ConfigError with the reason if it says too little, or its layout is impossible.
    """
    row = {name: (cell or "").strip() for name, cell in row.items()}
    if row.get("scope") == "memory" and not row.get("global_batch"):
        row = {**row, "global_batch": str(_number(row, "dp", 1) * _number(row, "micro_batch", 1))}
    required = ("gpu", "n_gpus", "layers", "hidden", "heads", "seq_len", "global_batch")
    if missing := [name for name in required if not row.get(name)]:
        raise ConfigError(f"not stated: {', '.join(missing)}")
    if row.get("task") == "lora":
        raise ConfigError("task=lora: adapters next to frozen weights are not modelled")
    if row.get("arch") == "hybrid":
        raise ConfigError("arch=hybrid: layers other than attention are not modelled")
    if not any(row.get(name) for name in ("dp", "tp", "pp")):
        raise ConfigError("not stated: dp, tp, pp")
    assumed = () if row.get("vocab") else (f"vocab={_USUAL_VOCAB}",)
    run = planned_run(_model(row), row)
    run = replace(run, assumed=(*assumed, *run.assumed))
    if problem := precision_problem(run.layout, run.cluster):
        raise ConfigError(problem)
    return run


def precision_problem(layout: PlannedLayout, cluster: Cluster) -> str | None:
    """Return why the GPU cannot compute with the layout's precision; None if it can."""
    if not layout.precision.startswith("fp8") or cluster.gpu.peak_fp8:
        return None
    name = f"{cluster.gpu.name} has" if cluster.gpu.name != "own" else "the GPU's profile has"
    return f"precision={layout.precision}: {name} no float8 products"


def planned_run(model: PlannedModel, row: Row, cluster: Cluster | None = None) -> PlannedRun:
    """Return the run of a model whose layout, and unless it is given the cluster, a row describes.

    Raises:  ConfigError with the reason if the layout is impossible.
    """
    assumed: list[str] = []
    layout = _layout(row, assumed)
    if problems := model.problems() or layout.problems(model):
        raise ConfigError("; ".join(problems))
    return PlannedRun(model, layout, cluster or _cluster(row, assumed), tuple(assumed))


def _real(row: Row, name: str) -> float:
    """Read a number; 0 if the cell is empty.

    Raises:  ConfigError if the cell contains something else, or a number that no run has.
    """
    text = row.get(name) or "0"
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{name}={shortened(text)!r}: must be a number")
    if not 0 <= number <= _MOST:
        raise ConfigError(f"{name}={shortened(text)}: must be between 0 and {_MOST:.0e}")
    return number


def _number(row: Row, name: str, default: int = 0) -> int:
    """Read a whole number.

    Raises:  ConfigError if the cell contains something else, or a number that no run has.
    """
    if not row.get(name):
        return default
    number = _real(row, name)
    if not number.is_integer():
        raise ConfigError(f"{name}={shortened(row[name])}: must be a whole number")
    return int(number)


def _choice(row: Row, name: str) -> str:
    """Read a word in lower case."""
    return (row.get(name) or "").lower()


def _yes(row: Row, name: str) -> bool:
    """Read yes or no; an empty cell is no.

    Raises:  ConfigError if the cell contains something else.
    """
    word = _choice(row, name)
    if word not in ("", *_YES, *_NO):
        raise ConfigError(f"{name}={shortened(row[name])!r}: must be yes or no")
    return word in _YES


_YES, _NO = ("yes", "true"), ("no", "false")


def _model(row: Row) -> PlannedModel:
    heads, hidden, layers = _number(row, "heads"), _number(row, "hidden"), _number(row, "layers")
    if heads < 1:
        raise ConfigError("heads=0: must be at least 1")
    notes, experts = row.get("arch_notes") or "", _number(row, "experts")
    dense = re.search(r"first (\d+) layers? dense", notes)
    gated = _yes(row, "gated_ffn")
    model = PlannedModel(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_number(row, "kv_heads", heads),
        head_dim=_number(row, "head_dim", hidden // heads),
        ffn=_number(row, "ffn", 4 * hidden),
        vocab=_number(row, "vocab", _USUAL_VOCAB),
        gated=gated,
        tied=_yes(row, "tied_embeddings"),
        biases=not gated,
        positions=0 if gated else _number(row, "seq_len"),
        experts=experts,
        experts_per_token=_number(row, "experts_per_token", 1) if experts else 0,
        shared_experts=_number(row, "shared_experts") if experts else 0,
        expert_ffn=_number(row, "expert_ffn", _number(row, "ffn")) if experts else 0,
        expert_groups=4 if "deepseek" in (row.get("model") or "").lower() else 0,
        dense_layers=int(dense[1]) if dense else 0,
        prediction_layers=1 if "multi-token-prediction" in notes else 0,
    )
    return _with_windows(_with_latent_attention(model, notes), notes)


def _with_windows(model: PlannedModel, notes: str) -> PlannedModel:
    """Add the window that notes state: `sliding window 128 in every second layer`, or in all layers."""
    found = re.search(r"sliding[- ]window (?:attention )?(?:of )?(\d+)", notes)
    if found is None:
        return model
    second = re.search(r"every (second|other) layer|alternat", notes)
    return replace(model, window=int(found[1]), windowed_layers=model.layers // 2 if second else model.layers)


def _with_latent_attention(model: PlannedModel, notes: str) -> PlannedModel:
    found = re.search(r"q_lora (\d+), kv_lora (\d+), qk (\d+)\+(\d+), v (\d+)", notes)
    if found is None:
        return model
    query, keys, plain, rotary, value = map(int, found.groups())
    return replace(
        model,
        latent=LatentAttention(query, keys, rotary),
        head_dim=plain + rotary,
        value_dim=value,
        kv_heads=model.heads,
    )


def _layout(row: Row, assumed: list[str]) -> PlannedLayout:
    degrees = {name: _number(row, name, 1) for name in ("tp", "pp", "cp", "ep", "virtual_stages")}
    others = degrees["tp"] * degrees["pp"] * degrees["cp"]
    dp = _number(row, "dp") or _number(row, "n_gpus") // max(1, others)
    if dp * others != _number(row, "n_gpus"):
        raise ConfigError(f"dp x tp x pp x cp = {dp * others} is not n_gpus={row['n_gpus']}")
    batch = _number(row, "global_batch")
    micro = _number(row, "micro_batch")
    if not micro:
        micro = _usual_micro_batch(row, batch // max(1, dp), degrees["pp"])
        assumed.append(f"micro_batch={micro}")
    zero = _number(row, "zero", 1)
    if not row.get("zero") and dp > 1:
        assumed.append("zero=1")
    group = _choice(row, "zero_group")
    traits = traits_of(row)
    # Megatron-Core hides messages between stages only in an interleaved pipeline.
    chunked = traits.overlaps_stages and degrees["pp"] > 1 and _number(row, "layers") % (2 * degrees["pp"]) == 0
    usual = "interleaved" if chunked and row.get("layers") else ""
    if degrees["pp"] > 1 and not row.get("virtual_stages") and "interleaved" in (row.get("schedule") or usual):
        degrees["virtual_stages"] = 2
        assumed.append("virtual_stages=2")
    if not any(word in _choice(row, "software") for word in _PROGRAMS):
        assumed.append("software: unknown, planned like DeepSpeed" if row.get("software") else "software=DeepSpeed")
    sequence_parallel = _yes(row, "seq_parallel")
    if not row.get("seq_parallel"):
        sequence_parallel = degrees["tp"] > 1 and _year(row) >= 2023 and _is_modern(row)
        assumed.append(f"seq_parallel={'yes' if sequence_parallel else 'no'}")
    recompute = _recompute(row, assumed)
    if _yes(row, "overlap_moe") and (why := no_overlap(traits, degrees["ep"], batch // max(1, dp * micro))):
        raise ConfigError(f"overlap_moe=yes: {why}")
    return PlannedLayout(
        seq_len=_number(row, "seq_len"),
        global_batch=batch,
        micro_batch=micro,
        dp=dp,
        **degrees,
        schedule=_schedule(row),
        zero=zero,
        zero_group=0 if group in ("", "all") else _number(row, "zero_group"),
        sequence_parallel=sequence_parallel,
        recompute=recompute,
        precision=_precision(row),
        traits=traits,
    )


def no_overlap(traits: Traits, ep: int = 2, num_micro: int = 2) -> str | None:
    """Return why the all-to-all of experts cannot overlap with another micro-batch; None if it can."""
    if not traits.overlaps_experts:
        return "this program has no such overlap; Megatron-Core, NeMo, Megatron-Bridge and HAI-LLM have"
    if ep < 2:
        return "ep=1 sends no tokens to other ranks"
    return "needs two micro-batches in a step" if num_micro < 2 else None


def _schedule(row: Row) -> Schedule:
    words = (row.get("schedule") or "").lower()
    if any(name in words for name in ("zero", "zb", "dualpipe")):
        return "zero_bubble"
    return "gpipe" if any(name in words for name in ("gpipe", "afab", "all forward")) else "1f1b"


def _usual_micro_batch(row: Row, local_batch: int, pp: int) -> int:
    """Return a micro-batch for a row without one: torchtitan makes as many micro-batches as stages; others use 1 with a
    pipeline, and up to 4 without.
    """
    if pp > 1:
        return max(1, local_batch // pp) if "torchtitan" in (row.get("software") or "").lower() else 1
    return max((size for size in (1, 2, 4) if local_batch % size == 0), default=1)


def _recompute(row: Row, assumed: list[str]) -> Recompute:
    value, detail = _choice(row, "recompute"), row.get("recompute_detail") or ""
    if not value:
        assumed.append("recompute=selective")
        return "selective"
    if value == "selective" and "op" in detail.split():
        return "alternate"
    if value not in ("none", "selective", "alternate", "full"):
        raise ConfigError(f"recompute={shortened(value)!r}: must be none, selective or full")
    return value  # type: ignore[return-value]


def _precision(row: Row) -> Precision:
    precision = _choice(row, "precision") or "bf16"
    if precision == "fp8":
        return "fp8_rowwise" if "rowwise" in (row.get("precision_detail") or "") else "fp8"
    if precision not in ("bf16", "fp16", "fp8_rowwise"):
        raise ConfigError(f"precision={shortened(precision)!r} is not modelled: bf16, fp16 or fp8")
    return precision  # type: ignore[return-value]


def _year(row: Row) -> int:
    return _number(row, "year", 2024)


def _is_modern(row: Row) -> bool:
    """True for programs on Transformer Engine or torch's own parallelism, which always split the stream over tp."""
    return any(word in _choice(row, "software") for word in ("nemo", "bridge", "megatron-lm", "torchtitan"))


_PROGRAMS = ("megatron", "nemo", "bridge", "torchtitan", "fsdp", "deepspeed", "intern", "frog", "hai-llm")
"""Parts of the names of programs whose habits are known; others are planned like DeepSpeed."""


def traits_of(row: Row) -> Traits:
    """Return what the named program does, by its documentation:

    Megatron-DeepSpeed, Megatron-LM until 2022    attention with scores and dropout, no overlap
    Megatron-Core, NeMo, Megatron-Bridge          cuDNN's attention; all communication but the experts' overlaps, in
                                                  registered buffers; NeMo and Bridge reduce gradients in 16 bits.
                                                  Bridge's recipes for experts in several NVLink domains overlap their
                                                  all-to-all, except with token drop, and send a token of DeepSeek once
                                                  to a node (DeepEP)
    HAI-LLM                                       DeepSeek's: the experts' all-to-all overlaps, tokens leave in float8,
                                                  which a kernel of its own casts
    torchtitan                                    FlashAttention 2, compiled; async TP where the row says so; since 2025
                                                  its loss is compiled with the model
    InternEvo                                     reduces gradients in 16 bits; AdamW of torch 1.13 on one flat tensor
    Frog                                          float32 weights; gradients overlap if the run file says so
    all until 2023                                FlashAttention 1
    llm-foundry                                   FlashAttention 1 in Triton until 2023; fused loss of flash-attn
    InternEvo, Bridge                             a fused loss, too; NeMo's is partly fused, Megatron's not
    others                                        FlashAttention 2, gradients overlap; FSDP: torch's loss parallelism
    """
    software, year = _choice(row, "software"), _year(row)
    own = "hai-llm" in software
    overlaps_experts = _yes(row, "overlap_moe") or (own and not row.get("overlap_moe"))
    if own:
        return Traits(
            "fused",
            overlaps_parameters=True,
            overlaps_stages=True,
            light_collectives=True,
            overlaps_experts=overlaps_experts,
            dispatches_fp8=True,
            scales_tiles=True,
            sends_once_per_node=True,
            loss_bytes=_EAGER_LOSS,
        )
    older = "megatron-deepspeed" in software or ("megatron-lm" in software and year < 2023)
    if older and "flash" not in software:
        half = _choice(row, "precision") == "fp16"
        return Traits(
            "scores",
            overlaps_gradients=False,
            dropout=True,
            gradient_bytes=2 if half else 4,
            loss_bytes=_MEGATRON_LOSS,
        )
    if any(name in software for name in ("nemo", "bridge", "megatron-core")):
        bridge, nemo = "bridge" in software, "nemo" in software
        drops = "token drop" in _choice(row, "arch_notes")
        return Traits(
            "fused",
            gradient_bytes=2 if nemo or bridge else 4,
            loss_bytes=_FUSED_LOSS if bridge else _JIT_LOSS if nemo else _MEGATRON_LOSS,
            overlaps_parameters=True,
            overlaps_tensor=True,
            overlaps_stages=True,
            sends_groups_once=bridge,
            light_collectives=True,
            overlaps_experts=overlaps_experts,
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
        )
    if software.startswith("frog"):
        return Traits(
            overlaps_gradients="overlapped" in software,
            fuses_gate=False,
            keeps_whole_copy=False,
            loss_bytes=_EAGER_LOSS,
        )
    size = 2 if "intern" in software else 4
    first: Attention = "triton" if "llm-foundry" in software else "flash1"
    whole, flat = "fsdp" not in software, "intern" in software and row.get("zero") != "3"
    return Traits(
        first if year <= 2023 else "flash",
        gradient_bytes=size,
        fuses_gate=whole,
        keeps_whole_copy=whole,
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
into a freed block of another."""
_NORM_BYTES = 4
"""InternEvo's `compute_norm`, before `_step`: float32 copies of all gradients at once, of the parameters' sizes."""


def _cluster(row: Row, assumed: list[str]) -> Cluster:
    gpu = similar_gpu(row["gpu"], _real(row, "gpu_mem_gb"))
    if gpu.name != row["gpu"]:
        assumed.append(f"gpu={gpu.name}")
    usual = default_cluster(gpu)
    per_node = _number(row, "gpus_per_node", usual.gpus_per_node)
    domain = max(1, _number(row, "nvlink_domain", max(usual.nvlink_domain, per_node)))
    if per_node < 1:
        raise ConfigError("gpus_per_node=0: must be at least 1")
    tree = fat_tree({name: _real(row, name) for name in FAT_TREE if row.get(name)})
    if not row.get("inter_node_gbit_s"):
        assumed.append(f"inter_node_gbit_s={usual.node_bandwidth * 8 / 1e9:.0f}")
        return Cluster(gpu, per_node, domain, usual.network_bandwidth_per_gpu * per_node, **tree)
    gbit_s = _real(row, "inter_node_gbit_s")
    if not gbit_s and _number(row, "n_gpus") > domain:
        raise ConfigError("inter_node_gbit_s=0: must be above 0 with several nodes")
    return Cluster(gpu, per_node, domain, gbit_s * 1e9 / 8, **tree)
