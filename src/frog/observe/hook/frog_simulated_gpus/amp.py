"""Automatic mixed precision: autocast and GradScaler for CUDA use those of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .replace import replace, wrap

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
        wrap(torch, name, _state)
    replace(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cpu"))
    wrap(torch.amp.autocast_mode, "is_autocast_available", _for_cpu)
    torch.amp.is_autocast_available = torch.amp.autocast_mode.is_autocast_available
    for name in ("custom_fwd", "custom_bwd"):
        wrap(torch.amp, name, _custom)


def _state(function: Function) -> Function:
    """Translate "cuda", also where no device type means it."""

    def call(*args: Any) -> Any:
        if args[:1] == ("cuda",) or not args or isinstance(args[0], bool):
            args = ("cpu", *(args[1:] if args[:1] == ("cuda",) else args))
        return function(*args)

    return call


def _custom(function: Function) -> Function:
    """Translate the device type of `custom_fwd` and `custom_bwd`."""

    def call(fwd: Any = None, *, device_type: str, **kwargs: Any) -> Any:
        return function(fwd, device_type="cpu" if device_type == "cuda" else device_type, **kwargs)

    return call
