"""Attention without the kernels of a GPU, also for sharded tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from .replace import wrap, wrap_everywhere

Function = Callable[..., Any]


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


def patch_attention() -> None:
    """Replace the choice of kernels, and attention itself."""
    wrap_everywhere(torch.nn.attention, {"sdpa_kernel": _kernel})
    wrap(torch.nn.functional, "scaled_dot_product_attention", _attention)
