"""Keep gradients in the buckets, so that nothing is packed or unpacked. Divide before the reduction, not after."""

import torch
import torch.distributed as dist


class Overlap:
    def __init__(self, buckets: list[list[torch.nn.Parameter]]) -> None:
        self.flats, self.missing, self.works = [], [], []
        self.sizes = [len(bucket) for bucket in buckets]
        for number, bucket in enumerate(buckets):
            flat = torch.zeros(sum(p.numel() for p in bucket))
            self.flats.append(flat)
            start = 0
            for p in bucket:
                p.grad = flat[start : start + p.numel()].view_as(p)
                start += p.numel()
                p.register_post_accumulate_grad_hook(self.make_hook(number))
        self.missing = list(self.sizes)

    def make_hook(self, number: int):
        def hook(p: torch.nn.Parameter) -> None:
            self.missing[number] -= 1
            if self.missing[number] == 0:
                self.flats[number].div_(dist.get_world_size())
                self.works.append(dist.all_reduce(self.flats[number], async_op=True))

        return hook

    def finish(self) -> None:
        while self.works:
            self.works.pop().wait()
        self.missing = list(self.sizes)
