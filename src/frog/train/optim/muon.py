"""Muon: orthogonalized momentum for each matrix in a layer. AdamW updates embeddings, head and vectors.

Legend: R rows, C columns of a matrix; experts are stacked matrices (..., R, C), each orthogonalized separately.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from frog.core.config import OptimizerConfig
from frog.core.errors import ConfigError
from frog.train.optim.eager import EagerOptimizer
from frog.train.optim.tensors import Slice, UpdatedTensor, decay_groups

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of x, x^3 and x^5. Five steps map values between 0.002 and 1 into the range 0.68 to 1.21."""
NUM_ITERATIONS = 5


def orthogonalize(x_RC: Tensor) -> Tensor:
    """Move all singular values of a matrix close to 1 with a Newton-Schulz iteration; keep its singular vectors.

    Shapes:  (..., R, C) -> (..., R, C)
    Equals:  U p(p(p(p(p(S / |S|))))) V^T of the singular value decomposition U S V^T, where p(s) = a s + b s^3 + c s^5,
             in float32 within 1e-3.
    Source:  Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks" (which uses bfloat16).
    """
    if x_RC.shape[-2] > x_RC.shape[-1]:
        return orthogonalize(x_RC.mT).mT
    a, b, c = COEFFICIENTS
    x_RC = x_RC / torch.linalg.matrix_norm(x_RC, keepdim=True).clamp(min=1e-7)
    for _ in range(NUM_ITERATIONS):
        gram_RR = x_RC @ x_RC.mT
        x_RC = a * x_RC + (b * gram_RR + c * gram_RR @ gram_RR) @ x_RC
    return x_RC


def is_layer_matrix(run: Slice) -> bool:
    """Return True for the parameters that Muon updates: matrices inside layers."""
    return run.name.startswith("layers.") and len(run.shape) >= 2


def build(config: OptimizerConfig, tensors: Sequence[UpdatedTensor]) -> Muon:
    """Build Muon for tensors with unsharded matrices; the run file's checks reject strategies that shard them."""
    return Muon(config, tensors)


class Muon(EagerOptimizer):
    """Keller Jordan's Muon for the matrices in layers, AdamW for all other parameters.

    Both keep their mean gradient in `exp_avg`. Muon leaves `exp_avg_sq` zero, so it saves no memory here.

    Source:  Jordan et al. 2024; weight decay as in Liu et al. 2025, "Muon is Scalable for LLM Training".
    """

    def __init__(self, config: OptimizerConfig, tensors: Sequence[UpdatedTensor]) -> None:
        super().__init__(decay_groups(tensors, config.weight_decay), {"lr": config.learning_rate})
        self._config = config
        self._runs = {updated.tensor: updated.slices for updated in tensors}
        for run in (run for runs in self._runs.values() for run in runs if is_layer_matrix(run)):
            if run.end - run.start != math.prod(run.shape):
                raise ConfigError(
                    f"optimizer.name='muon': this rank updates {run.end - run.start} of the {math.prod(run.shape)} "
                    f"elements of {run.name}, but Muon needs whole matrices",
                    "let one rank own each matrix, or use --set optimizer.name=adamw",
                )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every tensor that has a gradient."""
        for group in self.param_groups:
            for tensor in group["params"]:
                if tensor.grad is not None:
                    self.state[tensor]["step"] += 1
                    for run in self._runs[tensor]:
                        update = self._update_matrix if is_layer_matrix(run) else self._update_by_adamw
                        update(tensor, run, group["lr"], group["weight_decay"])

    def _update_matrix(self, tensor: nn.Parameter, run: Slice, rate: float, decay: float) -> None:
        grad_RC, mean_RC, weight_RC = (x.view(run.shape) for x in self._views(tensor, run, "exp_avg"))
        momentum, rate = self._config.muon_momentum, rate * self._config.muon_rate_factor
        mean_RC.lerp_(grad_RC, 1 - momentum)
        update_RC = orthogonalize(grad_RC.lerp(mean_RC, momentum))  # Nesterov's
        num_rows, num_columns = run.shape[-2:]
        weight_RC.mul_(1 - rate * decay)
        weight_RC.add_(update_RC, alpha=-rate * math.sqrt(max(1, num_rows / num_columns)))

    def _update_by_adamw(self, tensor: nn.Parameter, run: Slice, rate: float, decay: float) -> None:
        grad, mean, mean_square, weight = self._views(tensor, run, "exp_avg", "exp_avg_sq")
        beta1, beta2, step = self._config.beta1, self._config.beta2, self.state[tensor]["step"].item()
        mean.lerp_(grad, 1 - beta1)
        mean_square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        root = (mean_square / (1 - beta2**step)).sqrt_().add_(self._config.eps)
        weight.mul_(1 - rate * decay)
        weight.addcdiv_(mean, root, value=-rate / (1 - beta1**step))

    def _views(self, tensor: nn.Parameter, run: Slice, *state: str) -> list[Tensor]:
        """Return a run's gradient, state and weights, each as a vector."""
        kept: dict[str, Any] = self.state[tensor]
        assert tensor.grad is not None
        return [x.reshape(-1)[run.start : run.end] for x in (tensor.grad, *(kept[name] for name in state), tensor)]
