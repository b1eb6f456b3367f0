"""Flat buffers: many parameters in one long tensor, which moves, sums and updates them in one operation.

Every parameter, and every gradient, is a view into the buffer: autograd fills it and the optimizer reads it without a
copy. Zeroing, the norm and the update each run once on a long tensor instead of hundreds of times on short ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from frog.train.optim.tensors import Slice, UpdatedTensor

_ALIGN_BYTES = 64
"""Each parameter starts on a cache line, as it would in its own storage."""


class FlatParameters:
    """Parameters of a model, moved into one buffer: matrices (which have weight decay) first, then vectors.

    Layout:  data is [matrices | vectors | padding], with a length that is a multiple of `multiple`; a tied parameter is
             included once.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], multiple: int = 1) -> None:
        matrices = {name: p for name, p in named.items() if p.dim() >= 2}
        vectors = {name: p for name, p in named.items() if p.dim() < 2}
        self.parameters = {**matrices, **vectors}
        first = next(iter(named.values()))
        align = _ALIGN_BYTES // first.element_size()
        self.spans: dict[str, tuple[int, int]] = {}
        """The first element and the length of each parameter."""
        end = 0
        for name, parameter in self.parameters.items():
            self.spans[name] = (end, parameter.numel())
            end += -(-parameter.numel() // align) * align
        self.split = sum(-(-p.numel() // align) * align for p in matrices.values())
        """First element of the parameters without weight decay."""
        self.size = -(-end // (multiple * align)) * multiple * align
        self.data = torch.zeros(self.size, dtype=first.dtype, device=first.device)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                view = self.view(self.data, name)
                view.copy_(parameter)
                parameter.data = view

    def view(self, flat: Tensor, name: str) -> Tensor:
        """Return the part of `flat` that belongs to a parameter, in its shape; `flat` has the layout of `data`."""
        start, count = self.spans[name]
        return flat[start : start + count].view(self.parameters[name].shape)

    def slices(self, start: int, end: int) -> Iterator[Slice]:
        """Yield the slices of parameters that lie in the part [start, end) of the buffer."""
        for name, (first, count) in self.spans.items():
            low, high = max(first, start), min(first + count, end)
            if low < high:
                yield Slice(name, tuple(self.parameters[name].shape), low - first, low - start, high - start)

    def view_gradients(self, grad: Tensor) -> None:
        """Make every parameter's gradient a view into `grad`, which has the layout of `data`."""
        for name, parameter in self.parameters.items():
            parameter.grad = self.view(grad, name)

    def collect_gradients(self, into: Tensor) -> None:
        """Copy the parameters' own gradients into `into`, zeros where there are none, and release them."""
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                self.view(into, name).zero_()
            else:
                self.view(into, name).copy_(parameter.grad)
                parameter.grad = None


class Partition:
    """The part [start, end) of a flat buffer that one rank updates."""

    def __init__(self, flat: FlatParameters, start: int, end: int, data: Tensor, grad: Tensor) -> None:
        self.flat, self.start, self.end, self.data, self.grad = flat, start, end, data, grad
        cut = min(max(flat.split, start), end)
        self.tensors = [*self._tensor(start, cut, decayed=True), *self._tensor(cut, end, decayed=False)]
        """The tensors to update: the part with weight decay, then the part without; no empty one."""

    def _tensor(self, start: int, end: int, decayed: bool) -> Iterator[UpdatedTensor]:
        if start < end:
            own = slice(start - self.start, end - self.start)
            parameter = nn.Parameter(self.data[own])
            parameter.grad = self.grad[own]
            yield UpdatedTensor(parameter, tuple(self.flat.slices(start, end)), decayed)


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return float64 if the device supports it."""
    return torch.float32 if device.type == "mps" else torch.float64


def square_sum(x: Tensor) -> Tensor:
    """Sum the squares of a vector in `wide_dtype`.

    In float32 the sum of 50 million squares is wrong in the third digit, and its last bits depend on where a shard
    begins: strategies would then clip with different bits.
    """
    total: Tensor = torch.linalg.vector_norm(x, dtype=wide_dtype(x.device)).square()
    return total
