"""Send tensors between ranks in forward, and their gradients back in backward."""

import torch
import torch.distributed as dist
from torch import Tensor


class Exchange(torch.autograd.Function):
    """Sends part i to rank i, and returns what each rank has sent. Backward sends the gradients back."""

    @staticmethod
    def forward(ctx, shapes, *parts):
        ctx.shapes = [part.shape for part in parts]
        return tuple(move(parts, shapes))

    @staticmethod
    def backward(ctx, *gradients):
        return None, *move(gradients, ctx.shapes)


def move(parts, shapes):
    """Send all parts and receive all others' in one batch. Empty parts are not sent."""
    rank, messages = dist.get_rank(), []
    received = [parts[rank].new_zeros(shape) for shape in shapes]
    received[rank].copy_(parts[rank])
    for peer, (part, arriving) in enumerate(zip(parts, received, strict=True)):
        if peer != rank and part.numel():
            messages.append(dist.P2POp(dist.isend, part.contiguous(), peer))
        if peer != rank and arriving.numel():
            messages.append(dist.P2POp(dist.irecv, arriving, peer))
    for work in dist.batch_isend_irecv(messages) if messages else []:
        work.wait()
    return received


def exchange(parts: list[Tensor], shapes: list[tuple[int, ...]]) -> tuple[Tensor, ...]:
    """Send parts[i] to rank i, and return for each rank what it has sent to this one, of shape shapes[i]."""
    return Exchange.apply(shapes, *parts)


def shift(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Send x to the next rank, and return what the previous one has sent, of this shape."""
    rank, size = dist.get_rank(), dist.get_world_size()
    following, previous = (rank + 1) % size, (rank - 1) % size
    parts = [x if peer == following else x.new_zeros(0) for peer in range(size)]
    shapes = [shape if peer == previous else (0,) for peer in range(size)]
    return exchange(parts, shapes)[previous]
