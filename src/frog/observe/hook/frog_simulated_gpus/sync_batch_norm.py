"""The kernels of SyncBatchNorm, which torch has only for GPUs, as plain tensor operations."""

from __future__ import annotations

from typing import Any

import torch


def _sums(x: Any) -> Any:
    """Sum over all dimensions but that of the channels."""
    return x.sum([dim for dim in range(x.dim()) if dim != 1])


def _per_channel(values: Any, like: Any) -> Any:
    return values.view(1, -1, *[1] * (like.dim() - 2))


def batch_norm_stats(input: Any, eps: float) -> tuple[Any, Any]:
    """Return the mean and the inverse standard deviation of each channel."""
    x, count = input.float(), input.numel() // input.size(1)
    mean = _sums(x) / count
    variance = _sums((x - _per_channel(mean, x)).square()) / count
    return mean, (variance + eps).rsqrt()


def batch_norm_gather_stats_with_counts(
    input: Any,
    mean: Any,
    invstd: Any,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
    counts: Any,
) -> tuple[Any, Any]:
    """Join the statistics of all ranks, whose batches may differ in size, and update the running ones."""
    counts, total = counts.view(-1, 1), counts.sum()
    joint = (mean * counts).sum(0) / total
    variance = ((invstd.pow(-2) - eps + (mean - joint).square()) * counts).sum(0) / total
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(joint * momentum)
        running_var.mul_(1 - momentum).add_(variance * total / (total - 1) * momentum)
    return joint, (variance + eps).rsqrt()


def batch_norm_elemt(input: Any, weight: Any, bias: Any, mean: Any, invstd: Any, eps: float) -> Any:
    """Normalize with given statistics."""
    out = (input.float() - _per_channel(mean, input)) * _per_channel(invstd, input)
    if weight is not None:
        out = out * _per_channel(weight, input) + _per_channel(bias, input)
    return out.to(input.dtype)


def batch_norm_backward_reduce(
    grad: Any, input: Any, mean: Any, invstd: Any, weight: Any, *needed: bool
) -> tuple[Any, Any, Any, Any]:
    """Return the sums that all ranks add, and the gradients of weight and bias."""
    dy = grad.float()
    sum_dy, sum_dy_xmu = _sums(dy), _sums(dy * (input.float() - _per_channel(mean, input)))
    dtype = weight.dtype if weight is not None else sum_dy.dtype
    return sum_dy, sum_dy_xmu, (sum_dy_xmu * invstd).to(dtype), sum_dy.to(dtype)


def batch_norm_backward_elemt(
    grad: Any, input: Any, mean: Any, invstd: Any, weight: Any, sum_dy: Any, sum_dy_xmu: Any, count: Any
) -> Any:
    """Return the gradient of the input from the sums of all ranks."""
    total = count.sum()
    centered = input.float() - _per_channel(mean, input)
    slope = _per_channel(invstd.square() * sum_dy_xmu / total, input)
    scale = invstd if weight is None else invstd * weight
    grad_input = (grad.float() - _per_channel(sum_dy / total, input) - centered * slope) * _per_channel(scale, input)
    return grad_input.to(input.dtype)


def patch_sync_batch_norm() -> None:
    """Replace the kernels."""
    from .replace import replace

    for function in (
        batch_norm_stats,
        batch_norm_gather_stats_with_counts,
        batch_norm_elemt,
        batch_norm_backward_reduce,
        batch_norm_backward_elemt,
    ):
        replace(torch, function.__name__, function)
