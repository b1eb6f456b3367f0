"""Between the divided layers, each rank has some of the positions of the sequence.

Shapes: B batch, T time, t this rank's part of T, D model width, f this rank's part of the width between up and down.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn


def slices_of(length: int) -> list[slice]:
    """Return the positions of each rank. No two slices differ in length by more than one."""
    size = dist.get_world_size()
    return [slice(rank * length // size, (rank + 1) * length // size) for rank in range(size)]


def padded(x_BtD: Tensor, length: int) -> Tensor:
    """Return a slice with zeros at its end, so that it is as long as every other rank's."""
    longest = -(-length // dist.get_world_size())
    return nn.functional.pad(x_BtD, (0, 0, 0, longest - x_BtD.shape[1])).contiguous()


def all_gather_positions(x_BtD: Tensor, length: int) -> Tensor:
    """Return all ranks' slices in the order of the sequence: (B, t, D) -> (B, T, D). It has no gradient."""
    own = padded(x_BtD, length)
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    lengths = [one.stop - one.start for one in slices_of(length)]
    return torch.cat([part[:, :t] for part, t in zip(parts, lengths, strict=True)], dim=1)


def reduce_scatter_positions(x_BTD: Tensor) -> Tensor:
    """Return this rank's slice of the sum over the ranks: (B, T, D) -> (B, t, D). It has no gradient."""
    length = x_BTD.shape[1]
    slices = slices_of(length)
    parts = [padded(x_BTD[:, s], length) for s in slices]
    total = torch.empty_like(parts[0])
    dist.reduce_scatter(total, parts)
    own = slices[dist.get_rank()]
    return total[:, : own.stop - own.start]


class GatherPositions(torch.autograd.Function):
    """All ranks' slices, on every rank. Each rank then computes something of its own with the whole sequence.

    Comm:  forward one all-gather; backward one reduce-scatter.
    """

    @staticmethod
    def forward(ctx, x_BtD: Tensor, length: int) -> Tensor:
        return all_gather_positions(x_BtD, length)

    @staticmethod
    def backward(ctx, gradient_BTD: Tensor) -> tuple[Tensor, None]:
        return reduce_scatter_positions(gradient_BTD), None


class ScatterSum(torch.autograd.Function):
    """This rank's slice of the sum of all ranks' tensors.

    Comm:  forward one reduce-scatter; backward one all-gather.
    """

    @staticmethod
    def forward(ctx, x_BTD: Tensor) -> Tensor:
        ctx.length = x_BTD.shape[1]
        return reduce_scatter_positions(x_BTD)

    @staticmethod
    def backward(ctx, gradient_BtD: Tensor) -> Tensor:
        return all_gather_positions(gradient_BtD, ctx.length)


class Block(nn.Module):
    """x + down(tanh(up(norm(x)))).

    Layout:  norm and bias are whole on every rank. up has this rank's outputs, down (which has no bias of its own) the
             same inputs: lab 5.1. bias is that of the whole down layer.
    """

    def __init__(self, norm: nn.LayerNorm, up: nn.Linear, down: nn.Linear, bias: nn.Parameter) -> None:
        super().__init__()
        self.norm, self.up, self.down, self.bias = norm, up, down, bias

    def forward(self, x_BtD: Tensor, length: int) -> Tensor:
        """Compute the block for this rank's slice of a sequence. The norm, too, sees only the slice."""
        h_BTD = GatherPositions.apply(self.norm(x_BtD), length)
        y_BTD = self.down(torch.tanh(self.up(h_BTD)))
        y_BTD = y_BTD + self.bias / dist.get_world_size()
        return x_BtD + ScatterSum.apply(y_BTD)


class Model(nn.Module):
    """An embedding, blocks and a norm. All ranks get the whole sequence; each returns the result for its slice."""

    def __init__(self, embed: nn.Embedding, blocks: list[Block], norm: nn.LayerNorm) -> None:
        super().__init__()
        self.embed, self.blocks, self.norm = embed, nn.ModuleList(blocks), norm

    def forward(self, tokens_BT: Tensor) -> Tensor:
        length = tokens_BT.shape[1]
        x_BtD = self.embed(tokens_BT[:, slices_of(length)[dist.get_rank()]])
        for block in self.blocks:
            x_BtD = block(x_BtD, length)
        return self.norm(x_BtD)


def sum_gradients(model: Model) -> None:
    """Complete the gradients of a step on every rank. It is called once, after the last backward.

    Then the gradients of the parameters that are whole on every rank are those of the whole sequence, and equal on all
    ranks. A frozen parameter, or one that was not used, has the gradient None, on all ranks.
    """
    blocks = [p for block in model.blocks for p in (*block.norm.parameters(), block.bias)]
    for parameter in (*model.embed.parameters(), *blocks, *model.norm.parameters()):
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
