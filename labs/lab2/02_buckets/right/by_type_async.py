"""Each type has its own open bucket, all reductions run concurrently, and each .grad is a view of a bucket."""

import torch
import torch.distributed as dist


class Bucket:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.parameters: list[torch.nn.Parameter] = []

    @property
    def nbytes(self) -> int:
        return sum(p.grad.nbytes for p in self.parameters)

    def start(self) -> None:
        self.flat = torch.cat([p.grad.reshape(-1) / dist.get_world_size() for p in self.parameters])
        self.work = dist.all_reduce(self.flat, async_op=True)

    def finish(self) -> None:
        self.work.wait()
        offset = 0
        for p in self.parameters:
            p.grad = self.flat[offset : offset + p.numel()].view(p.shape)
            offset += p.numel()


def average_gradients(model: torch.nn.Module, bucket_bytes: int) -> None:
    buckets: list[Bucket] = []
    open_buckets: dict[torch.dtype, Bucket] = {}
    for p in reversed(list(model.parameters())):
        if not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        bucket = open_buckets.get(p.dtype)
        if bucket is None or bucket.nbytes + p.grad.nbytes > bucket_bytes:
            bucket = open_buckets[p.dtype] = Bucket(p.dtype)
            buckets.append(bucket)
        bucket.parameters.append(p)
    for bucket in buckets:
        bucket.start()
    for bucket in buckets:
        bucket.finish()
