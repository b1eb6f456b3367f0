"""The plan of one run as text, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from frog.core.units import format_count, format_seconds
from frog.plan.estimate.adapter_time import AdaptedStep
from frog.plan.estimate.adapters import adapter_words
from frog.plan.estimate.budget import RESTART_S, Budget, num_nodes, training_budget
from frog.plan.estimate.explain import (
    LEAST_SHARE,
    Term,
    explain_budget,
    explain_memory,
    explain_range,
    explain_step,
    explain_utilization,
)
from frog.plan.estimate.explain_adapters import explain_adapters
from frog.plan.estimate.nearest import nearest_runs
from frog.plan.estimate.packing import Packing, Unpacked
from frog.plan.estimate.predict import spread_of
from frog.plan.estimate.rows import PlannedRun
from frog.plan.estimate.step_time import StepModel
from frog.plan.estimate.utilization import losses, utilization
from frog.plan.memory import Memory, fit_warning

_GIB = 2**30


def plan_lines(
    run: PlannedRun,
    cluster_name: str,
    tokens: float | None,
    notes: Iterable[str],
    *,
    explain: bool,
    packing: tuple[Packing, Unpacked] | None = None,
) -> list[str]:
    """Return the lines of a plan: the run, memory, time, utilization, and the training of `tokens`."""
    step = run.step
    memory = step.memory
    budget = None if tokens is None else training_budget(step, tokens)
    lines = [*run_lines(run, cluster_name), *([] if packing is None else _packing_lines(run, *packing))]
    lines += ["", *_memory_lines(run, memory), "", *_time_lines(run, step)]
    lines += ["", *_utilization_lines(step)]
    if budget is not None:
        lines += ["", *_budget_lines(budget)]
    lines += [f"note: {note}" for note in (*notes, *run.layout.notes(run.model))]
    if explain:
        if isinstance(step, AdaptedStep):
            terms = [*explain_adapters(step), *explain_range(run), *explain_utilization(step)]
        else:
            terms = [
                *explain_memory(step, memory),
                *explain_step(step),
                *explain_range(run),
                *explain_utilization(step),
            ]
        terms += explain_budget(step, budget) if budget else ()
        lines += ["", *_explained(terms)]
    return lines


def layout_words(run: PlannedRun) -> str:
    """Describe a layout: `dp 8 x tp 4 x pp 2, zero 1, micro-batch 1, selective recomputation, bf16`."""
    layout = run.layout
    sizes = {"dp": layout.dp, "tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "ep": layout.ep}
    if run.model.moe_layers and max(layout.tp, layout.expert_split) > 1:
        sizes["expert tp"] = layout.expert_split
    mesh = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1 or name == "expert tp") or "one GPU"
    words = [mesh, f"zero {layout.zero}"]
    if layout.zero_group:
        words[-1] += f" over {layout.shard}"
    if layout.pp > 1:
        chunked = layout.virtual_stages > 1
        words.append("interleaved" if chunked and layout.schedule == "1f1b" else layout.schedule.replace("_", " "))
        words += [f"{layout.virtual_stages} virtual stages"] if chunked else []
    words.append(f"micro-batch {layout.micro_batch}")
    words.append("no recomputation" if layout.recompute == "none" else f"{layout.recompute} recomputation")
    if layout.recompute_layers is not None:
        chunk = "stage" if layout.pp > 1 else "rank"
        if layout.virtual_stages > 1:
            chunk = "chunk"
        block = layout.recompute_method == "block"
        many = layout.recompute_layers
        layers = f"{many} layer{'s' if many > 1 else ''}"
        words[-1] += f" of {layers} of each {chunk}" if block else f", {layers} at once"
    if layout.offload_optimizer:
        words.append(f"{100 * layout.offload_optimizer:g} % of the optimizer on the host")
    words += [f"capacity factor {layout.capacity_factor:g}"] if layout.capacity_factor is not None else []
    words += [f"imbalance {layout.imbalance:g}"] if layout.imbalance is not None else []
    return ", ".join([*words, layout.precision])


def run_lines(run: PlannedRun, cluster_name: str) -> Iterator[str]:
    """Yield the model, the GPUs, the layout and the batch."""
    layout = run.layout
    nodes = num_nodes(layout.num_gpus, run.cluster)
    yield (
        f"{format_count(run.model.num_parameters())} parameters on {layout.num_gpus} {run.cluster.gpu.name} "
        f"({cluster_name}, {nodes} node{'s' if nodes > 1 else ''})"
    )
    yield layout_words(run)
    if isinstance(run.step, AdaptedStep):
        yield adapter_words(run.step.adapters, run.model)
    yield (
        f"a step of {layout.global_batch} x {layout.seq_len} tokens, {layout.num_micro} micro-batches for each of "
        f"{layout.dp} data-parallel ranks"
    )
    if run.assumed:
        yield f"chosen: {', '.join(run.assumed)}"


def _packing_lines(run: PlannedRun, packing: Packing, unpacked: Unpacked) -> Iterator[str]:
    """Yield how full packed sequences are, and what the same documents take without packing."""
    layout, lengths = run.layout, packing.cut
    words = f"{lengths[0]}" if len(set(lengths)) == 1 else f"{min(lengths)} to {max(lengths)}"
    seen = run.model.mean_keys(layout.seq_len) / 2
    yield (
        f"packing: documents of {words} tokens, mean {packing.mean_length:,.0f}; {packing.documents_per_sequence:.1f} "
        f"in a sequence, {100 * packing.fullness:.1f} % full; a token sees {seen:,.0f} others on average"
    )
    if packing.num_cut:
        yield f"  {packing.num_cut:,} of {len(lengths):,} documents are longer and cut: {layout.seq_len} tokens"
    yield (
        f"  without: padded to the longest of {layout.micro_batch}, {unpacked.seq_len:,} tokens, "
        f"{100 * unpacked.padding:.0f} % padding, {unpacked.slowdown:.2g} x the time for the same documents"
    )


def _memory_lines(run: PlannedRun, memory: Memory) -> Iterator[str]:
    available = run.cluster.gpu.memory
    yield "memory of the rank that holds most           GiB"
    for kind, num_bytes in vars(memory).items():
        yield f"  {_MEMORY_KINDS[kind]:<38} {num_bytes / _GIB:>8.2f}"
    warning = fit_warning(memory.total, available)
    verdict = f": {warning}" if warning else ""
    yield f"  {'total':<38} {memory.total / _GIB:>8.2f} of {available / _GIB:.1f}{verdict}"
    if warning:
        yield "  try: --recompute full, more ranks of --tp or --pp, or frog plan search for layouts that fit"


_MEMORY_KINDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "temporary": "logits or a recomputed layer",
    "communication": "gathered parameters, their gradients",
    "allocator": "allocator's share, CUDA and NCCL",
}


def _time_lines(run: PlannedRun, step: StepModel) -> Iterator[str]:
    whole, spread = step.step, spread_of(run)
    yield "step time by cause                             s    forward   backward   recomp."
    passes = [part * run.layout.num_micro for part in vars(step.stages[0]).values()]
    for cause, seconds in vars(whole).items():
        if seconds / whole.total < LEAST_SHARE:
            continue
        split = [f"{getattr(part, cause):>10.3f}" for part in passes if hasattr(part, cause)]
        yield f"  {_TIME_CAUSES[cause]:<38} {seconds:>8.3f} {' '.join(split)}".rstrip()
    low, high = whole.total / (1 + spread), whole.total * (1 + spread)
    yield f"  {'total':<38} {whole.total:>8.3f}   range {low:.4g} to {high:.4g}"
    distance, near = nearest_runs(run)[0]
    yield (
        f"  nearest measured run: {near.source}, {format_count(near.parameters)} parameters on {near.num_gpus:.0f} "
        f"{near.gpu}, which differs by a factor of {2**distance:.2g} in all, predicted {100 * abs(near.error):.0f} % "
        f"{'high' if near.error > 0 else 'low'}"
    )


_TIME_CAUSES = {
    "products": "matrix products",
    "attention": "attention",
    "memory": "memory-bound operations",
    "launch": "launches",
    "tensor": "tensor parallelism, exposed",
    "context": "context parallelism, exposed",
    "expert": "expert parallelism, exposed",
    "pipeline": "messages between stages, exposed",
    "data": "data parallelism, exposed",
    "bubble": "pipeline bubble",
    "optimizer": "optimizer",
    "other": "fixed time, waiting for other nodes",
}


def _utilization_lines(step: StepModel) -> Iterator[str]:
    layout = step.layout
    rate = layout.global_batch * layout.seq_len / step.step.total
    yield f"tokens per second {rate:,.0f}, {rate / layout.num_gpus:,.0f} for each GPU"
    yield f"MFU {100 * utilization(step):.1f} %; the rest of the peak:"
    shares = sorted(losses(step).items(), key=lambda pair: -pair[1])
    for cause, share in shares:
        if share >= LEAST_SHARE:
            yield f"  {cause:<38} {100 * share:>6.1f} %"


def _budget_lines(budget: Budget) -> Iterator[str]:
    hours = budget.wall_s / 3600
    yield f"training of {format_count(budget.tokens)} tokens: {budget.steps:,} steps, {hours / 24:.2f} days"
    yield f"  {budget.gpu_hours:,.0f} GPU-hours"
    drawn = "whole nodes" if budget.whole_nodes else "the GPUs alone: the profile has no node_power"
    yield f"  {budget.energy_wh / 1e6:,.2f} MWh at most, {drawn}"
    if budget.money is None:
        yield '  money: the profile has no price; --price "2.50 USD/h" adds it'
    else:
        yield f"  {budget.money:,.0f} {budget.currency}"
    checkpoints = budget.checkpoints
    if checkpoints is None:
        yield "  checkpoints: the profile has no storage, what one node writes per second"
        return
    yield f"  a checkpoint of {checkpoints.num_bytes / _GIB:,.0f} GiB stalls for {format_seconds(checkpoints.write_s)}"
    if checkpoints.failure_s is None or checkpoints.daly_s is None or checkpoints.young_s is None:
        yield "  failures: the profile has no node_mtbf, mean time between failures of one node"
        return
    yield (
        f"  {budget.failures:,.1f} failures expected, one in {checkpoints.failure_s / 3600:,.1f} h; save every "
        f"{format_seconds(checkpoints.young_s)} (Young) or {format_seconds(checkpoints.daly_s)} (Daly)"
    )
    lost = 100 * (checkpoints.slowdown - 1)
    yield f"  both cost {lost:.1f} % of the time, with a restart of {format_seconds(RESTART_S)} (in the days above)"


def _explained(terms: Iterable[Term]) -> Iterator[str]:
    for term in terms:
        source = f"   [{term.source}]" if term.source else ""
        yield f"{term.name} = {term.formula}{source}"
        yield f"    = {term.sum} = {term.value:.6g} {term.unit}".rstrip()


def plan_json(run: PlannedRun, tokens: float | None, packing: tuple[Packing, Unpacked] | None = None) -> str:
    """Return the plan as JSON, in bytes and seconds."""
    step = run.step
    memory, spread = step.memory, spread_of(run)
    content: dict[str, Any] = {
        "num_parameters": run.model.num_parameters(),
        "num_gpus": run.layout.num_gpus,
        "layout": layout_words(run),
        "chosen": run.assumed,
        "notes": run.layout.notes(run.model),
        "memory_bytes": {**vars(memory), "total": memory.total, "available": run.cluster.gpu.memory},
        "step_s": {**vars(step.step), "total": step.step.total},
        "step_low_s": step.step.total / (1 + spread),
        "step_high_s": step.step.total * (1 + spread),
        "mfu": utilization(step),
        "lost": losses(step),
    }
    if isinstance(step, AdaptedStep):
        adapters = step.adapters
        content["adapters"] = {
            "r": adapters.rank,
            "targets": adapters.targets,
            "quantized": adapters.quantized,
            "trained_parameters": step.trained_parameters,
        }
    if packing is not None:
        documents, unpacked = packing
        content["packing"] = {
            "documents_per_sequence": documents.documents_per_sequence,
            "fullness": documents.fullness,
            "cut": documents.num_cut,
            "unpacked_tokens": unpacked.seq_len,
            "unpacked_padding": unpacked.padding,
            "unpacked_slowdown": unpacked.slowdown,
        }
    if tokens is not None:
        budget = training_budget(step, tokens)
        content["training"] = {**vars(budget), "checkpoints": budget.checkpoints and vars(budget.checkpoints)}
    return json.dumps(content, indent=2)
