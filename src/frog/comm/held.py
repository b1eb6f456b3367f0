"""What a rank holds of tensors that the world shares out: boxes of them, under the whole model's names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frog.comm.axis import Axis

_GROUP_ELEMENTS = 2**22


@dataclass(frozen=True)
class Held:
    """A box of a whole tensor, as this rank holds it."""

    name: str
    tensor: Tensor
    """The values, in the box's shape; a view, so that writing into it changes what the rank holds."""
    offset: tuple[int, ...]
    """Where the box begins in the whole tensor, dim by dim."""
    whole: tuple[int, ...]
    """The shape of the whole tensor."""
    copies: tuple[int, int] | None = (0, 1)
    """Which of how many equal copies this is; None for a copy that leaves speaking to the others."""

    @property
    def key(self) -> str:
        """A name of its own for each box: the tensor's, and where the box begins unless it is all of it."""
        return self.name if self.is_whole else f"{self.name}@{','.join(map(str, self.offset))}"

    @property
    def is_whole(self) -> bool:
        return tuple(self.tensor.shape) == self.whole


def whole_copy(name: str, tensor: Tensor, axis: Axis) -> Held:
    """A tensor that every rank of `axis` holds whole, and no other."""
    return Held(name, tensor, (0,) * tensor.dim(), tuple(tensor.shape), (axis.rank, axis.size))


def flat_boxes(shape: Sequence[int], start: int, count: int) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Cut the elements [start, start + count) of a tensor, counted row by row, into boxes.

    At most one box for the rest of a row, one for whole rows, one for the beginning of a row; and so on in each row.

    Shapes:  yields (how many elements after `start`, the box's offset, the box's shape)
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
        for after, offset, box in flat_boxes(shape[1:], within, part):
            yield done + after, (at, *offset), (1, *box)
        done += part


def held_slice(
    name: str,
    values: Tensor,
    first: int,
    local: Sequence[int],
    corner: Sequence[int],
    whole: Sequence[int],
    copies: tuple[int, int] | None,
) -> list[Held]:
    """The boxes of a run of elements of a parameter that is itself a box of the whole model's.

    Shapes:  values (n,): elements [first, first + n) of a tensor of shape `local`, which begins at `corner` of `whole`
    """
    boxes = []
    for after, offset, shape in flat_boxes(local, first, values.numel()):
        part = values[after : after + math.prod(shape)].view(shape)
        at = tuple(a + b for a, b in zip(corner, offset, strict=True))
        boxes.append(Held(name, part, at, tuple(whole), copies))
    return boxes


def target_of(whole: Tensor, held: Held) -> Tensor:
    """The place of a box in the whole tensor, as a view."""
    for dim, (start, size) in enumerate(zip(held.offset, held.tensor.shape, strict=True)):
        whole = whole.narrow(dim, start, size)
    return whole


def assemble(shapes: Mapping[str, tuple[int, ...]], held: Sequence[Held], axis: Axis) -> Iterator[tuple[str, Tensor]]:
    """Whole tensors, bit for bit, on every rank, from the boxes of all; zeros where nobody has any. A collective call.

    Comm:    all-reduces of the tensors' bits, some 16 MiB at a time: all ranks add zeros but the one that speaks.
    """
    boxes: dict[str, list[Held]] = {}
    for box in held:
        if box.copies is not None and box.copies[0] == 0:
            boxes.setdefault(box.name, []).append(box)
    for names in _groups({name: math.prod(shape) for name, shape in shapes.items()}):
        wholes = {name: torch.zeros(shapes[name], device=axis.device) for name in names}
        for name, whole in wholes.items():
            for box in boxes.get(name, []):
                target_of(whole, box).copy_(box.tensor)
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
