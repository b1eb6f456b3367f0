"""Two linear layers divided over the ranks: the first by its outputs, the second by its inputs.

Shapes: B batch, T time, D model width, F width between the two layers, f this rank's part of F.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn


def part_of(width: int) -> slice:
    """Return this rank's part of a width. No two parts differ by more than one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return slice(rank * width // size, (rank + 1) * width // size)


class CopyToRanks(torch.autograd.Function):
    """The identity, where one tensor goes into the computations of all ranks.

    Comm:  forward none, because every rank has the tensor; backward one all-reduce.
    """

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        """Return the gradient of x. `gradient` is the part of it that comes from this rank's computation."""
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


class SumOfRanks(torch.autograd.Function):
    """The sum of all ranks' tensors, on every rank.

    Comm:  forward one all-reduce; backward none.
    """

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        """Return the gradient of this rank's x. All ranks compute the same loss from the sum: `gradient` is equal."""
        return gradient


class ColumnParallelLinear(nn.Module):
    """Some of the outputs of a linear layer. (Torch stores a weight as (outputs, inputs): an output is a row of it.)

    Shapes:  x_BTD (B, T, D) -> (B, T, f)
    Layout:  every rank passes the same x; weight and bias are this rank's part of `whole`'s outputs.
    """

    def __init__(self, whole: nn.Linear) -> None:
        super().__init__()
        self.num_outputs = whole.out_features
        part = part_of(whole.out_features)
        self.weight = nn.Parameter(whole.weight.detach()[part].clone())
        self.bias = None if whole.bias is None else nn.Parameter(whole.bias.detach()[part].clone())

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTf = nn.functional.linear(CopyToRanks.apply(x_BTD), self.weight, self.bias)
        y_BTF = y_BTf.new_zeros(*y_BTf.shape[:-1], self.num_outputs)
        y_BTF[..., part_of(self.num_outputs)] = y_BTf
        return SumOfRanks.apply(y_BTF)


class RowParallelLinear(nn.Module):
    """A linear layer that has some of the inputs on each rank.

    Shapes:  x_BTf (B, T, f) -> (B, T, D)
    Layout:  weight is this rank's part of `whole`'s inputs, in memory of its own; each rank has the whole bias (or
             None, if `whole` has none), and after backward its whole gradient. The result is equal on all ranks.
    """

    def __init__(self, whole: nn.Linear) -> None:
        super().__init__()
        part = part_of(whole.in_features)
        self.weight = nn.Parameter(whole.weight.detach()[:, part].clone())
        self.bias = None if whole.bias is None else nn.Parameter(whole.bias.detach().clone())

    def forward(self, x_BTf: Tensor) -> Tensor:
        x_BTf = x_BTf[..., part_of(x_BTf.shape[-1])]
        y_BTD = SumOfRanks.apply(nn.functional.linear(x_BTf, self.weight))
        return y_BTD if self.bias is None else y_BTD + self.bias
