"""Deferred weight gradients: a backward pass computes only input gradients, and the weight gradients come later.

The gradient of `y = x @ w.T` has two independent halves: `grad @ w`, for which the layer below waits, and
`grad.T @ x`, for which no layer waits. A linear layer with this forward computes the first half immediately and records
the inputs of the second. Norms, the embedding and the head keep their gradients in the backward pass: they are a small
part of the work, and the head's is computed along with its loss.

Source:  Qi et al. 2023, section 2.
Shapes:  N tokens, D input width, F output width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from frog.train.model.functions import takes_fast_path
from frog.train.model.matmul import product, uses_onednn, weight_gradient
from frog.train.model.transformer import Linear


@dataclass(frozen=True)
class Due:
    """The inputs of one weight's gradient."""

    weight: nn.Parameter
    x_ND: Tensor
    grad_NF: Tensor


class DeferredWeights:
    """Makes the linear layers of some modules defer their weights' gradients.

    Assumes: their forward is `Linear`'s own; hooks on them, such as tensor parallelism's, run as before.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._due: list[Due] = []
        # Replaces the weights as an input: otherwise autograd would run the weights' hooks in the backward pass too.
        self._anchor = torch.empty(0, requires_grad=True)
        for module in (inner for outer in modules for inner in outer.modules()):
            if type(module) is Linear:
                module.forward = self._forward_of(module)  # type: ignore[method-assign]

    def _forward_of(self, module: Linear) -> Any:
        def forward(x: Tensor) -> Tensor:
            if not (torch.is_grad_enabled() and module.weight.requires_grad):
                return Linear.forward(module, x)
            return _DeferredLinear.apply(x, self._anchor, module, self._due)  # type: ignore[no-any-return, no-untyped-call]

        return forward

    def take(self) -> list[Due]:
        """Return the inputs recorded since the last call: those of one backward pass."""
        due, self._due[:] = list(self._due), []
        return due


def add_weight_gradients(due: Iterable[Due]) -> None:
    """Compute the deferred gradients and accumulate them as autograd would, hooks included.

    Equals:  the gradients of an ordinary backward pass, bit for bit.
    """
    with torch.no_grad():
        pairs = [(product.weight, _weight_gradient(product)) for product in due]
    if pairs:
        weights, gradients = zip(*pairs, strict=True)
        torch.autograd.backward(weights, gradients)


def _weight_gradient(due: Due) -> Tensor:
    """Compute the same product as the backward pass of `frog.train.model.functions.linear`."""
    x_ND, grad_NF, w_FD = due.x_ND, due.grad_NF, due.weight
    if takes_fast_path(x_ND, w_FD) and uses_onednn(x_ND, w_FD):
        return weight_gradient(grad_NF, x_ND)
    return (grad_NF.t() @ x_ND).to(w_FD.dtype)


class _DeferredLinear(torch.autograd.Function):
    """A linear layer without its weight's gradient. `anchor` makes the output require a gradient if `x` does not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, module: Linear, due: list[Due]) -> Tensor:
        x_ND, w_FD = x.flatten(0, -2), module.weight.detach()
        if takes_fast_path(x_ND, w_FD) and uses_onednn(x_ND, w_FD):
            y = product(x_ND, w_FD).view(*x.shape[:-1], -1)
        else:
            y = F.linear(x, w_FD)
        # Under autocast y has the lower precision, and so do both products of the backward pass.
        ctx.save_for_backward(x.to(y.dtype), w_FD)
        ctx.weight, ctx.due, ctx.x_dtype = module.weight, due, x.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, w_FD = ctx.saved_tensors
        x_ND, grad_NF = x.flatten(0, -2), grad.flatten(0, -2)
        ctx.due.append(Due(ctx.weight, x_ND, grad_NF))
        grad_x = None
        if ctx.needs_input_grad[0]:
            if takes_fast_path(x_ND, w_FD) and uses_onednn(x_ND, w_FD):
                grad_x = product(grad_NF, w_FD.t()).view(x.shape)
            else:
                grad_x = (grad @ w_FD.to(grad.dtype)).to(ctx.x_dtype)
        return grad_x, None, None, None
