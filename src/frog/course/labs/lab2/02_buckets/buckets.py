"""Average the gradients in buckets: a few large all-reduces in place of many small ones."""

import torch


def make_buckets(parameters: list[torch.nn.Parameter], bucket_bytes: int) -> list[list[torch.nn.Parameter]]:
    """Share out the parameters to buckets, the last parameter first.

    A bucket takes the next parameter as long as the gradients in it have `bucket_bytes` bytes together, or fewer.
    A gradient that alone has more gets a bucket of its own. The gradients of one bucket have one dtype.

    parameters: in the model's order; each has a gradient (`p.grad.nbytes` bytes of it).
    """
    raise NotImplementedError("fill in make_buckets")


def average_bucket(bucket: list[torch.nn.Parameter]) -> None:
    """Replace the .grad of each parameter in the bucket by its mean over all ranks, with one all-reduce."""
    raise NotImplementedError("fill in average_bucket: pack into one flat tensor, reduce that, unpack it")


def average_gradients(model: torch.nn.Module, bucket_bytes: int) -> None:
    """Replace every parameter's .grad, on every rank, by its mean over all ranks."""
    parameters = [p for p in model.parameters() if p.requires_grad]  # a tied weight comes once
    for p in parameters:
        if p.grad is None:  # this rank's batch did not use it; another's may have
            p.grad = torch.zeros_like(p)
    for bucket in make_buckets(parameters, bucket_bytes):
        average_bucket(bucket)
