"""Describes the value of a cell: a tensor by its shape and numbers, with a digest that shows whether ranks agree."""

from __future__ import annotations

import hashlib
import pprint
from pathlib import Path
from typing import Any

import torch

from frog.core.units import count
from frog.launch.cells.messages import TensorFacts

_SMALL = 12
"""Most numbers of a tensor that is shown in full."""
_MOST_ITEMS, _MOST_LINES, _MOST_CHARACTERS = 20, 40, 4000
_MOST_BYTES = 1 << 30
"""A larger tensor is not compared with the other ranks'."""


def describe(value: Any) -> tuple[str, list[TensorFacts]]:
    """Return the text of a value, and the tensors in it."""
    tensors: list[TensorFacts] = []
    try:
        text = _text(value, "", tensors)
    except Exception as error:  # a broken __repr__ of the user's
        text = f"{type(value).__name__} (its repr failed: {type(error).__name__}: {error})"
    return _bounded(text), tensors


def load_value(path: Path) -> Any:
    """Load a value that a rank has saved, with its tensors on the CPU."""
    return torch.load(path, map_location="cpu", weights_only=False)


def _text(value: Any, place: str, tensors: list[TensorFacts]) -> str:
    if isinstance(value, torch.Tensor):
        tensors.append(TensorFacts(place=place, digest=_digest([value])))
        return tensor_text(value)
    if isinstance(value, torch.nn.Module):
        state = [*value.parameters(), *value.buffers()]
        tensors.append(TensorFacts(place=f"{place} parameters and buffers".strip(), digest=_digest(state)))
        size = sum(parameter.numel() for parameter in value.parameters())
        return f"{value!r}\n{count(size, 'parameter')}"
    if isinstance(value, (dict, list, tuple)) and value and _has_tensors(value):
        return _container_text(value, place, tensors)
    return value if isinstance(value, str) and "\n" in value else pprint.pformat(value, width=88, compact=True)


def _has_tensors(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value
    return any(isinstance(item, (torch.Tensor, torch.nn.Module, dict, list, tuple)) for item in items)


def _container_text(value: Any, place: str, tensors: list[TensorFacts]) -> str:
    pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    lines = []
    for key, item in pairs[:_MOST_ITEMS]:
        inner = f"{place}.{key}".lstrip(".") if isinstance(key, str) else f"{place}[{key!r}]"
        text = _text(item, inner, tensors)
        lines.append(f"{key!r}: {text}".replace("\n", "\n  "))
    more = [f"and {count(len(pairs) - _MOST_ITEMS, 'more item')}"] if len(pairs) > _MOST_ITEMS else []
    return "\n".join([f"{type(value).__name__} of {len(pairs)}", *(f"  {line}" for line in [*lines, *more])])


def tensor_text(tensor: torch.Tensor) -> str:
    """Describe a tensor: `tensor (2, 3) float32 cpu`, and its values if they are few, else min, mean and max."""
    kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else type(tensor).__name__
    kind = "tensor" if kind == "Tensor" else kind
    shape = "(" + ", ".join(map(str, tensor.shape)) + ")"
    head = f"{kind} {shape} {str(tensor.dtype).removeprefix('torch.')} {tensor.device}"
    try:
        return f"{head}: {_numbers(tensor.detach())}"
    except Exception:  # a meta, sparse or sharded tensor has no numbers here
        return head


def _numbers(tensor: torch.Tensor) -> str:
    if tensor.numel() <= _SMALL:
        return _value_text(tensor.cpu().tolist())
    if tensor.is_complex():
        return f"mean magnitude {_number(tensor.abs().float().mean().item())}"
    if tensor.dtype is torch.bool:
        return f"{int(tensor.sum())} of {tensor.numel()} true"
    numbers = tensor.float()
    finite = numbers[numbers.isfinite()]
    wrong = tensor.numel() - finite.numel()
    noted = f"; {wrong} of {tensor.numel()} not finite" if wrong else ""
    if not finite.numel():
        return noted.lstrip("; ")
    least, mean, most = (_number(each.item()) for each in (finite.min(), finite.mean(), finite.max()))
    return f"min {least}, mean {mean}, max {most}{noted}"


def _value_text(values: Any) -> str:
    if isinstance(values, list):
        return "[" + ", ".join(map(_value_text, values)) + "]"
    return _number(values) if isinstance(values, float) else str(values)


def _number(number: float) -> str:
    return f"{number:.5g}"


def _digest(tensors: list[torch.Tensor]) -> str | None:
    """Return a digest of tensors: equal if and only if shapes, dtypes and all bytes are."""
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors) > _MOST_BYTES:
        return None
    digest = hashlib.blake2b(digest_size=16)
    try:
        for tensor in tensors:
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype};".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    except Exception:  # a meta, sparse or sharded tensor
        return None
    return digest.hexdigest()


def _bounded(text: str) -> str:
    lines = text.splitlines()
    if len(lines) > _MOST_LINES:
        half = _MOST_LINES // 2
        lines = [*lines[:half], f"... {count(len(lines) - 2 * half, 'line')} ...", *lines[-half:]]
    short = "\n".join(lines)
    return short if len(short) <= _MOST_CHARACTERS else f"{short[:_MOST_CHARACTERS]} ..."
