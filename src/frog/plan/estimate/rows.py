"""Rows of a table of runs, in the schema of Frog's measured runs, as models, layouts and clusters.

A row that does not say enough gets a reason instead. What an implementation does (which attention, what overlaps) comes
from its name and year.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from frog.core.errors import ConfigError
from frog.core.schema import shortened
from frog.plan.estimate.adapter_time import AdaptedStep
from frog.plan.estimate.adapters import Adapters
from frog.plan.estimate.cells import Row, read_choice, read_number, read_real, read_year, read_yes
from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.hardware import FAT_TREE, Cluster, default_cluster, fat_tree, similar_gpu
from frog.plan.estimate.programs import traits_of
from frog.plan.estimate.step_time import StepModel
from frog.plan.layout import Layout, Precision, Recompute, RecomputeMethod, Schedule, Traits
from frog.plan.model import LatentAttention, PlannedModel


@dataclass(frozen=True)
class PlannedRun:
    """A row that can be predicted, and what had to be assumed for it."""

    model: PlannedModel
    layout: Layout
    cluster: Cluster
    assumed: tuple[str, ...] = ()
    constants: Constants = FITTED
    adapters: Adapters | None = None
    """LoRA's; None: all parameters are trained."""
    program: str = ""
    """The first word of the column `software`."""

    @cached_property
    def step(self) -> StepModel:
        if self.adapters is not None:
            return AdaptedStep(self.model, self.layout, self.cluster, self.constants, adapters=self.adapters)
        return StepModel(self.model, self.layout, self.cluster, self.constants)


_USUAL_VOCAB = 50_304
"""GPT-2's vocabulary, padded, for a row that does not state one."""


def read_row(row: Row) -> PlannedRun:
    """Return the run that a row describes.

    Raises:  ConfigError with the reason if it says too little, or its layout is impossible.
    """
    row = {name: (cell or "").strip() for name, cell in row.items()}
    if row.get("scope") == "memory" and not row.get("global_batch"):
        row = {**row, "global_batch": str(read_number(row, "dp", 1) * read_number(row, "micro_batch", 1))}
    required = ("gpu", "n_gpus", "layers", "hidden", "heads", "seq_len", "global_batch")
    if missing := [name for name in required if not row.get(name)]:
        raise ConfigError(f"not stated: {', '.join(missing)}")
    if row.get("task") == "lora":
        raise ConfigError("task=lora: a table has no columns for adapters; frog plan MODEL --lora-r plans them")
    if row.get("arch") == "hybrid":
        raise ConfigError("arch=hybrid: layers other than attention are not modelled")
    assumed: tuple[str, ...] = () if row.get("vocab") else (f"vocab={_USUAL_VOCAB}",)
    run = planned_run(_model(row), row)
    if not any(row.get(name) for name in ("dp", "tp", "pp")):
        assumed = (*assumed, f"dp={run.layout.dp}")
    run = replace(run, assumed=(*assumed, *run.assumed))
    if problem := precision_problem(run.layout, run.cluster):
        raise ConfigError(problem)
    return run


def precision_problem(layout: Layout, cluster: Cluster) -> str | None:
    """Return why the GPU cannot compute with the layout's precision; None if it can."""
    precision, gpu = layout.precision, cluster.gpu
    name = f"{gpu.name} has" if gpu.name != "own" else "the GPU's profile has"
    if precision.startswith("fp8"):
        return None if gpu.peak_fp8 else f"precision={precision}: {name} no float8 products"
    if not layout.narrow or gpu.sustained_narrow(precision):
        return None
    keys = ["sustained_mxfp8"] if precision == "mxfp8" else ["peak_nvfp4", "sustained_nvfp4"]
    own = f"; add {' and '.join(keys)}" if gpu.name == "own" else ", which Blackwell GPUs have"
    return f"precision={precision}: {name} no {precision.upper()} products{own}"


def planned_run(model: PlannedModel, row: Row, cluster: Cluster | None = None) -> PlannedRun:
    """Return the run of a model whose layout, and unless it is given the cluster, a row describes.

    Raises:  ConfigError with the reason if the layout is impossible.
    """
    assumed: list[str] = []
    layout = _layout(row, model, assumed)
    if problems := model.problems() or layout.problems(model):
        raise ConfigError("; ".join(problems))
    planned_on = cluster or _cluster(row, assumed)
    if layout.offload_optimizer and (planned_on.host_link is None or planned_on.host_memory is None):
        raise ConfigError("offload_optimizer: the cluster's profile has no host_link and host_memory")
    program = "".join(read_choice(row, "software").split(",")[0].split()[:1])
    return PlannedRun(model, layout, planned_on, tuple(assumed), program=program)


def _model(row: Row) -> PlannedModel:
    heads, hidden, layers = read_number(row, "heads"), read_number(row, "hidden"), read_number(row, "layers")
    if heads < 1:
        raise ConfigError("heads=0: must be at least 1")
    notes, experts = row.get("arch_notes") or "", read_number(row, "experts")
    dense = re.search(r"first (\d+) layers? dense", notes)
    gated = read_yes(row, "gated_ffn")
    model = PlannedModel(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=read_number(row, "kv_heads", heads),
        head_dim=read_number(row, "head_dim", hidden // heads),
        ffn=read_number(row, "ffn", 4 * hidden),
        vocab=read_number(row, "vocab", _USUAL_VOCAB),
        gated=gated,
        tied=read_yes(row, "tied_embeddings"),
        biases=not gated,
        positions=0 if gated else read_number(row, "seq_len"),
        experts=experts,
        experts_per_token=read_number(row, "experts_per_token", 1) if experts else 0,
        shared_experts=read_number(row, "shared_experts") if experts else 0,
        expert_ffn=read_number(row, "expert_ffn", read_number(row, "ffn")) if experts else 0,
        expert_groups=4 if "deepseek" in (row.get("model") or "").lower() else 0,
        dense_layers=int(dense[1]) if dense else 0,
        prediction_layers=1 if "multi-token-prediction" in notes else 0,
    )
    return _with_windows(_with_latent_attention(model, notes), notes)


def _with_windows(model: PlannedModel, notes: str) -> PlannedModel:
    """Add the window that notes state: `sliding window 128 in every second layer`, or in all layers."""
    match = re.search(r"sliding[- ]window (?:attention )?(?:of )?(\d+)", notes)
    if match is None:
        return model
    second = re.search(r"every (second|other) layer|alternat", notes)
    return replace(model, window=int(match[1]), windowed_layers=model.layers // 2 if second else model.layers)


def _with_latent_attention(model: PlannedModel, notes: str) -> PlannedModel:
    match = re.search(r"q_lora (\d+), kv_lora (\d+), qk (\d+)\+(\d+), v (\d+)", notes)
    if match is None:
        return model
    query, keys, plain, rotary, value = map(int, match.groups())
    return replace(
        model,
        latent=LatentAttention(query, keys, rotary),
        head_dim=plain + rotary,
        value_dim=value,
        kv_heads=model.heads,
    )


def _layout(row: Row, model: PlannedModel, assumed: list[str]) -> Layout:
    degrees = {name: read_number(row, name, 1) for name in ("tp", "pp", "cp", "ep", "virtual_stages")}
    others = degrees["tp"] * degrees["pp"] * degrees["cp"]
    dp = read_number(row, "dp") or read_number(row, "n_gpus") // max(1, others)
    if dp * others != read_number(row, "n_gpus"):
        raise ConfigError(f"dp x tp x pp x cp = {dp * others} is not n_gpus={row['n_gpus']}")
    batch = read_number(row, "global_batch")
    micro = read_number(row, "micro_batch")
    if not micro:
        micro = _usual_micro_batch(row, batch // max(1, dp), degrees["pp"])
        assumed.append(f"micro_batch={micro}")
    zero = read_number(row, "zero", 1)
    if not row.get("zero") and dp > 1:
        assumed.append("zero=1")
    group = read_choice(row, "zero_group")
    traits = traits_of(row)
    # Megatron-Core hides messages between stages only in an interleaved pipeline.
    chunked = traits.overlaps_stages and degrees["pp"] > 1 and read_number(row, "layers") % (2 * degrees["pp"]) == 0
    usual = "interleaved" if chunked and row.get("layers") else ""
    if degrees["pp"] > 1 and not row.get("virtual_stages") and "interleaved" in (row.get("schedule") or usual):
        degrees["virtual_stages"] = 2
        assumed.append("virtual_stages=2")
    if not any(word in read_choice(row, "software") for word in _PROGRAMS):
        assumed.append("software: unknown, planned like DeepSpeed" if row.get("software") else "software=DeepSpeed")
    sequence_parallel = read_yes(row, "seq_parallel")
    if not row.get("seq_parallel"):
        sequence_parallel = degrees["tp"] > 1 and read_year(row) >= 2023 and _is_modern(row)
        assumed.append(f"seq_parallel={'yes' if sequence_parallel else 'no'}")
    recompute = _recompute(row, assumed)
    if read_yes(row, "overlap_moe") and (why := no_overlap(traits, degrees["ep"], batch // max(1, dp * micro))):
        raise ConfigError(f"overlap_moe=yes: {why}")
    return Layout(
        seq_len=read_number(row, "seq_len"),
        global_batch=batch,
        micro_batch=micro,
        dp=dp,
        **degrees,
        expert_tp=_expert_tp(row, model, traits, dp, degrees, assumed),
        capacity_factor=_capacity_factor(row),
        imbalance=read_real(row, "imbalance") if row.get("imbalance") else None,
        schedule=_schedule(row),
        zero=zero,
        zero_group=0 if group in ("", "all") else read_number(row, "zero_group"),
        sequence_parallel=sequence_parallel,
        recompute=recompute,
        recompute_layers=read_number(row, "recompute_layers") if row.get("recompute_layers") else None,
        recompute_method=_recompute_method(row),
        offload_optimizer=read_real(row, "offload_optimizer"),
        precision=_precision(row),
        traits=traits,
    )


def _expert_tp(
    row: Row, model: PlannedModel, traits: Traits, dp: int, degrees: dict[str, int], assumed: list[str]
) -> int | None:
    """Return over how many ranks experts are split: what the row states, or the program's habit if that is possible."""
    if row.get("expert_tp"):
        return read_number(row, "expert_tp")
    tp, ep = degrees["tp"], degrees["ep"]
    if not model.experts or tp == 1 or ep == 1:
        return None
    divides = dp * tp * degrees["cp"] % (ep * tp) == 0 and model.expert_ffn % tp == 0
    usual = tp if traits.splits_experts and divides else 1
    assumed.append(f"expert_tp={usual}")
    return usual


def _capacity_factor(row: Row) -> float | None:
    """Return the capacity that a row states; 1 if it only notes token drop: the default of Megatron-Bridge."""
    if row.get("capacity_factor"):
        return read_real(row, "capacity_factor")
    return 1.0 if "token drop" in read_choice(row, "arch_notes") else None


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
    value, detail = read_choice(row, "recompute"), row.get("recompute_detail") or ""
    if not value:
        assumed.append("recompute=selective")
        return "selective"
    if value == "selective" and "op" in detail.split():
        return "alternate"
    if value not in ("none", "selective", "alternate", "full"):
        raise ConfigError(f"recompute={shortened(value)!r}: must be none, selective or full")
    return value  # type: ignore[return-value]


def _recompute_method(row: Row) -> RecomputeMethod:
    value = read_choice(row, "recompute_method")
    if value not in ("", "block", "uniform"):
        raise ConfigError(f"recompute_method={shortened(value)!r}: must be block or uniform")
    if value and not row.get("recompute_layers"):
        raise ConfigError(f"recompute_method={value}: of how many layers, in recompute_layers?")
    return "uniform" if value == "uniform" else "block"


def _precision(row: Row) -> Precision:
    precision = read_choice(row, "precision") or "bf16"
    if precision == "fp8":
        return "fp8_rowwise" if "rowwise" in (row.get("precision_detail") or "") else "fp8"
    if precision not in ("bf16", "fp16", "fp8_rowwise", "mxfp8", "nvfp4"):
        raise ConfigError(f"precision={shortened(precision)!r} is not modelled: bf16, fp16, fp8, mxfp8 or nvfp4")
    return precision  # type: ignore[return-value]


def _is_modern(row: Row) -> bool:
    """True for programs on Transformer Engine or torch's own parallelism, which always split the stream over tp."""
    return any(word in read_choice(row, "software") for word in ("nemo", "bridge", "megatron-lm", "torchtitan"))


_PROGRAMS = ("megatron", "nemo", "bridge", "torchtitan", "fsdp", "deepspeed", "intern", "frog", "hai-llm")
"""Parts of the names of programs whose habits are known; others are planned like DeepSpeed."""


def _cluster(row: Row, assumed: list[str]) -> Cluster:
    gpu = similar_gpu(row["gpu"], read_real(row, "gpu_mem_gb"))
    if gpu.name != row["gpu"]:
        assumed.append(f"gpu={gpu.name}")
    usual = default_cluster(gpu)
    per_node = read_number(row, "gpus_per_node", usual.gpus_per_node)
    domain = max(1, read_number(row, "nvlink_domain", max(usual.nvlink_domain, per_node)))
    if per_node < 1:
        raise ConfigError("gpus_per_node=0: must be at least 1")
    tree = fat_tree({name: read_real(row, name) for name in FAT_TREE if row.get(name)})
    same_node = per_node == usual.gpus_per_node
    host: dict[str, Any] = {"host_link": usual.host_link, "host_memory": usual.host_memory} if same_node else {}
    if not row.get("inter_node_gbit_s"):
        assumed.append(f"inter_node_gbit_s={usual.node_bandwidth * 8 / 1e9:.0f}")
        return Cluster(gpu, per_node, domain, usual.network_bandwidth_per_gpu * per_node, **host, **tree)
    gbit_s = read_real(row, "inter_node_gbit_s")
    if not gbit_s and read_number(row, "n_gpus") > domain:
        raise ConfigError("inter_node_gbit_s=0: must be above 0 with several nodes")
    return Cluster(gpu, per_node, domain, gbit_s * 1e9 / 8, **host, **tree)
