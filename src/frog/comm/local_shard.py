"""Local shards: what one rank holds of tensors that are split over the world, under the whole model's names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frog.comm.axis import Axis

_GROUP_ELEMENTS = 2**22


@dataclass(frozen=True)
class LocalShard:
    """A rectangular piece of a whole tensor, as this rank holds it."""

    name: str
    tensor: Tensor
    """The values, in the shard's shape; a view, so that writing into it changes what the rank holds."""
    offset: tuple[int, ...]
    """Where the shard begins in the whole tensor, dim by dim."""
    whole: tuple[int, ...]
    """The shape of the whole tensor."""
    copies: tuple[int, int] | None = (0, 1)
    """Which of how many equal copies this is; None for a copy that only the others count."""

    @property
    def key(self) -> str:
        """A name of its own for each shard: the tensor's, and where the shard begins unless it is all of it."""
        return self.name if self.is_whole else f"{self.name}@{','.join(map(str, self.offset))}"

    @property
    def is_whole(self) -> bool:
        return tuple(self.tensor.shape) == self.whole


def whole_copy(name: str, tensor: Tensor, axis: Axis) -> LocalShard:
    """A tensor that every rank of `axis` holds whole, and no other."""
    return LocalShard(name, tensor, (0,) * tensor.dim(), tuple(tensor.shape), (axis.rank, axis.size))


def rectangles(shape: Sequence[int], start: int, count: int) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Cut the elements [start, start + count) of a tensor, counted row by row, into rectangles.

    At most one for the rest of a row, one for whole rows, one for the beginning of a row; and so on in each row.

    Shapes:  yields (how many elements after `start`, the rectangle's offset, its shape)
    """
    if count == 0:
        return
    if not shape:
        yield 0, (), ()
        return
    row = math.prod(shape[1:])
    done = 0
    while done < count:
        at, within = divmod(start + done, row)
        if within == 0 and count - done >= row:
            rows = (count - done) // row
            yield done, (at, *(0 for _ in shape[1:])), (rows, *shape[1:])
            done += rows * row
            continue
        part = min(row - within, count - done)
        for after, offset, size in rectangles(shape[1:], within, part):
            yield done + after, (at, *offset), (1, *size)
        done += part


def slice_shards(
    name: str,
    values: Tensor,
    first: int,
    local: Sequence[int],
    corner: Sequence[int],
    whole: Sequence[int],
    copies: tuple[int, int] | None,
) -> list[LocalShard]:
    """The shards that a run of elements of a parameter makes; the parameter is itself a shard of the whole model's.

    Shapes:  values (n,): elements [first, first + n) of a tensor of shape `local`, which begins at `corner` of `whole`
    """
    shards = []
    for after, offset, shape in rectangles(local, first, values.numel()):
        part = values[after : after + math.prod(shape)].view(shape)
        at = tuple(a + b for a, b in zip(corner, offset, strict=True))
        shards.append(LocalShard(name, part, at, tuple(whole), copies))
    return shards


def target_of(whole: Tensor, shard: LocalShard) -> Tensor:
    """The place of a shard in the whole tensor, as a view."""
    for dim, (start, size) in enumerate(zip(shard.offset, shard.tensor.shape, strict=True)):
        whole = whole.narrow(dim, start, size)
    return whole


def assemble(
    shapes: Mapping[str, tuple[int, ...]], shards: Sequence[LocalShard], axis: Axis
) -> Iterator[tuple[str, Tensor]]:
    """Whole tensors, bit for bit, on every rank, from the shards of all; zeros where nobody has any. A collective call.

    Comm:    all-reduces of the tensors' bits, some 16 MiB at a time: all ranks add zeros but the first of its copies.
    """
    by_name: dict[str, list[LocalShard]] = {}
    for shard in shards:
        if shard.copies is not None and shard.copies[0] == 0:
            by_name.setdefault(shard.name, []).append(shard)
    for names in _groups({name: math.prod(shape) for name, shape in shapes.items()}):
        wholes = {name: torch.zeros(shapes[name], device=axis.device) for name in names}
        for name, whole in wholes.items():
            for shard in by_name.get(name, []):
                target_of(whole, shard).copy_(shard.tensor)
        bits = torch.cat([whole.view(-1) for whole in wholes.values()]).view(torch.int32)
        axis.all_reduce(bits)
        start = 0
        for name, whole in wholes.items():
            end = start + whole.numel()
            yield name, bits[start:end].view(torch.float32).view(shapes[name])
            start = end


def _groups(counts: Mapping[str, int]) -> Iterator[list[str]]:
    """Names, in order, so many together that their elements are some `_GROUP_ELEMENTS`."""
    group: list[str] = []
    for name, count in counts.items():
        if group and sum(counts[other] for other in group) + count > _GROUP_ELEMENTS:
            yield group
            group = []
        group.append(name)
    if group:
        yield group
