"""A plan for serving as text, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

from frog.core.units import count, format_count
from frog.plan.serve.serving import SPREAD, Serving

_GIB = 2**30

_MEMORY = {
    "weights": "weights",
    "cache": "KV cache of the batch",
    "activations": "a prefill, logits",
    "context": "CUDA and NCCL",
}
_DECODE = {
    "weights": "products, reading weights",
    "arithmetic": "products, computing",
    "cache": "attention",
    "memory": "memory-bound operations",
    "exchange": "all-reduces of tensor parallelism",
}


def serving_lines(plan: Serving, cluster_name: str) -> Iterator[str]:
    """Yield the lines of a plan for serving."""
    server = plan.server
    yield (
        f"{format_count(server.model.num_parameters())} parameters on {plan.num_gpus} {server.cluster.gpu.name} "
        f"({cluster_name}): {_replicas(plan)}, {server.precision}, KV cache in {8 * server.cache_bytes} bits"
    )
    yield f"{plan.batch} sequences at a time on a replica: prompts of {plan.prompt} tokens, {plan.generate} generated"
    yield ""
    yield from _memory_lines(plan)
    yield ""
    yield from _time_lines(plan)


def _replicas(plan: Serving) -> str:
    each = f"tp {plan.server.tp}" if plan.server.tp > 1 else "one GPU"
    return f"{plan.replicas} replicas of {each}" if plan.replicas > 1 else f"one replica, {each}"


def _memory_lines(plan: Serving) -> Iterator[str]:
    memory, gpu = plan.memory, plan.server.cluster.gpu
    yield "memory of a GPU                              GiB"
    for kind, num_bytes in vars(memory).items():
        yield f"  {_MEMORY[kind]:<38} {num_bytes / _GIB:>8.2f}"
    verdict = "" if plan.fits else ": DOES NOT FIT"
    yield (
        f"  {'total':<38} {memory.total / _GIB:>8.2f} of {plan.usable_bytes / _GIB:.1f}, {100 * plan.usable:.0f} % of "
        f"{gpu.memory / _GIB:.1f}{verdict}"
    )
    cache = plan.server.cache
    yield f"  KV cache of a token: {cache.token_bytes / 1024:,.1f} KiB on each GPU{_window(plan)}"
    if plan.largest_batch:
        yield f"  largest batch that fits: {plan.largest_batch:,} sequences on each replica"
    else:
        yield "  not even one sequence fits; try: more --tp, --precision fp8, or shorter prompts"


def _window(plan: Serving) -> str:
    model = plan.server.model
    if not model.windowed_layers or model.window >= plan.prompt + plan.generate:
        return ""
    return f"; {model.windowed_layers} of {model.layers} layers keep {model.window} tokens"


def _time_lines(plan: Serving) -> Iterator[str]:
    decode, prompts = plan.decode, f"prefill of {count(plan.batch, 'prompt')}"
    yield "time                                          ms"
    yield f"  {'first token of a prompt, idle server':<38} {1e3 * plan.first_token_s:>8.1f}"
    yield f"  {prompts:<38} {1e3 * plan.prefill_s:>8.1f}"
    for cause, seconds in vars(decode).items():
        if seconds >= 0.0005 * decode.total and seconds >= 5e-6:
            yield f"    {_DECODE[cause]:<36} {1e3 * seconds:>8.2f}"
    low, high = _range(1e3 * decode.total)
    yield f"  {'an output token of each sequence':<38} {1e3 * decode.total:>8.2f}   range {low:.3g} to {high:.3g}"
    rate = plan.tokens_per_s
    low, high = _range(rate)
    yield (
        f"output tokens per second {rate:,.0f}, {rate / plan.num_gpus:,.0f} for each GPU, "
        f"{1 / decode.total:,.1f} for each sequence between prefills; range {low:,.0f} to {high:,.0f}"
    )
    if (cost := plan.cost_per_million) is None:
        yield 'cost: the profile has no price; --price "2.50 USD/h" adds it'
    elif price := plan.server.cluster.price:
        yield f"{cost:,.2f} {price.currency} for a million output tokens, with their prompts"
    yield "note: no time of a scheduler, of sampling or of the network to clients is included"


def _range(value: float) -> tuple[float, float]:
    return value / (1 + SPREAD), value * (1 + SPREAD)


def serving_json(plan: Serving) -> str:
    """Return the plan as JSON, in bytes and seconds."""
    server, memory, decode = plan.server, plan.memory, plan.decode
    low, high = _range(plan.tokens_per_s)
    content = {
        "num_parameters": server.model.num_parameters(),
        "num_gpus": plan.num_gpus,
        "replicas": plan.replicas,
        "tp": server.tp,
        "precision": server.precision,
        "batch": plan.batch,
        "prompt": plan.prompt,
        "generate": plan.generate,
        "memory_bytes": {**vars(memory), "total": memory.total, "usable": plan.usable_bytes},
        "cache_bytes_per_token": server.cache.token_bytes,
        "largest_batch": plan.largest_batch,
        "first_token_s": plan.first_token_s,
        "prefill_s": plan.prefill_s,
        "output_token_s": {**vars(decode), "total": decode.total},
        "batch_s": plan.batch_s,
        "tokens_per_s": plan.tokens_per_s,
        "tokens_per_s_low": low,
        "tokens_per_s_high": high,
        "cost_per_million_tokens": plan.cost_per_million,
    }
    return json.dumps(content, indent=2)
