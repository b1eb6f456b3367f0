"""Average the gradients in buckets: a few large all-reduces instead of many small ones."""

import torch
import torch.distributed as dist


def make_buckets(parameters: list[torch.nn.Parameter], bucket_bytes: int) -> list[list[torch.nn.Parameter]]:
    """Distribute the parameters over buckets, the last parameter first.

    A bucket takes the next parameter as long as its gradients together have `bucket_bytes` bytes or fewer.
    A gradient with more bytes gets its own bucket. All gradients of a bucket have the same dtype.

    parameters: in the model's order; each has a gradient (of `p.grad.nbytes` bytes).
    """
    buckets: list[list[torch.nn.Parameter]] = []
    used = 0
    for p in reversed(parameters):
        fits = buckets and buckets[-1][0].dtype == p.dtype and used + p.grad.nbytes <= bucket_bytes
        if not fits:
            buckets.append([])
            used = 0
        buckets[-1].append(p)
        used += p.grad.nbytes
    return buckets


def average_bucket(bucket: list[torch.nn.Parameter]) -> None:
    """Replace the .grad of each parameter in the bucket by its mean over all ranks, with one all-reduce."""
    flat = torch.cat([p.grad.flatten() for p in bucket])  # one dimension, all gradients end to end
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, mean in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
        p.grad.copy_(mean.view_as(p.grad))


def average_gradients(model: torch.nn.Module, bucket_bytes: int) -> None:
    """Replace every parameter's .grad, on every rank, by its mean over all ranks."""
    parameters = [p for p in model.parameters() if p.requires_grad]  # a tied weight occurs once
    for p in parameters:
        if p.grad is None:  # this rank's batch did not use it; another's may have
            p.grad = torch.zeros_like(p)
    for bucket in make_buckets(parameters, bucket_bytes):
        average_bucket(bucket)
