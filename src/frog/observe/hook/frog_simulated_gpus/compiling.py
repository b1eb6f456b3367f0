"""torch.compile: the CPU's compiler if one is installed, else the program runs without it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch

from . import streams
from .notes import remark
from .replace import wrap


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


def skip_frames(module: ModuleType) -> None:
    """Keep torch's compiler out of the methods of streams and events."""
    if not hasattr(module, "skip_code"):
        return
    for kind in (streams.Stream, streams.Event, streams.StreamContext):
        for method in vars(kind).values():
            if isinstance(method, FunctionType):
                module.skip_code(method.__code__)


def patch_compile() -> None:
    """Replace `torch.compile`."""
    wrap(torch, "compile", _compile)
