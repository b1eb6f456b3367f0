"""Data parallelism."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist


def make_buckets(parameters: list[torch.nn.Parameter], bucket_bytes: int) -> list[list[torch.nn.Parameter]]:
    """Fill buckets as in 2.2: from the last parameter to the first, each of one type."""
    buckets: list[list[torch.nn.Parameter]] = []
    for p in reversed(parameters):
        if not buckets:
            buckets.append([])
        buckets[-1].append(p)
    return buckets


class DataParallel(torch.nn.Module):
    """A module whose copies on all ranks stay equal.

    DataParallel(module, bucket_bytes)
        Gives every rank rank 0's parameters and buffers.
    forward
        Calls the module's forward.
    no_sync()
        A context manager. Gradients of backwards inside it stay on this rank, and add up.
    finish()
        Call it once per step, after the last backward, which was outside no_sync. After it each trained parameter's
        .grad is the mean, over the ranks, of the gradients accumulated there (a rank without a gradient counts as
        zero), and all buffers are rank 0's.

    Comm:  a step sends each trained parameter's gradient once, in buckets of at most `bucket_bytes` bytes (a larger
           gradient alone), filled from the last parameter to the first.
    """

    def __init__(self, module: torch.nn.Module, bucket_bytes: int) -> None:
        super().__init__()
        self.module = module
        for tensor in chain(module.parameters(), module.buffers()):
            dist.broadcast(tensor.data, src=0)
        self.buckets = make_buckets([p for p in module.parameters() if p.requires_grad], bucket_bytes)
        self.syncs = True
        self.reset()
        for number, bucket in enumerate(self.buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(lambda _, number=number: self.ready(number))

    def reset(self) -> None:
        self.missing = [len(bucket) for bucket in self.buckets]
        self.started: list[tuple[torch.Tensor, dist.Work]] = []

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return self.module(*arguments, **options)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep the gradients of backwards inside on this rank."""
        before, self.syncs = self.syncs, False
        try:
            yield
        finally:
            self.syncs = before

    def ready(self, number: int) -> None:
        """Record a gradient of a bucket. Buckets start in order, so that all ranks start the same one."""
        if not self.syncs:
            return
        self.missing[number] -= 1
        while len(self.started) < len(self.buckets) and self.missing[len(self.started)] == 0:
            self.start()

    def start(self) -> None:
        """Start the next bucket."""
        bucket = self.buckets[len(self.started)]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
        self.started.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish(self) -> None:
        """Make every .grad the mean over the ranks, and every buffer rank 0's."""
        while len(self.started) < len(self.buckets):
            self.start()
        for bucket, (flat, work) in zip(self.buckets, self.started, strict=True):
            work.wait()
            flat /= dist.get_world_size()
            for p, mean in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad = mean.view_as(p)
        for buffer in self.module.buffers():
            dist.broadcast(buffer, src=0)
        self.reset()
