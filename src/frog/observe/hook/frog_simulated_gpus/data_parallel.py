"""nn.DataParallel and nn.parallel.data_parallel: the whole batch on the first GPU, to which inputs are moved."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .replace import remark, wrap, wrap_everywhere
from .tensors import index_of

Function = Callable[..., Any]
REMARK = "nn.DataParallel computes the whole batch on one simulated GPU"


def moved(values: Any, index: int) -> Any:
    """Return nested inputs on a GPU, as a scatter leaves them."""
    device = torch.device("cuda", index)
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), values)


def _first(device_ids: Any) -> int:
    """Return the GPU that computes."""
    chosen = [index_of(device) for device in device_ids or ()]
    return chosen[0] if chosen else 0


def _init(function: Function) -> Function:
    def __init__(self: Any, module: Any, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
        function(self, module, device_ids, *args, **kwargs)
        self.simulated_index = _first(device_ids)
        self.device_ids = []
        self.module = module
        remark(REMARK)

    return __init__


def _forward(function: Function) -> Function:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        inputs, kwargs = moved((inputs, kwargs), self.simulated_index)
        return self.module(*inputs, **kwargs)

    return forward


def _data_parallel(
    module: Any,
    inputs: Any,
    device_ids: Any = None,
    output_device: Any = None,
    dim: int = 0,
    module_kwargs: Any = None,
) -> Any:
    """Compute the whole batch, and leave the output where it is asked for."""
    remark(REMARK)
    index = _first(device_ids)
    inputs, kwargs = moved((inputs if isinstance(inputs, tuple) else (inputs,), module_kwargs or {}), index)
    return moved(module(*inputs, **kwargs), index if output_device is None else index_of(output_device))


def patch_data_parallel() -> None:
    """Replace the class and the function."""
    wrap(torch.nn.DataParallel, "__init__", _init)
    wrap(torch.nn.DataParallel, "forward", _forward)
    wrap_everywhere(sys.modules["torch.nn.parallel.data_parallel"], {"data_parallel": lambda function: _data_parallel})
