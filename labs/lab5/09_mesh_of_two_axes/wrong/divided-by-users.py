"""A mesh of two axes: which ranks read the same samples, which hold the same weights, and who averages with whom."""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Mesh(NamedTuple):
    """The two groups of this rank. Rank r has the data index r // tensor size and the tensor index r % tensor size."""

    data: dist.ProcessGroup  # the ranks with this rank's tensor index
    tensor: dist.ProcessGroup  # the ranks with this rank's data index


def make_mesh(data_size: int, tensor_size: int) -> Mesh:
    """Return this rank's groups. The world has data_size * tensor_size ranks; each calls this once."""
    me, mine = dist.get_rank(), {}
    for t in range(tensor_size):
        ranks = [d * tensor_size + t for d in range(data_size)]
        g = dist.new_group(ranks)
        if me in ranks:
            mine["data"] = g
    for d in range(data_size):
        ranks = [d * tensor_size + t for t in range(tensor_size)]
        g = dist.new_group(ranks)
        if me in ranks:
            mine["tensor"] = g
    return Mesh(**mine)


def my_samples(num_samples: int, mesh: Mesh) -> list[int]:
    """Return the numbers of the samples that this rank reads, in rising order.

    The data axis divides the batch, and its size divides num_samples.
    """
    each = num_samples // mesh.data.size()
    return list(range(each * mesh.data.rank(), each * (mesh.data.rank() + 1)))


class Gather(torch.autograd.Function):
    """Put the slices of all tensor ranks together; backward adds the ranks' gradients and returns this rank's slice."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, places: list[int], length: int, group: dist.ProcessGroup) -> Tensor:
        ctx.places, ctx.group = places, group
        whole = part.new_zeros(len(part), length, part.shape[2]).index_copy(1, torch.tensor(places), part)
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient[:, ctx.places], None, None, None


class Add(torch.autograd.Function):
    """Add the partial outputs of all tensor ranks; the gradient of the sum is that of each partial output."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        whole = part.clone()
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Block(nn.Module):
    """A feed-forward block with tensor parallelism: the inner width is divided, the norm works on slices of tokens.

    All weights but the hint's and the frozen one's have a gradient on each rank.
    """

    def __init__(self, width: int, inner: int, mesh: Mesh) -> None:
        super().__init__()
        self.mesh = mesh
        mine = len(torch.arange(inner).tensor_split(mesh.tensor.size())[mesh.tensor.rank()])
        self.norm = nn.LayerNorm(width)  # every rank has it whole; a tensor rank normalizes its slice of the tokens
        self.up = nn.Linear(width, mine)  # this tensor rank's part; it sees all tokens
        self.down = nn.Linear(mine, width, bias=False)  # this tensor rank's part; its output is a part of a sum
        self.bias = nn.Parameter(torch.zeros(width))  # whole; every rank adds it to the complete sum, for all tokens
        self.hint = nn.Parameter(torch.zeros(width))  # as the bias, but only if the samples have hints
        self.scale = nn.Parameter(torch.ones(width), requires_grad=False)  # frozen

    def forward(self, x_BTD: Tensor, has_hint: bool) -> Tensor:
        num_tokens, tensor = x_BTD.shape[1], self.mesh.tensor
        places = torch.arange(num_tokens).tensor_split(tensor.size())[tensor.rank()].tolist()
        normalized = Gather.apply(self.norm(x_BTD[:, places]), places, num_tokens, tensor)
        y_BTD = Add.apply(self.down(torch.tanh(self.up(normalized))), tensor) + self.bias
        return self.scale * (y_BTD + self.hint if has_hint else y_BTD)


def reduce_gradients(block: Block) -> None:
    """After backward: turn each gradient into that of the mean loss over all samples, for the weights of this rank.

    Each rank's loss is the mean over the samples that it has read.
    """
    for name, p in block.named_parameters():
        if not p.requires_grad:
            continue
        has = torch.tensor(float(p.grad is not None))
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if name.startswith("norm"):
            dist.all_reduce(p.grad, group=block.mesh.tensor)
        dist.all_reduce(p.grad, group=block.mesh.data)
        dist.all_reduce(has, group=block.mesh.data)
        p.grad /= max(1, has.item())
