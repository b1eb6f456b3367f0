"""Devices and tensors: every name of a simulated GPU means the CPU.

A tensor that was made on the CPU on purpose carries a mark, `_on_host`; a tensor without it counts as one on the
current GPU. So a copy between the two is a real copy, as with CUDA, and `tensor.cpu()` does not follow later updates.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
import torch.utils._device

from .replace import called_by_torch, replace, wrap

CPU = torch.device("cpu")


class Gpus:
    """The GPUs that this process sees, and its current one."""

    count = 0
    current = 0


def invalid_ordinal() -> Exception:
    """Return the error that CUDA raises for a device that does not exist."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    error: Exception = kind(
        f"CUDA error: invalid device ordinal\n(simulated GPUs: this process sees {Gpus.count}, numbered from 0)"
    )
    return error


def index_of(device: Any) -> int:
    """Return a GPU's index by any of its names; None is the current one. Raises CUDA's error for one too large."""
    if device is None:
        return Gpus.current
    if isinstance(device, str):
        device = torch.device(device)
    index = device.index if isinstance(device, torch.device) else int(device)
    if index is None:
        return Gpus.current
    if not 0 <= index < Gpus.count:
        raise invalid_ordinal()
    return int(index)


def is_gpu(device: Any) -> bool:
    """Return True if an argument names a GPU: cuda:1, torch.device("cuda"), or a number."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)


def real(device: Any) -> Any:
    """Return the CPU for any name of a GPU, after a check that the GPU exists; any other argument unchanged."""
    if not is_gpu(device):
        return device
    index_of(device)
    return CPU


class DeviceContext:
    """`torch.cuda.device`, `torch.accelerator.device_index`: another current device inside a block."""

    def __init__(self, device: Any) -> None:
        self.idx = Gpus.current if device is None else index_of(device)
        self.prev_idx = Gpus.current

    def __enter__(self) -> None:
        self.prev_idx = Gpus.current
        Gpus.current = self.idx

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Gpus.current = self.prev_idx


def set_device(device: Any) -> None:
    """Make a GPU the current one of this process."""
    Gpus.current = index_of(device)


def exchange_device(index: int) -> int:
    """Make a GPU the current one, and return the previous one."""
    previous = Gpus.current
    if index >= 0:
        Gpus.current = index_of(index)
    return previous


# ---- tensors and modules: functions that take a device ---------------------------------------------------------------

Function = Callable[..., Any]

_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
_NEW = ("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full", "new_tensor")
_LEGACY = ("Float", "Double", "Half", "BFloat16", "Int", "Long", "Short", "Byte", "Char", "Bool")

_device_of = torch.Tensor.device.__get__


def patch_tensors() -> None:
    """Replace constructors, methods and attributes that name devices."""
    _patch_constructors()
    _patch_methods()
    _patch_attributes()
    _patch_contexts()
    _patch_legacy_types()
    wrap(torch, "load", _load)
    wrap(torch._C._nn, "_parse_to", _parse_to)
    _patch_classes()


def on_host(tensor: Any) -> bool:
    """Return True for a tensor that the program made on the CPU."""
    return getattr(tensor, "_on_host", False) is True


def _mark_host(result: Any) -> Any:
    if type(result) is torch.Tensor:
        result._on_host = True  # type: ignore[attr-defined]
    return result


def _patch_constructors() -> None:
    constructors = {id(function) for function in torch.utils._device._device_constructors()}  # cached: C functions
    for owner in (torch, torch.fft):
        for name in dir(owner):
            if id(getattr(owner, name)) in constructors:
                wrap(owner, name, _constructor)
    for name in (*_LIKE, "from_numpy"):
        wrap(torch, name, _constructor if name == "from_numpy" else _with_device)
    for name in _NEW:
        wrap(torch.Tensor, name, _with_device)


def _translate(kwargs: dict[str, Any]) -> None:
    if kwargs.get("device") is not None:
        kwargs["device"] = real(kwargs["device"])
    if kwargs.get("pin_memory"):
        kwargs["pin_memory"] = False


def _with_device(function: Function) -> Function:
    """Make a function that takes `device` ignore which one it is."""

    def call(*args: Any, **kwargs: Any) -> Any:
        _translate(kwargs)
        return function(*args, **kwargs)

    return call


def _constructor(function: Function) -> Function:
    """Make a constructor mark its tensor if it is on the CPU by the program's will."""

    def call(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        _translate(kwargs)
        result = function(*args, **kwargs)
        if torch.compiler.is_compiling() or called_by_torch():
            return result
        on_gpu = is_gpu(device) or (device is None and _gpu_by_default())
        return result if on_gpu else _mark_host(result)

    return call


def _patch_methods() -> None:
    wrap(torch.Tensor, "to", _to)
    wrap(torch.Tensor, "cuda", _cuda)
    wrap(torch.Tensor, "cpu", _cpu)
    wrap(torch.Tensor, "type", _type)
    wrap(torch.Tensor, "pin_memory", lambda function: lambda self, *args: self)
    wrap(torch.Tensor, "record_stream", lambda function: lambda self, stream: None)
    wrap(torch.Tensor, "get_device", _get_device)
    for storage in (torch.UntypedStorage, torch.TypedStorage):
        wrap(storage, "cuda", lambda function: lambda self, *args, **kwargs: self)
        wrap(storage, "pin_memory", lambda function: lambda self, *args: self)


def _to(function: Function) -> Function:
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs["device"] if "device" in kwargs else args[0] if args else None
        if not (is_gpu(device) or device == "cpu" or (isinstance(device, torch.device) and device.type == "cpu")):
            return function(self, *args, **kwargs)
        if "device" in kwargs:
            kwargs["device"] = real(device)
        else:
            args = (real(device), *args[1:])
        return _move(function, self, is_gpu(device), args, kwargs)

    return to


def _move(function: Function, tensor: Any, to_gpu: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copy a tensor that changes sides between the CPU and the GPU, unless it is moved for torch's own use."""
    if torch.compiler.is_compiling() or _device_of(tensor).type != "cpu" or called_by_torch(3):
        return function(tensor, *args, **kwargs)
    crosses = on_host(tensor) == to_gpu
    result = function(tensor, *args, **kwargs, **({"copy": True} if crosses and "copy" not in kwargs else {}))
    return result if to_gpu or result is tensor else _mark_host(result)


def _cuda(function: Function) -> Function:
    def cuda(
        self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
    ) -> Any:
        index_of(device)
        return self.to(torch.device("cuda"), non_blocking=non_blocking, memory_format=memory_format)

    return cuda


def _cpu(function: Function) -> Function:
    def cpu(self: Any, memory_format: Any = torch.preserve_format) -> Any:
        return self.to("cpu", memory_format=memory_format)

    return cpu


def _type(function: Function) -> Function:
    def type_(self: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if dtype is None:
            return function(self)
        name = dtype.replace("torch.cuda.", "torch.") if isinstance(dtype, str) else dtype
        return function(self, name, non_blocking, **kwargs)

    return type_


def _get_device(function: Function) -> Function:
    def get_device(self: Any) -> int:
        index: int = function(self)
        return index if called_by_torch() or on_host(self) or index >= 0 else Gpus.current

    return get_device


def _patch_attributes() -> None:
    """Let a program, but not torch itself, read `device` and `is_cuda` as on a GPU."""
    is_cuda_of = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]

    def device(self: Any) -> torch.device:
        found: torch.device = _device_of(self)
        if found.type != "cpu" or called_by_torch() or on_host(self):
            return found
        return torch.device("cuda", Gpus.current)

    def is_cuda(self: Any) -> bool:
        if called_by_torch():
            return bool(is_cuda_of(self))
        return _device_of(self).type == "cpu" and not on_host(self)

    replace(torch.Tensor, "device", property(device))
    replace(torch.Tensor, "is_cuda", property(is_cuda))


def _gpu_by_default() -> bool:
    """Return True inside `torch.set_default_device("cuda")` or `with torch.device("cuda")`."""
    overrides: Any = torch.overrides
    modes = overrides._get_current_function_mode_stack() if torch._C._len_torch_function_stack() else []
    return next((mode.of_gpu for mode in reversed(modes) if hasattr(mode, "of_gpu")), False)


def _patch_contexts() -> None:
    def init(function: Function) -> Function:
        def __init__(self: Any, device: Any) -> None:
            self.of_gpu = is_gpu(device)
            function(self, real(device))

        return __init__

    wrap(torch.utils._device.DeviceContext, "__init__", init)


def _patch_legacy_types() -> None:
    for kind in _LEGACY:
        replace(torch.cuda, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))
    wrap(
        torch,
        "set_default_tensor_type",
        lambda function: (
            lambda kind: function(kind.replace("torch.cuda.", "torch.") if isinstance(kind, str) else kind)
        ),
    )


def _load(function: Function) -> Function:
    """Make `torch.load` put every storage on the CPU."""

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if callable(map_location):
            chosen = map_location

            def location(storage: Any, tag: str) -> Any:
                return chosen(storage, tag) or storage

            return function(f, location, *args, **kwargs)
        if isinstance(map_location, dict):
            for target in map_location.values():
                real(target)
            return function(f, CPU, *args, **kwargs)
        place = real(map_location) if map_location is not None else CPU
        return function(f, place, *args, **kwargs)

    return load


def _parse_to(function: Function) -> Function:
    """Make `module.to(0)` name a GPU."""

    def parse(*args: Any, **kwargs: Any) -> Any:
        as_device = [torch.device("cuda", index_of(arg)) if type(arg) is int else arg for arg in args[:1]]
        if type(kwargs.get("device")) is int:
            kwargs["device"] = torch.device("cuda", index_of(kwargs["device"]))
        return function(*as_device, *args[1:], **kwargs)

    return parse


def _stand_in(original: type, make: Function) -> type:
    """Return a class that stands for one of torch's own and whose instances `make` makes."""

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

        def __eq__(cls, other: object) -> bool:
            return other is cls or other is original

        def __hash__(cls) -> int:
            return hash(original)

    return Kind(original.__name__, (), {"__module__": "torch", "__doc__": original.__doc__})


def _patch_classes() -> None:
    device, generator = torch.device, torch.Generator

    def make_device(*args: Any, **kwargs: Any) -> Any:
        return device("cuda", *args) if len(args) == 1 and type(args[0]) is int else device(*args, **kwargs)

    replace(torch, "device", _stand_in(device, make_device))
    replace(torch, "Generator", _stand_in(generator, lambda device="cpu": generator(real(device))))
