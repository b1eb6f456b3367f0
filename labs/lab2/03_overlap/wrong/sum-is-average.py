"""Average gradients bucket by bucket while backward still runs."""

import torch
import torch.distributed as dist


class Bucket:
    """Gradients that are sent together."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.num_ready = 0  # gradients that backward has found in this step

    def pack(self) -> torch.Tensor:
        """Return all gradients end to end, as a copy."""
        return torch.cat([p.grad.flatten() for p in self.parameters])

    def unpack(self, flat: torch.Tensor) -> None:
        """Copy the parts of `flat` back into the gradients: the reverse of pack."""
        for p, part in zip(self.parameters, flat.split([p.numel() for p in self.parameters]), strict=True):
            p.grad.copy_(part.view_as(p))


class Overlap:
    """Start a bucket's all-reduce, inside backward, as soon as its last gradient is ready; `finish` waits for all.

    buckets: lists of parameters, each in any order. Each parameter gets a gradient in every step.
    """

    def __init__(self, buckets: list[list[torch.nn.Parameter]]) -> None:
        self.buckets = [Bucket(parameters) for parameters in buckets]
        self.started: list[tuple[Bucket, torch.Tensor, dist.Work]] = []
        for bucket in self.buckets:
            for p in bucket.parameters:
                p.register_post_accumulate_grad_hook(lambda _, bucket=bucket: self.ready(bucket))

    def ready(self, bucket: Bucket) -> None:
        bucket.num_ready += 1
        if bucket.num_ready == len(bucket.parameters):
            flat = bucket.pack()
            self.started.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

    def finish(self) -> None:
        """Return when every .grad is the mean over all ranks. The next step can begin after that."""
        for bucket, flat, work in self.started:
            work.wait()
            bucket.unpack(flat)
            bucket.num_ready = 0
        self.started.clear()
