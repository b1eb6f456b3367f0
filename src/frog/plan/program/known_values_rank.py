"""Values of small tensors that the program computes from real data alone, such as masks, labels and counts of tokens.

A fake tensor that came from real data keeps its value next to it, and so does every result of known values. A program
that asks for such a value gets it, and a shape may depend on it. What a model computes is not known.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

_MOST = 2**20
"""Elements of a tensor whose value is kept."""
_KEPT = "_frog_value"
_GATHERS = ("_allgather_base_", "allgather_")
_EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


def keep_value(fake: Any, real: Any) -> None:
    """Keep the value of a fake tensor, if it is small."""
    if real.numel() <= _MOST:
        setattr(fake, _KEPT, real.detach())


def value_of(tensor: Any) -> Any:
    """Return a real tensor, or the value of a fake one; None if it is not known."""
    return getattr(tensor, _KEPT, None) if isinstance(tensor, FakeTensor) else tensor


def follow(func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Keep the value of an operation's result if those of its arguments are known."""
    name = func._schema.name.partition("::")[2]
    outputs = _tensors(result)
    if func.namespace == "c10d":
        if name in _GATHERS:
            _gather(args)
        elif name != "broadcast_":
            _forget(func, args, kwargs)
        return
    if not outputs or name in _EMPTY or torch.Tag.nondeterministic_seeded in func.tags:
        _forget(func, args, kwargs)
        return
    given = _tensors((args, kwargs))
    is_number = not given and not any(tensor.dtype.is_floating_point for tensor in outputs)
    if not (given or is_number) or any(tensor.numel() > _MOST for tensor in outputs):
        _forget(func, args, kwargs)
        return
    values = computed(func, args, kwargs)
    if values is None:
        _forget(func, args, kwargs)
        return
    for fake, real in zip(outputs, _tensors(values), strict=True):
        if isinstance(fake, FakeTensor) and fake.shape == real.shape:
            setattr(fake, _KEPT, real)


def computed(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operation computes from known values, or None if one is unknown or larger than what is kept."""
    given = _tensors((args, kwargs))
    if any(value_of(tensor) is None or tensor.numel() > _MOST for tensor in given):
        return None
    args, kwargs = tree_map_only(torch.Tensor, value_of, (args, kwargs))
    with _disable_current_modes(), torch.no_grad():
        return func(*args, **kwargs)


def fake_results(fake: FakeTensorMode, values: Any) -> Any:
    """Return fake tensors, with their values, in place of real ones."""

    def make(real: Any) -> Any:
        with _disable_current_modes():
            made = fake.from_tensor(real, static_shapes=True)
        keep_value(made, real)
        return made

    return tree_map_only(torch.Tensor, make, values)


def _gather(args: Any) -> None:
    """Let every rank have this rank's value."""
    outputs, (given, *_) = _tensors(args[0]), _tensors(args[1]) or [None]
    value = None if given is None else value_of(given)
    for fake in outputs:
        if value is None or fake.numel() % value.numel() or fake.numel() > _MOST:
            forget_value(fake)
        else:
            copies = fake.numel() // value.numel()
            with _disable_current_modes():
                setattr(fake, _KEPT, value.reshape(-1).repeat(copies).reshape(fake.shape))


def _forget(func: Any, args: Any, kwargs: Any) -> None:
    """Forget the values of the arguments that an operation writes."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            for fake in _tensors(args[index] if index < len(args) else kwargs.get(argument.name)):
                forget_value(fake)


def forget_value(fake: Any) -> None:
    """Forget the value of a fake tensor."""
    if getattr(fake, _KEPT, None) is not None:
        setattr(fake, _KEPT, None)


def _tensors(value: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
