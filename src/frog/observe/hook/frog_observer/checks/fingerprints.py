"""Small numbers that stand for a tensor, so that ranks can be compared without sending tensors.

Two numbers per tensor. `bits` is the sum of its elements' bit patterns as integers: exact, so two replicas that are
equal have equal bits, in whatever order they were added. `norm` is the Euclidean norm, computed in float64. Where
numbers must add up, as those of shards or of micro-batches do, there are products with a fixed pseudo-random vector.
Nothing here draws random numbers of the program's.
"""

from __future__ import annotations

import math
import sys
from typing import Any

_WIDTH, _ROWS = 4096, 1024
"""The vector is a product: place p has the number `across[p % width] * down[p // width % rows]`."""
_SEED = 20_111
_INTEGERS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}
_MOST_ROWS, _MOST_ROW_ELEMENTS = 256, 1 << 22
_SMALL = 4096
"""Most elements of a tensor that is taken together with others."""
MOST_SAMPLED = 2048
"""Most elements of a tensor that are compared one by one before and after a step."""

_vectors: dict[str, tuple[Any, Any]] = {}


def _torch() -> Any:
    return sys.modules["torch"]


def local_of(tensor: Any) -> Any:
    """Return this rank's own part of a tensor: of a DTensor its shard, of a sparse one its values."""
    tensor = tensor.detach()
    local = getattr(tensor, "_local_tensor", None)
    tensor = tensor if local is None else local
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def bits(tensor: Any) -> int:
    """Return the sum of the bit patterns."""
    return bits_of([tensor])[0] or 0


def bits_of(tensors: list[Any]) -> list[int | None]:
    """Return the bits of each tensor; None for no tensor."""
    return [None if each is None else each[0] for each in _bits_and_norms(tensors, with_norms=False)]


def bits_and_norms(tensors: list[Any]) -> list[list[Any] | None]:
    """Return bits and norm of each tensor; None for no tensor, and as the norm if an element is not finite."""
    return [None if each is None else [each[0], finite_or_none(each[1])] for each in _bits_and_norms(tensors)]


def _bits_and_norms(tensors: list[Any], with_norms: bool = True) -> list[tuple[int, float] | None]:
    """Return bits and norm of each tensor; None for no tensor. Small ones are taken together: each call has a cost."""
    by_place: list[tuple[int, float] | None] = [None] * len(tensors)
    small: dict[Any, list[tuple[int, Any]]] = {}
    scratch: dict[Any, Any] = {}
    """Memory for a part of a tensor in 64 bits, by device."""
    for place, tensor in enumerate(tensors):
        if tensor is None or tensor.is_meta:
            continue
        flat = _flat(tensor)
        size = flat.numel()
        if size == 0:
            by_place[place] = 0, 0.0
        elif size <= _SMALL:
            small.setdefault((flat.device, flat.dtype, size.bit_length()), []).append((place, flat))
        else:
            if flat.device not in scratch:
                scratch[flat.device] = _torch().empty(_most_at_once(flat), dtype=_torch().int64, device=flat.device)
            by_place[place] = _of_large(flat, scratch[flat.device], with_norms)
    for group in small.values():
        count = max(1, _most_at_once(group[0][1]) // _SMALL)
        for start in range(0, len(group), count):
            places, flats = zip(*group[start : start + count])  # noqa: B905 Python 3.9
            found_here = _of_small(list(flats), with_norms)
            for place, each in zip(places, found_here):  # noqa: B905
                by_place[place] = each
    return by_place


def _of_small(flats: list[Any], with_norms: bool) -> list[tuple[int, float]]:
    """Return bits and norms of small tensors of one kind on one device. Zeros fill up the shorter ones."""
    torch = _torch()
    rows = torch.nn.utils.rnn.pad_sequence(list(map(_integers, flats)), batch_first=True)
    sums = rows.sum(dim=1, dtype=torch.int64).tolist()
    numbers = rows.view(flats[0].dtype).double() if with_norms else None
    norms = [0.0] * len(flats) if numbers is None else torch.linalg.vector_norm(numbers, dim=1).tolist()
    return list(zip(sums, norms))  # noqa: B905


def _of_large(flat: Any, scratch: Any, with_norms: bool) -> tuple[int, float]:
    """Return bits and norm of a tensor: both of one part before the next, which is then in the processor's cache."""
    torch = _torch()
    sums, squares = [], []
    for part in flat.split(len(scratch)):
        wide = scratch[: len(part)]
        sums.append(wide.copy_(_integers(part)).sum())
        if with_norms:
            numbers = wide.view(torch.float64).copy_(part)
            squares.append(torch.dot(numbers, numbers))
    norm = sum(torch.stack(squares).tolist()) ** 0.5 if with_norms else 0.0
    return int(torch.stack(sums).sum()), norm


def _flat(tensor: Any) -> Any:
    """Return the rank's own numbers in one dimension."""
    flat = local_of(tensor).reshape(-1)
    return _torch().view_as_real(flat).reshape(-1) if flat.dtype.is_complex else flat


def _integers(flat: Any) -> Any:
    """Return the bit patterns of numbers as integers of the same size."""
    return flat.view(getattr(_torch(), _INTEGERS[flat.element_size()]))


def _most_at_once(flat: Any) -> int:
    """Return how many elements to convert at once: on a CPU as many as its cache holds, on others as one call takes."""
    return 1 << (16 if flat.device.type == "cpu" else 22)


def vector(device: Any) -> tuple[Any, Any]:
    """Return the two factors of the vector on a device: uniform numbers with variance 1."""
    torch, key = _torch(), str(device)
    if key not in _vectors:
        generator = torch.Generator(device="cpu").manual_seed(_SEED)
        both = torch.rand(_WIDTH + _ROWS, generator=generator, dtype=torch.float64, device="cpu")
        both = ((both * 2 - 1) * 3**0.5).to(device)
        _vectors[key] = both[:_WIDTH], both[_WIDTH:]
    return _vectors[key]


def is_finite(tensor: Any) -> bool:
    """True if no element is NaN or infinite."""
    torch, local = _torch(), local_of(tensor)
    wide = torch.float64 if local.dtype == torch.float64 else torch.float32
    # a finite sum proves it without a tensor of the same size; another may have overflowed
    return math.isfinite(local.sum(dtype=wide)) or bool(torch.isfinite(local).all())


def sampled(tensor: Any) -> Any:
    """Return a copy of at most `MOST_SAMPLED` elements, evenly spaced."""
    flat = local_of(tensor).reshape(-1)
    stride = max(1, -(-flat.numel() // MOST_SAMPLED))
    return flat[::stride].clone()


def parts_of(samples: list[Any]) -> list[list[float]]:
    """Return the dot products of four parts of each tensor's sampled elements with the vector, computed on the CPU."""
    torch = _torch()
    sums_by_place: dict[int, list[float]] = {}
    alike: dict[int, list[tuple[int, Any]]] = {}
    for place, sample in enumerate(samples):
        numbers = sample.detach().cpu()
        numbers = (torch.view_as_real(numbers).reshape(-1) if numbers.dtype.is_complex else numbers).double()
        alike.setdefault(numbers.numel(), []).append((place, numbers))
    for size, group in alike.items():
        products = torch.stack([numbers for _, numbers in group]) * vector(torch.device("cpu"))[0][:size]
        sums = torch.stack([part.sum(dim=1) for part in products.tensor_split(4, dim=1)], dim=1).tolist()
        sums_by_place.update(zip([place for place, _ in group], sums))  # noqa: B905
    return [sums_by_place[place] for place in range(len(samples))]


def rows(value: Any) -> list[int] | None:
    """Return a number for each sample of a batch; None if the batch holds no tensors with samples.

    value: a tensor whose first dimension counts samples, or a list, tuple or mapping of such, as a DataLoader yields.
    The numbers of two samples are equal if all their elements are, and else almost never.
    """
    torch = _torch()
    tensors = [each for each in tensors_of(value) if each.dim() > 0 and not each.requires_grad]
    if not tensors:
        return None
    count = tensors[0].size(0)
    tensors = [local_of(each)[:_MOST_ROWS] for each in tensors if each.size(0) == count]
    total = None
    for number, tensor in enumerate(tensors):
        if tensor.dtype.is_complex or tensor.numel() == 0:
            continue
        flat = tensor.reshape(tensor.size(0), -1)
        if flat.numel() > _MOST_ROW_ELEMENTS:
            flat = flat[:, :: -(-flat.numel() // _MOST_ROW_ELEMENTS)]
        flat = flat.contiguous()
        if flat.dtype != torch.bool:
            flat = flat.view(getattr(torch, _INTEGERS[flat.element_size()]))
        places = torch.arange(1, flat.size(1) + 1, dtype=torch.int64, device=flat.device)
        factors = (places * 0x9E3779B97F4A7C1 + number) * 2 + 1
        each = (flat.to(torch.int64) * factors).sum(dim=1)
        total = each if total is None else total * 1_000_003 + each
    return None if total is None else [int(each) for each in total.tolist()]


def sizes(value: Any) -> list[int]:
    """Return the first dimension of each tensor of a batch."""
    return [each.size(0) for each in tensors_of(value) if each.dim() > 0][:16]


def tensors_of(value: Any, depth: int = 0) -> list[Any]:
    """Return the tensors of a batch, in order."""
    torch = _torch()
    if isinstance(value, torch.Tensor):
        return [value]
    if depth > 3:
        return []
    if isinstance(value, dict):
        return [tensor for each in value.values() for tensor in tensors_of(each, depth + 1)]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value[:64] for tensor in tensors_of(each, depth + 1)]
    data = getattr(value, "data", None)  # transformers' BatchEncoding is a UserDict
    return tensors_of(data, depth + 1) if isinstance(data, dict) else []


def storage_of(tensor: Any) -> int | None:
    """Return the address of the memory that a tensor is in; None if it has none."""
    try:
        return local_of(tensor).untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # a tensor without memory
        return None


def finite_or_none(number: float) -> float | None:
    """Return a number as JSON can have it."""
    return number if number - number == 0 else None
