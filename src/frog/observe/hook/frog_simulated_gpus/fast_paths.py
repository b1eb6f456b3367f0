"""Ways past the mode of placement.py for what a step of training does most often, with the same results.

The mode costs microseconds for each call. An optimizer and `clip_grad_norm_` call functions for each parameter, and the
mode checks nothing there, because torch itself handles parameters on several devices. A program's own code, such as an
optimizer's closure, always runs with the mode.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import clip_grad

from .placement import TAG, only_mode, paused, place_all, place_of, tagged_if_known, tags_of, unseen
from .replace import replace, wrap, wrap_everywhere

Function = Callable[..., Any]


def patch_fast_paths() -> None:
    """Replace what is read most often, the functions of optimizers, and `clip_grad_norm_`; before `patch_placement`."""
    replace(torch.Tensor, "grad", _grad_attribute(torch.Tensor.grad))
    for name in ("is_sparse", "is_nested", "dtype"):
        replace(torch.Tensor, name, property(_direct(getattr(torch.Tensor, name).__get__)))
    wrap(torch.Tensor, "item", _direct)
    wrap(torch, "is_complex", _direct)
    for name in ("adam", "adamw", "sgd"):
        wrap(sys.modules[f"torch.optim.{name}"], name, _without_mode)
    for optimizer in (torch.optim.Adam, torch.optim.SGD):
        wrap(optimizer, "_init_group", _with_states)
    wrap_everywhere(clip_grad, {"clip_grad_norm_": _clip})


def _grad_attribute(grad: Any) -> property:
    """Read and clear `grad`. One that no intercepted call made gets the place of its tensor, as in the mode."""
    get, num_modes, storage_of = grad.__get__, torch._C._len_torch_function_stack, torch.Tensor.untyped_storage

    def read(self: Any) -> Any:
        if num_modes() != 1 or not only_mode(self):
            return get(self)
        with unseen():
            gradient = get(self)
            if type(gradient) is torch.Tensor:
                try:
                    tags = storage_of(gradient).__dict__
                except Exception:  # a sparse gradient
                    tags = tags_of(gradient)
                if TAG not in tags:
                    tagged_if_known(gradient, tags_of(self).get(TAG))
        return gradient

    def write(self: Any, value: Any) -> None:
        if value is None and only_mode(self):
            with unseen():
                grad.__set__(self, None)
        else:
            grad.__set__(self, value)

    return property(read, write, grad.__delete__)


def _direct(function: Function) -> Function:
    """Call a function of one tensor that returns no tensor."""

    def call(self: Any) -> Any:
        if not only_mode(self):
            return function(self)
        with unseen():
            return function(self)

    return call


def _without_mode(function: Function) -> Function:
    """Call an optimizer's function, which changes tensors that have their places."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        with paused():
            return function(*args, **kwargs)

    return call


def _with_states(function: Function) -> Function:
    """List parameters and their states without the mode, once they exist: new ones get their places from the mode."""

    def _init_group(self: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not all(parameter in self.state for parameter in group["params"]):
            return function(self, group, *args, **kwargs)
        with paused():
            return function(self, group, *args, **kwargs)

    return _init_group


def _clip(function: Function) -> Function:
    """Clip gradients; their norm is on the device of the first one."""

    def clip_grad_norm_(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(parameters, *args, **kwargs)
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        first = next((place_of(parameter) for parameter in given if parameter.grad is not None), None)
        with paused():
            norm = function(given, *args, **kwargs)
        place_all(norm, first)
        return norm

    return clip_grad_norm_
