"""A plan of RL post-training as text, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

from frog.core.units import format_count
from frog.plan.memory import fit_warning
from frog.plan.plan_text import layout_words
from frog.plan.rl.post_training import PostTraining

_GIB = 2**30
_PARTS = {
    "generation": "generation",
    "log_probabilities": "log-probabilities",
    "training": "training",
    "synchronization": "weights to the generator",
    "offloading": "states to the host and back",
}


def rl_lines(plan: PostTraining, cluster_name: str) -> Iterator[str]:
    """Yield the lines of a plan: GPUs, memory of both roles, and the parts of a step."""
    run, server = plan.run, plan.server
    where = "the same GPUs" if plan.shares else f"{plan.num_generating} GPUs of its own"
    yield (
        f"{format_count(run.model.num_parameters())} parameters on {plan.num_gpus} {run.cluster.gpu.name} "
        f"({cluster_name})"
    )
    yield f"trainer: {layout_words(run)}, {run.layout.num_gpus} GPUs"
    yield f"generator: {plan.replicas} replicas of tp {server.tp}, {server.precision}, on {where}"
    mean = sum(plan.lengths) / len(plan.lengths)
    yield (
        f"a step of {plan.prompts} prompts x {plan.samples} samples: {plan.prompt} + {mean:,.0f} tokens on average, "
        f"responses of at most {max(plan.lengths):,}; {plan.updates} optimizer steps of {plan.update_sequences} "
        f"sequences"
    )
    if run.assumed:
        yield f"chosen: {', '.join(run.assumed)}"
    yield ""
    yield from _memory_lines(plan)
    yield ""
    yield from _time_lines(plan)


def _memory_lines(plan: PostTraining) -> Iterator[str]:
    available = plan.run.cluster.gpu.memory
    memory, server = plan.run.step.memory, plan.server_memory
    yield "memory of a GPU                              GiB"
    rows = {
        "while training: states": memory.states,
        "  activations, gathered, allocator": memory.total - memory.states,
        "  reference model": plan.training_bytes - memory.total,
    }
    yield from _rows(rows)
    yield _total(plan.training_bytes, available)
    rows = {
        "while generating: weights": server.weights,
        f"  KV cache of {plan.slots} sequences": server.cache,
        "  a prefill, logits, CUDA": server.activations + server.context,
        "  trainer's states, reference": plan.kept_bytes,
    }
    yield from _rows(rows)
    yield _total(plan.generating_bytes, available)


def _rows(rows: dict[str, float]) -> Iterator[str]:
    for name, num_bytes in rows.items():
        if num_bytes:
            yield f"  {name:<38} {num_bytes / _GIB:>8.2f}"


def _total(num_bytes: float, available: float) -> str:
    warning = fit_warning(num_bytes, available)
    return f"  {'total':<38} {num_bytes / _GIB:>8.2f} of {available / _GIB:.1f}{f': {warning}' if warning else ''}"


def _time_lines(plan: PostTraining) -> Iterator[str]:
    total = plan.total_s
    yield "time of a step                                 s   share"
    for name, seconds in ((name, seconds) for name, seconds in vars(plan.step).items() if seconds):
        yield f"  {_PARTS[name]:<38} {seconds:>8.2f}  {100 * seconds / total:>5.1f} %"
    low, high = plan.range_s
    overlap = ", generation next to training" if plan.off_policy else ""
    yield f"  {'total' + overlap:<38} {total:>8.2f}   range {low:.4g} to {high:.4g}"
    if not plan.shares:
        yield f"GPUs wait for the other role {100 * plan.idle_share:.0f} % of their time"
    rollout = plan.rollout
    alone = rollout.num_tokens / max(1e-9, rollout.decode_s)
    yield (
        f"a replica generates {alone:,.0f} tokens/s, at most {plan.slots} sequences at a time; its longest response "
        f"ends the rollout"
    )
    yield f"tokens per second {plan.tokens / total:,.0f}, {plan.tokens / total / plan.num_gpus:,.0f} for each GPU"
    if (price := plan.run.cluster.price) is not None:
        yield f"{price.amount * plan.num_gpus * total / 3600:,.2f} {price.currency} for a step"
    yield "note: no time for rewards, tools or environments, and no critic, is included"


def rl_json(plan: PostTraining) -> str:
    """Return the plan as JSON, in bytes and seconds."""
    content = {
        "num_parameters": plan.run.model.num_parameters(),
        "training_gpus": plan.num_training,
        "generating_gpus": plan.num_generating or plan.num_training,
        "shares_gpus": plan.shares,
        "replicas": plan.replicas,
        "sequences": plan.sequences,
        "tokens": plan.tokens,
        "chosen": plan.run.assumed,
        "memory_bytes": {
            "training": plan.training_bytes,
            "reference": plan.reference_bytes,
            "generating": plan.generating_bytes,
            "available": plan.run.cluster.gpu.memory,
        },
        "sequences_at_a_time": plan.slots,
        "step_s": {**vars(plan.step), "total": plan.total_s},
        "step_low_s": plan.range_s[0],
        "step_high_s": plan.range_s[1],
        "generation_share": plan.step.generation / plan.total_s,
        "idle_share": plan.idle_share,
    }
    return json.dumps(content, indent=2)
