"""Local shards: one rank's part of tensors that are split over the world, under the names of the whole model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frog.train.comm.axis import Axis

_GROUP_ELEMENTS = 2**22


@dataclass(frozen=True)
class LocalShard:
    """A rectangular part of a whole tensor on this rank."""

    name: str
    tensor: Tensor
    """The values, in the shard's shape; a view, so writing to it changes the rank's tensor."""
    offset: tuple[int, ...]
    """The shard's start in the whole tensor, one index per dim."""
    whole: tuple[int, ...]
    """The shape of the whole tensor."""
    copies: tuple[int, int] | None = (0, 1)
    """Index of this copy and number of equal copies; None for a copy that only other ranks count."""

    @property
    def key(self) -> str:
        """A unique name for each shard: the tensor's name, plus the shard's start unless it is the whole tensor."""
        return self.name if self.is_whole else f"{self.name}@{','.join(map(str, self.offset))}"

    @property
    def is_whole(self) -> bool:
        return tuple(self.tensor.shape) == self.whole


def whole_copy(name: str, tensor: Tensor, axis: Axis) -> LocalShard:
    """Describe a tensor of which every rank of `axis`, and no other rank, has a full copy."""
    return LocalShard(name, tensor, (0,) * tensor.dim(), tuple(tensor.shape), (axis.rank, axis.size))


def rectangles(shape: Sequence[int], start: int, count: int) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Cut the elements [start, start + count) of a tensor, counted row by row, into rectangles.

    This yields at most one for the rest of a row, one for full rows, one for the start of a row; and so on in each row.

    Shapes:  yields (elements after `start`, the rectangle's offset, its shape)
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
    """Split a range of a parameter's elements into shards; the parameter itself is a shard of the whole model's tensor.

    Shapes:  values (n,): elements [first, first + n) of a tensor of shape `local`, which starts at `corner` of `whole`
    """
    shards = []
    for after, offset, shape in rectangles(local, first, values.numel()):
        part = values[after : after + math.prod(shape)].view(shape)
        at = tuple(a + b for a, b in zip(corner, offset, strict=True))
        shards.append(LocalShard(name, part, at, tuple(whole), copies))
    return shards


def target_of(whole: Tensor, shard: LocalShard) -> Tensor:
    """Return the shard's region of the whole tensor, as a view."""
    for dim, (start, size) in enumerate(zip(shard.offset, shard.tensor.shape, strict=True)):
        whole = whole.narrow(dim, start, size)
    return whole


def assemble(
    shapes: Mapping[str, tuple[int, ...]], shards: Sequence[LocalShard], axis: Axis
) -> Iterator[tuple[str, Tensor]]:
    """Assemble whole tensors from all shards, bit for bit, on every rank; zeros where no rank has any. Collective.

    Comm:    all-reduces of the tensors' bits, about 16 MiB each: every rank except a shard's first copy adds zeros.
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
    """Group names, in order, so that each group has about `_GROUP_ELEMENTS` elements."""
    group: list[str] = []
    for name, count in counts.items():
        if group and sum(counts[other] for other in group) + count > _GROUP_ELEMENTS:
            yield group
            group = []
        group.append(name)
    if group:
        yield group
