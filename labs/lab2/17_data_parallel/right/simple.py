"""Reduce all buckets in finish, without hooks. Broadcast buffers and weights as one list of tensors."""

from contextlib import nullcontext

import torch
import torch.distributed as dist


class DataParallel(torch.nn.Module):
    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.module, self.bucket_bytes = module, bucket_bytes
        self.parameters_of_step = [p for p in module.parameters() if p.requires_grad][::-1]
        tensors = [*module.parameters(), *module.buffers()]
        state = [[tensor.detach() for tensor in tensors]]
        dist.broadcast_object_list(state, src=0)
        with torch.no_grad():
            for own, first in zip(tensors, state[0]):
                own.copy_(first)

    def __call__(self, *args):
        return self.module(*args)

    def no_sync(self):
        return nullcontext()

    def finish(self):
        waiting, size = [], 0
        for p in self.parameters_of_step:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if waiting and size + p.grad.nbytes > self.bucket_bytes:
                self.reduce(waiting)
                waiting, size = [], 0
            waiting.append(p.grad)
            size += p.grad.nbytes
        self.reduce(waiting)
        for buffer in self.module.buffers():
            dist.broadcast(buffer, 0)

    def reduce(self, gradients):
        flat = torch.cat([g.reshape(-1) for g in gradients]) / dist.get_world_size()
        dist.all_reduce(flat)
        torch._foreach_copy_(gradients, [a.view_as(b) for a, b in zip(flat.split([g.numel() for g in gradients]), gradients)])
