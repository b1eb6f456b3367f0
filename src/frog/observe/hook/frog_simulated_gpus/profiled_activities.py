"""torch.profiler: activities of CUDA become those of the CPU, where simulated GPUs compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from .replace import called_by_torch, remark, wrap

Function = Callable[..., Any]


def activities_of(activities: Any) -> Any:
    """Return the activities to record for those that a program asks for."""
    if activities is None or ProfilerActivity.CUDA not in set(activities):
        return activities
    remark("the profiler records the CPU, where simulated GPUs compute; its times on devices are 0")
    return [activity for activity in activities if activity != ProfilerActivity.CUDA] or [ProfilerActivity.CPU]


def _profile(function: Function) -> Function:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if args:
            args = (activities_of(args[0]), *args[1:])
        kwargs["activities"] = activities_of(kwargs.get("activities")) if not args else None
        function(self, *args, **{name: value for name, value in kwargs.items() if value is not None})

    return __init__


def _autograd_profile(function: Function) -> Function:
    def __init__(self: Any, enabled: Any = True, **kwargs: Any) -> None:
        if kwargs.pop("use_cuda", False) or kwargs.get("use_device") == "cuda":
            activities_of([ProfilerActivity.CUDA])
        if kwargs.get("use_device") == "cuda":
            kwargs["use_device"] = None
            kwargs["use_cpu"] = True
        function(self, enabled, **kwargs)

    return __init__


def _supported(function: Function) -> Function:
    def supported_activities() -> set[Any]:
        activities: set[Any] = function()
        return activities if called_by_torch() else {ProfilerActivity.CPU, ProfilerActivity.CUDA}

    return supported_activities


def patch_profiler() -> None:
    """Replace the constructors of profilers."""
    wrap(torch.profiler.profiler._KinetoProfile, "__init__", _profile)
    wrap(torch.profiler.profile, "__init__", _profile)
    wrap(torch.autograd.profiler.profile, "__init__", _autograd_profile)
    for module in (torch.profiler, torch.profiler.profiler):
        wrap(module, "supported_activities", _supported)
