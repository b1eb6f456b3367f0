"""Replaces attributes of torch, and remembers which."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

replaced: list[str] = []
"""Names of all attributes that were replaced."""
missing: list[str] = []
"""Names that this version of torch does not have."""


def _name_of(owner: Any, name: str) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{name}"
    return f"{owner.__name__}.{name}"


def replace(owner: Any, name: str, new: Any) -> None:
    """Set an attribute that exists; skip one that this version of torch does not have."""
    if not hasattr(owner, name):
        missing.append(_name_of(owner, name))
        return
    if isinstance(new, types.FunctionType):
        new = _own_copy(new, name)
        if hasattr(getattr(owner, name), "__wrapped__"):  # torch's compiler reads it
            new.__dict__.setdefault("__wrapped__", getattr(owner, name).__wrapped__)
    _register_with_jit(getattr(owner, name), new)
    setattr(owner, name, new)
    replaced.append(_name_of(owner, name))


def _own_copy(function: types.FunctionType, name: str) -> types.FunctionType:
    """Return a copy with the name of what it replaces: torch's compiler tells functions apart by their identity."""
    copy = types.FunctionType(
        function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    copy.__doc__, copy.__module__ = function.__doc__, function.__module__
    return copy


def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a function by what `make` returns for it, under the same name."""
    original = getattr(owner, name, None)
    if original is None:
        missing.append(_name_of(owner, name))
        return
    new = functools.wraps(original)(make(original))
    if new.__module__ is None:  # a builtin, which pickle would not find
        new.__module__ = owner.__name__
    replace(owner, name, new)


def _register_with_jit(original: Any, new: Any) -> None:
    """Let TorchScript compile a wrapper as the builtin that it wraps."""
    builtins: Any = getattr(sys.modules.get("torch.jit"), "_builtins", None)
    operator = builtins and builtins._find_builtin(original)
    if operator:
        builtins._register_builtin(new, operator)


def wrap_everywhere(owner: Any, makers: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]) -> None:
    """Wrap functions of a module, also where other modules of torch have imported them by name."""
    originals = {name: getattr(owner, name, None) for name in makers}
    for name, make in makers.items():
        wrap(owner, name, make)
    new_of = {id(old): getattr(owner, name) for name, old in originals.items() if old is not None}
    for module in [module for name, module in sys.modules.items() if name.split(".")[0] == "torch"]:
        for name, value in list(vars(module).items()):
            if id(value) in new_of and value is not new_of[id(value)]:
                setattr(module, name, new_of[id(value)])


def called_by_torch(depth: int = 2, but: str = "-") -> bool:
    """Return True if the caller of the function that asks belongs to torch itself, which must see real devices."""
    module: str = sys._getframe(depth).f_globals.get("__name__", "")
    return module == "torch" or (module.startswith("torch.") and not module.startswith(but))


def called_by_compiler() -> bool:
    """Return True if the caller of the function that asks is torch's compiler or Triton, which compile for the CPU."""
    module: str = sys._getframe(2).f_globals.get("__name__", "")
    return module.startswith(("torch._dynamo", "torch._inductor", "torch.utils._triton", "triton."))
