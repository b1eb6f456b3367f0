"""Compute activations again in backward, instead of keeping them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Recompute(torch.autograd.Function):
    """Runs `part(x)` and keeps only x. Backward runs `part` again to get the gradients."""

    @staticmethod
    def forward(ctx: Any, part: nn.Module, x: Tensor, *weights: nn.Parameter) -> Tensor:
        """Return part(x). Autograd records nothing in here, so the activations are freed.

        weights: the trained parameters of `part`. As arguments, they get gradients from backward.
        """
        ctx.part, ctx.weights = part, weights
        ctx.save_for_backward(x)
        y = part(x)
        ctx.state = torch.get_rng_state()
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return a gradient for each argument of forward: None for `part`, then x's, then those of the weights.

        grad: the gradient of the loss with respect to part(x).
        """
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            y = ctx.part(x)
        grads = torch.autograd.grad(y, (x, *ctx.weights), grad, allow_unused=True)
        return None, *grads


def recompute(part: nn.Module, x: Tensor) -> Tensor:
    """Return part(x). Its gradients are the same as without recomputation; only x is kept for backward."""
    return Recompute.apply(part, x, *[p for p in part.parameters() if p.requires_grad])


def run(layers: Sequence[nn.Module], x: Tensor, what: str) -> Tensor:
    """Return the output of the last layer. A layer computes `layer(x)`, which is `layer.mlp(layer.attention(x))`.

    what:  the parts that backward computes again: "nothing", the "attention" of each layer, or the "layers", each by
           itself.
    """
    for layer in layers:
        if what == "nothing":
            x = layer(x)
        elif what == "attention":
            x = layer.mlp(recompute(layer.attention, x))
        else:
            x = recompute(layer, x)
    return x
