"""Faster CPU versions of the model's expensive operations: products, the loss, and attention in bfloat16.

Each public function falls back to a plain formula where the faster version does not apply: on an
accelerator, under autocast, inside torch.compile, for tensor subclasses such as DTensor.

Shapes: N tokens (B and T as one), D input width, F output width, V vocabulary; B batch, T time (sequence), H heads,
K key/value heads, G query heads that share one, C head width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from frog.core.config.model import IGNORED_LABEL
from frog.train.model.matmul import product, uses_onednn, weight_gradient

_CHUNK_ELEMENTS = 2**18
"""Logits per chunk: 1 MiB of float32 fits into a core's second-level cache."""

_LEAST_CHUNK_ROWS = 128
"""Minimum rows per chunk, whatever the vocabulary: with fewer rows the products are too thin."""


_MOST_SCORED_POSITIONS = 512
"""For longer sequences the scores take more memory than they save time."""


def takes_fast_path(*tensors: Tensor) -> bool:
    """True if the functions of this file support these tensors: plain float32 or float64 on a CPU, in eager mode."""
    dtype = tensors[0].dtype
    return (
        dtype in (torch.float32, torch.float64)
        and all(t.device.type == "cpu" and t.dtype == dtype and type(t) in (Tensor, nn.Parameter) for t in tensors)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def linear(x: Tensor, w_FD: Tensor) -> Tensor:
    """Compute `x @ w.T`, all three products of it (forward and both gradients) with the faster library.

    Shapes:  x (..., D) -> (..., F)
    """
    if takes_fast_path(x, w_FD) and uses_onednn(x.flatten(0, -2), w_FD):
        return _Linear.apply(x, w_FD)  # type: ignore[no-any-return, no-untyped-call]
    return F.linear(x, w_FD)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w_FD: Tensor) -> Tensor:
        ctx.save_for_backward(x, w_FD)
        return product(x.flatten(0, -2), w_FD).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w_FD = ctx.saved_tensors
        grad_NF = grad.flatten(0, -2)
        needs_x, needs_w = ctx.needs_input_grad
        grad_x = product(grad_NF, w_FD.t()).view(x.shape) if needs_x else None
        grad_w_FD = weight_gradient(grad_NF, x.flatten(0, -2)) if needs_w else None
        return grad_x, grad_w_FD


def writes_scores_out(q_BHTC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor) -> bool:
    """True if `attention_by_scores` is faster: in bfloat16 on a CPU, where torch's fused kernel is slow."""
    return (
        torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and all(t.device.type == "cpu" and type(t) is Tensor for t in (q_BHTC, k_BKTC, v_BKTC))
        and q_BHTC.shape[2] <= _MOST_SCORED_POSITIONS
        and not torch.compiler.is_compiling()
    )


def attention_by_scores(q_BHTC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor) -> Tensor:
    """Compute softmax(q k^T / sqrt(C)) v, causal, with all scores of a sequence in memory.

    Shapes:  q (B, H, T, C), k and v (B, K, T, C) -> (B, H, T, C)
    Equals:  `F.scaled_dot_product_attention`, except that scores and weights are rounded to the dtype of the products.
    """
    B, H, T, C = q_BHTC.shape
    G = H // k_BKTC.shape[1]
    k_ATC, v_ATC = k_BKTC.reshape(-1, T, C), v_BKTC.reshape(-1, T, C)  # A: B * K
    later_GTT = torch.full((T, T), -math.inf, dtype=v_ATC.dtype, device=v_ATC.device).triu(1).repeat(G, 1)
    scores_AMT = torch.baddbmm(later_GTT, q_BHTC.reshape(-1, G * T, C), k_ATC.mT, alpha=C**-0.5)  # M: G * T
    return (scores_AMT.softmax(dim=-1) @ v_ATC).view(B, H, T, C)


def linear_cross_entropy(x_ND: Tensor, w_VD: Tensor, labels_N: Tensor) -> Tensor:
    """Compute the mean cross-entropy of the logits `x @ w.T`, in float32.

    The forward pass computes the logits chunk by chunk, turns each chunk into its own gradient and consumes it, so that
    the logits never leave the cache. Source: Hsu et al. 2024 (Liger Kernel), section 3.2.

    Shapes:  x_ND (N, D), w_VD (V, D), labels_N (N,) -> a scalar
    Equals:  `F.cross_entropy(x @ w.T, labels)`, ignoring labels of -100.
    """
    if takes_fast_path(x_ND, w_VD) and not bool((labels_N == IGNORED_LABEL).any()):
        return _LinearCrossEntropy.apply(x_ND, w_VD, labels_N, torch.is_grad_enabled())  # type: ignore[no-any-return, no-untyped-call]
    return F.cross_entropy(F.linear(x_ND, w_VD).float(), labels_N)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, w_VD: Tensor, labels_N: Tensor, with_grad: bool) -> Tensor:
        rows = max(_LEAST_CHUNK_ROWS, _CHUNK_ELEMENTS // w_VD.shape[0])
        grad_x_ND = torch.empty_like(x_ND) if with_grad and ctx.needs_input_grad[0] else None
        grad_w_DV = w_VD.new_zeros(w_VD.shape[::-1]) if with_grad and ctx.needs_input_grad[1] else None
        losses = []
        for start in range(0, len(labels_N), rows):
            chunk = slice(start, start + rows)
            losses_R1, error_RV = _losses_and_error(product(x_ND[chunk], w_VD), labels_N[chunk].unsqueeze(-1))
            losses.append(losses_R1)
            if grad_x_ND is not None:
                grad_x_ND[chunk] = product(error_RV, w_VD.t())
            if grad_w_DV is not None:
                grad_w_DV += product(x_ND[chunk].t(), error_RV.t())
        ctx.save_for_backward(grad_x_ND, None if grad_w_DV is None else grad_w_DV.t().contiguous())
        ctx.num_labels = len(labels_N)
        return torch.cat(losses).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        scale = grad / ctx.num_labels
        grad_x_ND, grad_w_VD = (None if saved is None else saved * scale for saved in ctx.saved_tensors)
        return grad_x_ND, grad_w_VD, None, None


def _losses_and_error(logits_RV: Tensor, labels_R1: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's cross-entropy, and its gradient by the logits: the probabilities, minus one at the label."""
    probabilities_RV = logits_RV.softmax(dim=-1)
    # log(sum(exp)) of a row is its largest logit minus the log of its largest probability: no second pass over exp,
    # and exact where the label's own probability underflows.
    log_sum_R1 = logits_RV.amax(-1, keepdim=True) - probabilities_RV.amax(-1, keepdim=True).log_()
    losses_R1 = log_sum_R1 - logits_RV.gather(1, labels_R1)
    probabilities_RV.scatter_add_(1, labels_R1, probabilities_RV.new_full(labels_R1.shape, -1.0))
    return losses_R1, probabilities_RV


def labelled_loss(x_BTD: Tensor, w_VD: Tensor, labels_BT: Tensor) -> Tensor:
    """Compute the mean cross-entropy of the logits `x @ w.T` over the labelled positions; zero if there are none.

    Logits are computed only at labelled positions: a small part, for a long prompt with a short answer.

    Shapes:  x_BTD (B, T, D), w_VD (V, D), labels_BT (B, T) -> a scalar
    Equals:  `F.cross_entropy(x @ w.T, labels)`, ignoring labels of -100; 0, not NaN, if there are no others.
    """
    chosen_BT = labels_BT != IGNORED_LABEL
    x_ND = x_BTD[chosen_BT]
    if not len(x_ND):  # a rank whose rows are all padding still takes part, with gradients of zero
        return (x_BTD.sum() + w_VD.sum()) * 0.0
    return linear_cross_entropy(x_ND, w_VD, labels_BT[chosen_BT])
