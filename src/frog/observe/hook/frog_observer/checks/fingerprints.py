"""Small numbers that stand for a tensor, so that ranks can be compared without sending tensors.

Three numbers per tensor. `bits` is the sum of its elements' bit patterns as integers: exact, so two replicas that are
equal have equal bits, in whatever order they were added. `sketch` is the dot product with a fixed pseudo-random vector
indexed by the element's place in the whole tensor, so that the sketches of shards add up to that of the whole. `norm`
is the Euclidean norm. Sketch and norm are computed in float64. Nothing here draws random numbers of the program's.
"""

from __future__ import annotations

import sys
from typing import Any

_WIDTH, _ROWS = 4096, 1024
"""The vector is a product: place p has the number `across[p % width] * down[p // width % rows]`."""
_SEED = 20_111
_CHUNK_ROWS = {"cpu": 16}
"""Rows to convert at once, on a kind of device; `_ROWS` on others. On a CPU, large new tensors cost more than sums."""
_INTEGERS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}
_MOST_ROWS, _MOST_ROW_ELEMENTS = 256, 1 << 22
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


def bits(tensor: Any) -> Any:
    """Return the sum of the bit patterns, as a tensor without dimensions."""
    torch = _torch()
    flat = local_of(tensor).reshape(-1)
    if flat.dtype.is_complex:
        flat = torch.view_as_real(flat).reshape(-1)
    if flat.dtype == torch.bool:
        return flat.sum(dtype=torch.int64)
    flat = flat.view(getattr(torch, _INTEGERS[flat.element_size()]))
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for part in flat.split(_CHUNK_ROWS.get(flat.device.type, _ROWS) * _WIDTH):
        total = total + part.sum(dtype=torch.int64)
    return total


def sketch_and_norm(tensor: Any, offset: int = 0) -> tuple[Any, Any]:
    """Return the sketch and the squared norm, as float64 tensors without dimensions.

    offset: the place of the first element in the whole tensor, in elements.
    """
    torch = _torch()
    flat = local_of(tensor).reshape(-1)
    if flat.dtype.is_complex:
        flat = torch.view_as_real(flat).reshape(-1)
    across, down = vector(flat.device)
    most_rows = _CHUNK_ROWS.get(flat.device.type, _ROWS)
    sketch = torch.zeros((), dtype=torch.float64, device=flat.device)
    square = torch.zeros((), dtype=torch.float64, device=flat.device)
    place, end = 0, flat.numel()
    while place < end:
        row, column = divmod(offset + place, _WIDTH)
        if column or end - place < _WIDTH:  # a part of one row
            length = min(_WIDTH - column, end - place)
            part = flat[place : place + length].double()
            sketch = sketch + torch.dot(part, across[column : column + length]) * down[row % _ROWS]
        else:  # whole rows
            rows = min((end - place) // _WIDTH, _ROWS - row % _ROWS, most_rows)
            length = rows * _WIDTH
            part = flat[place : place + length].double()
            begin = row % _ROWS
            sketch = sketch + torch.dot(torch.mv(part.view(rows, _WIDTH), across), down[begin : begin + rows])
        square = square + torch.dot(part, part)
        place += length
    return sketch, square


def sketch_error(count: int, norm: float) -> float:
    """Return a bound for the rounding error of a sketch of `count` elements whose Euclidean norm is `norm`.

    A dot product in float64 errs by at most n * 2^-53 * sum |x_i||v_i| to first order, whatever the order of its
    additions (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1), and the sum is at most the
    product of the norms (Cauchy-Schwarz). A row adds `_WIDTH` products, a chunk its rows, and the chunks are added.
    """
    rows = -(-count // _WIDTH)
    additions = min(count, _WIDTH) + min(rows, _ROWS) + -(-rows // min(_CHUNK_ROWS.values())) + 3
    return float(additions * 2.0**-53 * norm * count**0.5 * _LARGEST)


_LARGEST = 3.0
"""No element of the vector is larger: each factor lies between -sqrt(3) and sqrt(3)."""


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
    return bool(torch.isfinite(local.sum(dtype=wide))) or bool(torch.isfinite(local).all())


def sampled(tensor: Any) -> Any:
    """Return a copy of at most `MOST_SAMPLED` elements, evenly spaced."""
    flat = local_of(tensor).reshape(-1)
    stride = max(1, -(-flat.numel() // MOST_SAMPLED))
    return flat[::stride].clone()


def parts(sample: Any) -> list[float]:
    """Return the dot products of four parts of a tensor's sampled elements with the vector, computed on the CPU."""
    torch = _torch()
    numbers = sample.detach().cpu()
    numbers = (torch.view_as_real(numbers).reshape(-1) if numbers.dtype.is_complex else numbers).double()
    products = numbers * vector(numbers.device)[0][: numbers.numel()]
    return [float(part.sum()) for part in products.tensor_split(4)]


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
