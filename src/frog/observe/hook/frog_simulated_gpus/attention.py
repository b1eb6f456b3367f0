"""Attention without the kernels of a GPU, also for sharded tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from .replace import replace, wrap, wrap_everywhere

Function = Callable[..., Any]

_LN2 = math.log(2)
"""FlexAttention's kernels count in powers of two."""


def _kernel(function: Function) -> Function:
    """Allow the plain implementation next to the kernels that a program chooses."""

    def sdpa_kernel(backends: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = [backends] if isinstance(backends, SDPBackend) else list(backends)
        return function([*chosen, *({SDPBackend.MATH} - set(chosen))], *args, **kwargs)

    return sdpa_kernel


def _attention(function: Function) -> Function:
    """Compute the attention of DTensors on their local parts, as DTensor has no rule for the CPU's kernel.

    Each sample and each head is independent of the others, so this is right if all three have the same placements,
    sharded on these dimensions only; else DTensor reports what it cannot do.
    """

    def scaled_dot_product_attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or type(query).__name__ != "DTensor" or not _is_local(query, key, value):
            return function(query, key, value, *args, **kwargs)
        args = tuple(_local(arg) for arg in args)
        kwargs = {name: _local(arg) for name, arg in kwargs.items()}
        out = function(_local(query), _local(key), _local(value), *args, **kwargs)
        return type(query).from_local(out, query.device_mesh, query.placements, run_check=False)

    return scaled_dot_product_attention


def _local(value: Any) -> Any:
    return value.to_local() if type(value).__name__ == "DTensor" else value


def _is_local(query: Any, *others: Any) -> bool:
    if any(getattr(other, "placements", None) != query.placements for other in others):
        return False
    return all(place.is_replicate() or (place.is_shard() and place.dim in (0, 1)) for place in query.placements)


def patch_flex_attention(module: ModuleType) -> None:
    """Compute FlexAttention with all its scores, because the CPU's kernel has no gradients."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    def attention(
        query: Any, key: Any, value: Any, score_mod: Function, block_mask: Any, scale: float, kernel_options: Any
    ) -> Any:
        repeats = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(repeats, dim=1) for tensor in (key, value))
        scores = query.float() @ key.float().transpose(-2, -1) * scale
        indices = [torch.arange(size) for size in scores.shape]
        with TransformGetItemToIndex():
            changed = module._vmap_for_bhqkv(score_mod, prefix=(0,))(scores, *indices)
            kept = module._vmap_for_bhqkv(block_mask[-1], prefix=())(*indices)
        scores = torch.where(kept, changed, -torch.inf)
        weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)  # a row without any key
        return weights.to(query.dtype) @ value, scores.logsumexp(-1) / _LN2, scores.amax(-1) / _LN2

    replace(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    replace(module, "_validate_device", lambda query, key, value: None)
    replace(module, "flex_attention_hop", attention)


def patch_attention() -> None:
    """Replace the choice of kernels, and attention itself."""
    wrap_everywhere(torch.nn.attention, {"sdpa_kernel": _kernel})
    wrap(torch.nn.functional, "scaled_dot_product_attention", _attention)
