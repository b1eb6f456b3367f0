"""The kernels of SyncBatchNorm on simulated GPUs: all ranks together compute torch's batch normalization."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from frog.observe.hook.frog_simulated_gpus import sync_batch_norm as kernels

EPS, MOMENTUM, CHANNELS = 1e-3, 0.3, 3


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(), (4,), (2, 5)])
@pytest.mark.parametrize("rows", [(2, 3), (1, 2, 4)])
def test_ranks_together_compute_the_batch_norm_of_all_rows(
    rows: tuple[int, ...], shape: tuple[int, ...], affine: bool
) -> None:
    generator = torch.Generator().manual_seed(1)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float32)

    batch, grad = draw(sum(rows), CHANNELS, *shape).mul_(3).add_(2), draw(sum(rows), CHANNELS, *shape)
    weight, bias = (draw(CHANNELS), draw(CHANNELS)) if affine else (None, None)
    mean, var = draw(CHANNELS), draw(CHANNELS).abs()

    leaves = [batch.clone().requires_grad_(), *(x.clone().requires_grad_() for x in (weight, bias) if x is not None)]
    running = mean.clone(), var.clone()
    expected = torch.nn.functional.batch_norm(leaves[0], *running, *(leaves[1:] or (None, None)), True, MOMENTUM, EPS)
    expected.backward(grad)

    parts, grads = batch.split(rows), grad.split(rows)
    statistics = [kernels.batch_norm_stats(part, EPS) for part in parts]
    counts = torch.tensor([float(part.numel() // CHANNELS) for part in parts])
    means, invstds = (torch.stack(values) for values in zip(*statistics, strict=True))
    joint, invstd = kernels.batch_norm_gather_stats_with_counts(
        parts[0], means, invstds, mean, var, MOMENTUM, EPS, counts
    )
    for found, wanted in zip((mean, var), running, strict=True):
        torch.testing.assert_close(found, wanted)
    outputs = [kernels.batch_norm_elemt(part, weight, bias, joint, invstd, EPS) for part in parts]
    torch.testing.assert_close(torch.cat(outputs), expected.detach())

    sums = [
        kernels.batch_norm_backward_reduce(dy, part, joint, invstd, weight, True, True, True)
        for dy, part in zip(grads, parts, strict=True)
    ]
    sum_dy, sum_dy_xmu, grad_weight, grad_bias = (torch.stack(each).sum(0) for each in zip(*sums, strict=True))
    inputs = [
        kernels.batch_norm_backward_elemt(dy, part, joint, invstd, weight, sum_dy, sum_dy_xmu, counts)
        for dy, part in zip(grads, parts, strict=True)
    ]
    torch.testing.assert_close(torch.cat(inputs), leaves[0].grad, atol=1e-5, rtol=1e-4)
    if affine:
        torch.testing.assert_close(grad_weight, leaves[1].grad, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(grad_bias, leaves[2].grad, atol=1e-5, rtol=1e-4)


def test_half_precision_stays_outside_and_statistics_need_no_running_ones() -> None:
    x = torch.randn(4, CHANNELS, 2).half()
    mean, invstd = kernels.batch_norm_stats(x, EPS)
    assert (mean.dtype, kernels.batch_norm_elemt(x, None, None, mean, invstd, EPS).dtype) == (
        torch.float32,
        torch.float16,
    )
    joint, _ = kernels.batch_norm_gather_stats_with_counts(
        x, mean[None], invstd[None], None, None, MOMENTUM, EPS, torch.tensor([8.0])
    )
    torch.testing.assert_close(joint, mean)
    weight = torch.ones(CHANNELS, dtype=torch.float16)
    sums = kernels.batch_norm_backward_reduce(x, x, mean, invstd, weight, True, True, True)
    assert [each.dtype for each in sums] == [torch.float32, torch.float32, torch.float16, torch.float16]
    grad = kernels.batch_norm_backward_elemt(x, x, mean, invstd, None, *sums[:2], torch.tensor([8]))
    assert grad.dtype == torch.float16
