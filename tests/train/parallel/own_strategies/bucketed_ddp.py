"""DDP in buckets: a hook counts the gradients of the last backward pass, and each full bucket is reduced at once."""

import torch
import torch.distributed as dist

BUCKET_NUMEL = 3000


def build(model, group):
    return BucketedDDP(model, group)


class Bucket:
    def __init__(self, parameters):
        self.parameters = parameters

    def start(self, group):
        self.flat = torch.cat([p.grad.flatten() for p in self.parameters])
        self.work = dist.all_reduce(self.flat, group=group, async_op=True)

    def finish(self, size):
        self.work.wait()
        parts = (self.flat / size).split([p.numel() for p in self.parameters])
        for p, part in zip(self.parameters, parts, strict=True):
            p.grad.copy_(part.view_as(p))


class BucketedDDP:
    def __init__(self, model, group):
        self.group, self.last = group, False
        self.named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.buckets = [Bucket(parameters) for parameters in self.cut()]
        for bucket in self.buckets:
            for p in bucket.parameters:
                p.register_post_accumulate_grad_hook(lambda p, bucket=bucket: self.arrived(bucket))

    def cut(self):
        bucket = []
        for _, p in reversed(self.named):
            bucket.append(p)
            if sum(q.numel() for q in bucket) >= BUCKET_NUMEL:
                yield bucket
                bucket = []
        if bucket:
            yield bucket

    def owned(self):
        return [(name, 0, p) for name, p in self.named]

    def before_backward(self, last):
        self.last = last
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)

    def arrived(self, bucket):
        bucket.missing -= 1
        if self.last and bucket.missing == 0:
            bucket.start(self.group)

    def reduce(self):
        for bucket in self.buckets:
            bucket.finish(self.group.size())

    def gather(self):
        pass
