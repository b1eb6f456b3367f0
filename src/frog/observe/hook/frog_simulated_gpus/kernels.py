"""What a GPU computes with kernels of its own: mixed precision, attention, and the code of torch.compile."""

from __future__ import annotations

import functools
import math
import os
import shutil
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from . import streams
from .placement import first_place, paused, place_all
from .replace import remark, replace, wrap, wrap_everywhere

Function = Callable[..., Any]


def _for_cpu(function: Function) -> Function:
    """Translate a device type given as the first argument."""

    def call(device_type: Any = "cuda", *args: Any, **kwargs: Any) -> Any:
        return function("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return call


def _default_dtype(device_type: str) -> torch.dtype | None:
    """Return CUDA's default, float16, which the CPU's autocast can also use."""
    return torch.float16 if device_type == "cuda" else None


def _autocast(function: Function) -> Function:
    def __init__(
        self: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        cpu = "cpu" if device_type == "cuda" else device_type
        function(self, cpu, dtype or _default_dtype(device_type), enabled, cache_enabled)

    return __init__


def _cuda_autocast(function: Function) -> Function:
    def __init__(
        self: Any,
        enabled: bool = True,
        dtype: torch.dtype = torch.float16,
        cache_enabled: bool = True,
    ) -> None:
        torch.autocast.__init__(self, "cuda", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    return __init__


def _scaler(function: Function) -> Function:
    def __init__(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        function(self, "cpu" if str(device).startswith("cuda") else device, *args, **kwargs)

    return __init__


def _cuda_scaler(function: Function) -> Function:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        torch.amp.GradScaler.__init__(self, "cuda", *args, **kwargs)

    return __init__


def patch_amp() -> None:
    """Replace autocast, GradScaler and the functions that read autocast's state."""
    wrap(torch.autocast, "__init__", _autocast)
    wrap(torch.cuda.amp.autocast, "__init__", _cuda_autocast)
    wrap(torch.amp.GradScaler, "__init__", _scaler)
    wrap(torch.cuda.amp.GradScaler, "__init__", _cuda_scaler)
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype", "set_autocast_enabled"):
        wrap(torch, name, _autocast_state)
    replace(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cpu"))
    wrap(torch.amp.autocast_mode, "is_autocast_available", _for_cpu)
    torch.amp.is_autocast_available = torch.amp.autocast_mode.is_autocast_available
    for name in ("custom_fwd", "custom_bwd"):
        wrap(torch.amp, name, _custom_autograd)


def _autocast_state(function: Function) -> Function:
    """Translate "cuda", also where no device type means it."""

    def call(*args: Any) -> Any:
        if args[:1] == ("cuda",) or not args or isinstance(args[0], bool):
            args = ("cpu", *(args[1:] if args[:1] == ("cuda",) else args))
        return function(*args)

    return call


def _custom_autograd(function: Function) -> Function:
    """Translate the device type of `custom_fwd` and `custom_bwd`."""

    def call(fwd: Any = None, *, device_type: str, **kwargs: Any) -> Any:
        return function(fwd, device_type="cpu" if device_type == "cuda" else device_type, **kwargs)

    return call


# ---- attention, also of sharded tensors ------------------------------------------------------------------------------

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
        indices = [torch.arange(size, device=query.device) for size in scores.shape]
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


# ---- torch.compile: the CPU's compiler if one is installed, else the program runs without it -------------------------


def has_compiler() -> bool:
    """Return True if the C++ compiler exists that torch.compile needs on a CPU."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++") if name)


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    def compile_(model: Any = None, **kwargs: Any) -> Any:
        if has_compiler():
            return function(model, **kwargs)
        remark("torch.compile was skipped: no C++ compiler (try: apt-get install g++)")
        return model if model is not None else lambda inner: inner

    return compile_


def _pause(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile and run a function without the mode that tags tensors; its results are where its arguments are."""

    def __call__(self: Any, fn: Any) -> Any:
        compiled = function(self, fn)
        if not isinstance(compiled, FunctionType):
            return compiled

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return compiled(*args, **kwargs)
            with paused():
                result = compiled(*args, **kwargs)
            place_all(result, first_place((args, kwargs)))
            return result

        return call

    return __call__


def skip_frames(module: ModuleType) -> None:
    """Keep torch's compiler out of the methods of streams and events, and the mode out of compiled functions."""
    wrap(module._TorchDynamoContext, "__call__", _pause)
    if not hasattr(module, "skip_code"):
        return
    for kind in (streams.Stream, streams.Event, streams.StreamContext):
        for method in vars(kind).values():
            if isinstance(method, FunctionType):
                module.skip_code(method.__code__)


def patch_compile() -> None:
    """Replace `torch.compile`."""
    wrap(torch, "compile", _compile)
