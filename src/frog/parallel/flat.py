"""Data parallelism over one flat buffer: the whole gradient is one tensor, so a step needs one all-reduce.

Plan of communication, once a step:
  reduce   one all-reduce (sum) over `dp` of the flat gradient and its tail; then divide by the world size.
           The tail carries a few scalars (loss, a wish to stop) that all ranks must agree on, at no further cost.

Every parameter, and every gradient, is a view into the buffer, so autograd fills it and the optimizer reads it without
a copy; zeroing, the norm and the update are each one operation on a long tensor in place of hundreds on short ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from frog.comm import World

_ALIGN_BYTES = 64
"""Each parameter starts on a cache line, as it would in storage of its own."""

_ROW = 4096
"""Elements whose squares are summed in one go."""


class FlatParameters:
    """The trainable parameters of a model, moved into one buffer: those with weight decay first, then the rest.

    Layout:  data and grad are [matrices | vectors | tail]; a tied parameter is there once, a frozen one is not.
    """

    def __init__(self, model: nn.Module, num_tail: int = 0) -> None:
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        matrices = {name: p for name, p in named.items() if p.dim() >= 2}
        vectors = {name: p for name, p in named.items() if p.dim() < 2}
        first = next(iter(named.values()))
        align = _ALIGN_BYTES // first.element_size()
        self.spans: dict[str, tuple[int, int]] = {}
        """Where each parameter lies: its first element and how many."""
        end = 0
        for name, parameter in {**matrices, **vectors}.items():
            self.spans[name] = (end, parameter.numel())
            end += -(-parameter.numel() // align) * align
        self.split = sum(-(-p.numel() // align) * align for p in matrices.values())
        """Where the parameters without weight decay begin."""
        self._shapes = {name: p.shape for name, p in named.items()}
        self.data = torch.zeros(end, dtype=first.dtype, device=first.device)
        self._grad = torch.zeros(end + num_tail, dtype=first.dtype, device=first.device)
        self.grad = self._grad[:end]
        self.tail = self._grad[end:]
        with torch.no_grad():
            for name, parameter in named.items():
                view = self.view(self.data, name)
                view.copy_(parameter)
                parameter.data = view
                parameter.grad = self.view(self.grad, name)
        self.decayed = self._as_parameter(0, self.split)
        """All matrices as one parameter, for the optimizer."""
        self.plain = self._as_parameter(self.split, end)
        """All vectors as one parameter, for the optimizer: without weight decay."""

    def _as_parameter(self, start: int, end: int) -> nn.Parameter:
        parameter = nn.Parameter(self.data[start:end])
        parameter.grad = self.grad[start:end]
        return parameter

    def view(self, flat: Tensor, name: str) -> Tensor:
        """The part of `flat` that belongs to a parameter, in the parameter's shape; `flat` is laid out as `data`."""
        start, count = self.spans[name]
        return flat[start : start + count].view(self._shapes[name])

    def view_parts(self, decayed: Tensor, plain: Tensor, name: str) -> Tensor:
        """`view`, of something laid out as the two parameters `decayed` and `plain`: the optimizer's state."""
        start, count = self.spans[name]
        part = decayed[start : start + count] if start < self.split else plain[start - self.split :][:count]
        return part.view(self._shapes[name])

    def reduce(self, world: World, scalars: Sequence[float | Tensor] = ()) -> tuple[list[float], list[float]]:
        """Average the gradient over the world, in place; return `scalars` as they were here, and their means.

        Comm:    one all-reduce over `dp` of the gradient and the tail.
        Equals:  the gradient of the mean loss over the whole batch, as one process computes it (other order of sums).
        """
        for index, scalar in enumerate(scalars):
            self.tail[index] = scalar
        local = self.tail.clone()
        if world.size > 1:
            world.all_reduce(self._grad)
            self._grad.div_(world.size)
        own, mean = torch.stack([local, self.tail]).tolist()
        return own, mean

    def norm(self) -> Tensor:
        """The 2-norm of the gradient, as a scalar tensor.

        By rows, then over the rows: one float32 sum over 50 million squares is wrong in the third digit.
        """
        whole = len(self.grad) // _ROW * _ROW
        rows = torch.linalg.vector_norm(self.grad[:whole].view(-1, _ROW), dim=1)
        rest = torch.linalg.vector_norm(self.grad[whole:])
        norm: Tensor = torch.linalg.vector_norm(torch.cat([rows, rest.unsqueeze(0)]))
        return norm

    def clip(self, norm: float, max_norm: float) -> None:
        """Scale the gradient down to `max_norm` if its norm is above."""
        if norm > max_norm:
            self.grad.mul_(max_norm / norm)

    def zero(self) -> None:
        """Set the gradient to zero."""
        self.grad.zero_()
