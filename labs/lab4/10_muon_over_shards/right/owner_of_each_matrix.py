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


def padded(piece: Piece, values: Tensor) -> Tensor:
    return torch.nn.functional.pad(values, (0, max(piece.counts) - len(values)))


def to_owner(piece: Piece, update: Tensor, owner: int) -> list[Tensor] | None:
    """Gather an update on its owner, which orthogonalizes it. Return all ranks' parts there, and None elsewhere."""
    own = padded(piece, update)
    parts = [torch.empty_like(own) for _ in piece.counts] if dist.get_rank() == owner else None
    dist.gather(own, parts, dst=owner)
    if parts is None:
        return None
    whole = torch.cat([part[:count] for part, count in zip(parts, piece.counts, strict=True)]).view(piece.shape)
    whole = orthogonalize(whole) * max(1, piece.shape[0] / piece.shape[1]) ** 0.5
    return [padded(piece, part) for part in whole.flatten().split(piece.counts)]


def from_owner(piece: Piece, parts: list[Tensor] | None, owner: int) -> Tensor:
    own = torch.empty(max(piece.counts))
    dist.scatter(own, parts, src=owner)
    return own[: piece.counts[dist.get_rank()]]


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
    rank, size = dist.get_rank(), dist.get_world_size()
    number = 0
    for piece in pieces:
        piece.momentum.lerp_(piece.grad, 1 - momentum)
        update = piece.grad.lerp(piece.momentum, momentum)
        if len(piece.shape) == 2:
            update = from_owner(piece, to_owner(piece, update, number % size), number % size)
            number += 1
        piece.weight.sub_(update, alpha=rate)
