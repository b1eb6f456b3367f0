"""Record what each module computes in a step, so that a run on one rank and a run on many can be compared.

Where a number of a check stands for a whole tensor, these stand for it in any division among ranks: sums over all of
its elements, in which a dimension is either weighted by a fixed pseudo-random vector or added up. Every sum is linear,
so the sums of the ranks' parts add up to those of the whole. A dimension that has the same size on one rank and on many
is weighted in both; one that is divided among ranks (samples, tokens, heads, features) is only added up, and needs no
offset. FROG_CHECK_MODULES asks for it: `1`, or `rounded` to change the weights at the first forward as rounding may.
"""

from __future__ import annotations

import math
import os
import sys
from typing import Any

from . import fingerprints, module_facts

VARIABLE = "FROG_CHECK_MODULES"
ROUNDED = "rounded"
_MOST_DIMENSIONS = 4
"""Later dimensions are taken as one."""
_MOST_AT_ONCE = 1 << 22
"""Elements to convert to float64 at once."""
_MOST_OUTPUTS = 4
_SEED = 977


class Sums:
    """The sums of the tensors that a module returned in a step."""

    def __init__(self, kind: str = "", line: Any = None) -> None:
        self.kind, self.line = kind, line
        self.calls, self.elements = 0, 0.0
        self.dims: list[int] = []
        self.total: Any = None
        self.square: Any = None
        self.is_partial = False
        """True if the ranks' tensors are still to be added: the squares of summands say nothing about the sum's."""

    def add(self, tensor: Any, weighs_first: bool, place: Any = None) -> None:
        """Add a tensor, whose first dimension counts samples unless it is to be weighted.

        place: where its first element is in a whole tensor, and the whole's shape. As each dimension then begins where
        it does in the whole, the sums of the parts add up in all of them, and count as the whole's.
        """
        local, summands = fingerprints.local_of(tensor), _summands(tensor)
        sums = Sums()
        sums.calls, sums.elements, sums.dims, sums.is_partial = 1, local.numel() / summands, _dims(local), summands > 1
        starts = [0] * len(sums.dims)
        if place is not None and len(place[1]) == local.dim() <= _MOST_DIMENSIONS and local.dim():
            starts, sums.dims = list(place[0]), list(place[1])
        sums.total, sums.square = _sums(local.reshape(_dims(local)), weighs_first, starts)
        self.merge(sums)

    def merge(self, other: Sums) -> None:
        """Add what another call returned."""
        total = other.total
        if self.total is None:
            self.dims = other.dims
        elif self.total.shape != total.shape:  # another number of dimensions: only the sum
            self.dims, total, self.total = [], total.reshape(-1)[:1], self.total.reshape(-1)[:1]
        else:
            self.dims = [size if size == other.dims[number] else -1 for number, size in enumerate(self.dims)]
        self.total = total if self.total is None else self.total + total
        self.square = other.square if self.square is None else self.square + other.square
        self.calls += other.calls
        self.is_partial |= other.is_partial
        self.elements += other.elements

    def record(self) -> dict[str, Any]:
        numbers = [*self.total.reshape(-1).tolist(), float(self.square)]
        finite = all(number - number == 0 for number in numbers)
        return {
            "class": self.kind,
            "line": self.line,
            "calls": self.calls,
            "dims": self.dims,
            "elements": self.elements,
            "sums": numbers[:-1] if finite else None,
            "square": numbers[-1] if finite and not self.is_partial else None,
        }


class _Call:
    """What a call of a module returned."""

    def __init__(self, sums: Sums, has_gradient: bool) -> None:
        self.sums, self.has_gradient = sums, has_gradient


class ModuleSums:
    """The sums of all modules in the step that is under way."""

    def __init__(self, asked: str) -> None:
        self._rounds = asked == ROUNDED
        self._names: dict[int, str] = {}
        """Names of the modules below the outermost ones, by id; they live as long as the program's model."""
        self._known: set[int] = set()
        self._rounded: set[Any] = set()
        self._outputs: dict[str, list[_Call]] = {}
        self._gradients: dict[str, Sums] = {}

    def begin(self, number: int, root: Any, optimizers: Any = ()) -> None:
        """Take an outermost module that is about to run.

        optimizers: one that holds flat tensors names their parts, and the model that has the module.
        """
        if id(root) not in self._known:
            model = next((each.whole_model for each in optimizers if hasattr(each, "whole_model")), None)
            if model is not None and any(each is root for each in model.modules()):
                number, root = 0, model  # a pipeline calls its layers one by one
                self._known.update(id(each) for each in model.modules())
            self._known.add(id(root))
            for name, module in root.named_modules():
                if not module_facts.is_wrapper(module):
                    own = module_facts.plain_name(name) or "the model"
                    self._names[id(module)] = own if number == 0 else f"{own} of model {number}"
        if self._rounds:
            self._round(_weights_of(root, optimizers))

    def _round(self, weights: list[tuple[Any, Any, Any]]) -> None:
        """Change each weight by as much as rounding changes a result that is computed from it.

        That is half a unit in the last place of the type of the result, or of float32 times the root of the number of
        inputs, since sums are kept in float32 at least, and the error of a sum of n products grows with the root of n
        (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019).
        """
        torch: Any = sys.modules["torch"]
        generator = torch.Generator(device="cpu").manual_seed(_SEED)
        for key, local, shape in weights:
            if key in self._rounded or not local.is_floating_point():
                continue
            self._rounded.add(key)
            inputs = max(1, math.prod(shape[1:]))
            unit = _unit(torch, local.dtype)
            unit = max(unit, min(unit, _unit_of(torch, torch.float32)) * inputs**0.5)
            signs = torch.randint(2, local.shape, generator=generator, device="cpu").to(local.device) * 2 - 1
            local.copy_((local.double() * (1 + unit * signs)).to(local.dtype))

    def output(self, module: Any, output: Any, line: Any) -> None:
        """Take what a module returned to the line that called it, and its gradient when it is there."""
        name = self._names.get(id(module))
        if name is None:
            return
        tensors = fingerprints.tensors_of(output)
        tensors = [each for each in tensors if each.is_floating_point() and each.dim() and not each.is_meta]
        for number, tensor in enumerate(tensors[:_MOST_OUTPUTS]):
            key = name if number == 0 else f"{name}[{number}]"
            sums = Sums(type(module).__name__, line)
            sums.add(tensor, weighs_first=False)
            call = _Call(sums, not tensor.requires_grad)
            self._outputs.setdefault(key, []).append(call)
            if tensor.requires_grad:
                tensor.register_hook(self._gradient_of(key, call))

    def _gradient_of(self, key: str, call: _Call) -> Any:
        def take(gradient: Any) -> None:
            torch: Any = sys.modules["torch"]
            call.has_gradient = True
            with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
                sums = self._gradients.setdefault(key, Sums(call.sums.kind, call.sums.line))
                sums.add(gradient, weighs_first=False)

        return take

    def take(self) -> dict[str, Any]:
        """Return the sums of the step that ends, in the order in which the modules ended.

        A call that no backward pass has used says nothing about the step: a pipeline that asks for shapes runs its
        stages on memory that was never written.
        """
        outputs = {}
        for name, calls in self._outputs.items():
            used = [call for call in calls if call.has_gradient] or calls
            whole = Sums(calls[0].sums.kind, calls[0].sums.line)
            for call in used:
                whole.merge(call.sums)
            outputs[name] = whole.record()
        record = {
            "outputs": outputs,
            "output_gradients": {name: sums.record() for name, sums in self._gradients.items()},
        }
        self._outputs, self._gradients = {}, {}
        return record


def of_tensors(tensors: list[Any], places: list[Any] | None = None) -> list[dict[str, Any] | None]:
    """Return the sums of parameters or of their gradients, with the first dimension weighted too.

    places: where each part is in its whole parameter, and the whole's shape.
    """
    records: list[dict[str, Any] | None] = []
    for number, tensor in enumerate(tensors):
        if tensor is None or tensor.is_meta:
            records.append(None)
            continue
        sums = Sums()
        sums.add(tensor, weighs_first=True, place=None if places is None else places[number])
        records.append(sums.record())
    return records


def _weights_of(root: Any, optimizers: Any) -> list[tuple[Any, Any, Any]]:
    """Return what holds this rank's weights: a key for each, the tensor, the shape of the whole."""
    parts = [part for each in optimizers if hasattr(each, "named_parts") for part in each.named_parts()]
    if parts:
        return [((name, *offset), part, whole) for name, offset, whole, part, _ in parts]
    weights = []
    for parameter in root.parameters():
        # DeepSpeed's ZeRO-3 keeps the shard of a parameter, which is empty meanwhile, in an attribute
        local = getattr(parameter, "ds_tensor", None)
        local = getattr(parameter.detach(), "_local_tensor", parameter.detach()) if local is None else local
        weights.append((id(parameter), local, getattr(parameter, "ds_shape", parameter.shape)))
    return weights


def asked() -> str:
    """Return what the environment asks for; empty for nothing."""
    return os.environ.get(VARIABLE, "")


def _unit(torch: Any, dtype: Any) -> float:
    """Return half a unit in the last place of 1, of the type in which a module computes."""
    kinds = [dtype]
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            kinds.append(torch.get_autocast_dtype(device))
    return max(_unit_of(torch, kind) for kind in kinds)


def _unit_of(torch: Any, kind: Any) -> float:
    return float(torch.finfo(kind).eps) / 2


def _dims(tensor: Any) -> list[int]:
    dims = list(tensor.shape) or [1]
    if len(dims) <= _MOST_DIMENSIONS:
        return dims
    last = 1
    for size in dims[_MOST_DIMENSIONS - 1 :]:
        last *= size
    return [*dims[: _MOST_DIMENSIONS - 1], last]


def _summands(tensor: Any) -> int:
    """Return on how many ranks a DTensor's summands are, which are still to be added."""
    summands = 1
    for dimension, placement in enumerate(getattr(tensor, "placements", ())):
        if placement.is_partial():
            summands *= tensor.device_mesh.size(dimension)
    return summands


def _sums(tensor: Any, weighs_first: bool, starts: list[int]) -> tuple[Any, Any]:
    """Return the sums of a tensor of at most four dimensions, and that of its squares, in float64.

    The sums have one axis of two for each weighted dimension, last dimension first: 0 added up, 1 weighted. The first
    dimension is weighted only if asked. starts: the place of the tensor's first element in each dimension.
    """
    torch: Any = sys.modules["torch"]
    per_row = max(1, tensor.numel() // max(1, tensor.shape[0]))
    rows = max(1, _MOST_AT_ONCE // per_row)
    total: Any = None
    square = torch.zeros((), dtype=torch.float64, device=tensor.device)
    for start in range(0, max(1, tensor.shape[0]), rows):
        part = tensor[start : start + rows].double()
        square = square + (part * part).sum()
        for dimension in range(tensor.dim() - 1, 0, -1):
            weights = _weights(dimension, part.shape[dimension], starts[dimension], part.device)
            part = torch.tensordot(part, weights, dims=([dimension], [0]))
        if weighs_first:
            part = torch.tensordot(part, _weights(0, part.shape[0], starts[0] + start, part.device), dims=([0], [0]))
        else:
            part = part.sum(dim=0)
        total = part if total is None else total + part
    return total, square


def _weights(dimension: int, size: int, start: int, device: Any) -> Any:
    """Return ones, and the numbers of the pseudo-random vector for a dimension's places from `start`, side by side."""
    torch: Any = sys.modules["torch"]
    across, down = fingerprints.vector(device)
    places = torch.arange(start, start + size, device=device) + 1543 * dimension
    numbers = across[places % len(across)] * down[(places // len(across) + dimension) % len(down)]
    return torch.stack([torch.ones_like(numbers), numbers], dim=1)
