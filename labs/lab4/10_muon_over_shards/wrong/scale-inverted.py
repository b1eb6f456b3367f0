"""Muon for parameters that are sharded over the ranks."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass
class Piece:
    """This rank's part of one parameter. Flattened row by row, the parameter is the ranks' parts end to end."""

    shape: list[int]  # the whole parameter's: [rows, columns] of a matrix, or [length] of a vector
    counts: list[int]  # how many elements each rank holds, in the order of the ranks; they differ, and may be 0
    weight: Tensor  # this rank's elements, with one dimension; so are grad and momentum
    grad: Tensor  # the mean over the ranks
    momentum: Tensor  # zeros before the first step


def orthogonalize(matrix_RC: Tensor) -> Tensor:
    """Move all singular values of a matrix close to 1, and keep its singular vectors (Newton-Schulz iteration)."""
    num_rows, num_columns = matrix_RC.shape
    if num_rows > num_columns:
        return orthogonalize(matrix_RC.T).T
    x_RC = matrix_RC / matrix_RC.norm().clamp(min=1e-7)
    for _ in range(5):
        gram_RR = x_RC @ x_RC.T
        x_RC = 3.4445 * x_RC + (-4.7750 * gram_RR + 2.0315 * gram_RR @ gram_RR) @ x_RC
    return x_RC


@torch.no_grad()
def muon_step(pieces: list[Piece], rate: float, momentum: float) -> None:
    """Move every piece's weight as one process would that holds the whole parameters.

    For a whole parameter, one process would compute:

        mean = momentum * mean + (1 - momentum) * grad     # kept in piece.momentum
        update = momentum * mean + (1 - momentum) * grad   # with the new mean
        if the parameter is a matrix:
            update = orthogonalize(update) * sqrt(max(1, rows / columns))
        weight = weight - rate * update

    pieces:  of all parameters, in the same order on each rank. `weight` and `momentum` are changed in place.
    Comm:    each matrix is gathered once in a step, vectors never.
    Memory:  between two steps, nothing but the pieces.
    """
    world, me = dist.get_world_size(), dist.get_rank()
    for p in pieces:
        p.momentum.mul_(momentum).add_(p.grad * (1 - momentum))
        update = momentum * p.momentum + (1 - momentum) * p.grad
        if len(p.shape) == 2:
            parts = [torch.empty(n) for n in p.counts]
            longest = max(p.counts)
            padded = torch.nn.functional.pad(update, (0, longest - len(update)))
            got = [torch.empty(longest) for _ in p.counts]
            dist.all_gather(got, padded)
            whole = torch.cat([g[:n] for g, n in zip(got, p.counts)])
            o = orthogonalize(whole.view(*p.shape)) * max(1.0, p.shape[1] / p.shape[0]) ** 0.5
            start = sum(p.counts[:me])
            update = o.flatten()[start : start + p.counts[me]]
        p.weight -= rate * update
