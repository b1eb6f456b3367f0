"""Names of devices, and the functions that make and move tensors: each tensor gets its place (placement.py).

torch itself sees tensors of the CPU. A move between two places is a copy, as with CUDA, so `tensor.cpu()` does not
follow later updates. In torch's own code the name of the CPU says nothing, because torch reads it from tensors of GPUs
too; a tensor made there with this name has no place.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
import torch.utils._device

from . import generators
from .fast_paths import patch_fast_paths
from .generators import drawing
from .placement import (
    CPU,
    HOST,
    OUT_OF_MEMORY,
    PINNED,
    TAG,
    Gpus,
    Place,
    called_by_mode,
    device_at,
    no_other_mode,
    out_of_memory,
    patch_placement,
    place,
    place_all,
    place_of,
    tags_of,
    unseen,
)
from .replace import called_by_torch, replace, wrap


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

_raw_device_of = torch.Tensor.device.__get__


def _device_of(tensor: Any) -> torch.device:
    """Return a tensor's real device."""
    with torch._C.DisableTorchFunction():
        device: torch.device = _raw_device_of(tensor)
    return device


_DEVICE = torch.device
_raw_is_cpu = torch.Tensor.is_cpu.__get__  # type: ignore[attr-defined]
_raw_to = torch.Tensor.to


def patch_tensors() -> None:
    """Replace constructors, methods and attributes that name devices."""
    _patch_constructors()
    _patch_methods()
    _patch_attributes()
    _patch_contexts()
    _patch_legacy_types()
    wrap(torch._C._nn, "_parse_to", _parse_to)
    _patch_files()
    _patch_classes()
    generators.patch_generators()
    patch_fast_paths()
    patch_placement()


def _patch_constructors() -> None:
    constructors = {id(function) for function in torch.utils._device._device_constructors()}  # cached: C functions
    for owner in (torch, torch.fft):
        for name in dir(owner):
            if id(getattr(owner, name)) in constructors:
                wrap(owner, name, _data_constructor if name in ("as_tensor", "asarray") else _constructor)
    wrap(torch, "from_numpy", _constructor)
    for name in _LIKE:
        wrap(torch, name, _with_device)
    for name in _NEW:
        wrap(torch.Tensor, name, _with_device)


_DATA_PARALLEL = tuple(
    f"torch.nn.parallel.{name}"
    for name in ("_functions", "comm", "data_parallel", "parallel_apply", "replicate", "scatter_gather")
)
"""nn.DataParallel and its parts, which copy tensors between GPUs by their places; DDP does not."""

_CPU_IS_MEANT = (
    *("torch.nn.modules.module", "torch.utils.data", "torch.utils.checkpoint", "torch.optim"),
    *("torch.distributed._state_dict_utils", "torch.distributed.checkpoint.staging", "torch.amp.grad_scaler"),
    *_DATA_PARALLEL,
)
"""Modules of torch in which the CPU's name comes from the program, or that read a tensor's place as a program does."""


def _asked_place(device: Any, depth: int) -> Place:
    """Return the place that an argument asks for: None where torch itself names the CPU."""
    if is_gpu(device):
        return index_of(device)
    return None if called_by_torch(depth + 1, but=_CPU_IS_MEANT) else HOST


def _is_cpu(device: Any) -> bool:
    return device == "cpu" or (isinstance(device, _DEVICE) and device.type == "cpu")


def _translate(kwargs: dict[str, Any]) -> bool:
    """Replace the arguments that a CPU does not have; return True if the memory shall be pinned."""
    if kwargs.get("device") is not None:
        kwargs["device"] = real(kwargs["device"])
    pinned = bool(kwargs.get("pin_memory"))
    if pinned:
        kwargs["pin_memory"] = False
    return pinned


def _with_device(function: Function) -> Function:
    """Make a function that takes `device` put its result there, or with the tensor of its first argument."""
    is_random = function.__name__.startswith("rand")

    def call(*args: Any, **kwargs: Any) -> Any:
        if called_by_mode():
            return function(*args, **kwargs)
        device = kwargs.get("device")
        pinned = _translate(kwargs)
        if torch.compiler.is_compiling() or (device is None and not pinned):
            return function(*args, **kwargs)
        where = place_of(args[0]) if device is None else _asked_place(device, 2)
        with drawing(where if is_random else None):
            result = function(*args, **kwargs)
        return _mark_pinned(place(result, where), pinned) if result.device.type in ("cpu", "cuda") else result

    return call


def _constructor(function: Function) -> Function:
    """Make a constructor put its tensor on the device that is asked for, or on the default device."""
    is_random = function.__name__.startswith("rand")

    def call(*args: Any, **kwargs: Any) -> Any:
        if called_by_mode():
            return function(*args, **kwargs)
        device = kwargs.get("device")
        pinned = _translate(kwargs)
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        where = _asked_place(device, 2) if device is not None else _default_place()
        try:
            if is_random and where is not None:
                with drawing(where, kwargs.get("generator")):
                    result = function(*args, **kwargs)
            else:
                result = function(*args, **kwargs)
        except RuntimeError as error:
            if OUT_OF_MEMORY in str(error):
                raise out_of_memory(error, where) from None
            raise
        if device is None:
            place_all(result, where)  # a tensor made from another one is already where that is
        else:
            place(result, where)
        return _mark_pinned(result, True) if pinned else result

    return call


def _data_constructor(function: Function) -> Function:
    """Make `as_tensor` copy what changes its device, and share memory only on the CPU."""

    def call(data: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
        if called_by_mode():
            return function(data, dtype=dtype, device=device, **kwargs)
        if torch.compiler.is_compiling():
            return function(data, dtype=dtype, device=real(device), **kwargs)
        where = _asked_place(device, 2) if device is not None else None
        if isinstance(data, torch.Tensor):
            result = function(data, dtype=dtype, **kwargs)
            if device is None or where is None or where == place_of(result):
                return result
            return place(result.detach().clone() if result is data else result, where)
        where = _default_place() if device is None else where
        result = function(data, dtype=dtype, device=real(device), **kwargs)
        return place(result if where in (HOST, None) else result.clone(), where)

    return call


def _mark_pinned(tensor: Any, pinned: bool) -> Any:
    if pinned:
        setattr(tensor.untyped_storage(), PINNED, True)
    return tensor


def _patch_methods() -> None:
    wrap(torch.Tensor, "to", _to)
    wrap(torch.Tensor, "cuda", _cuda)
    wrap(torch.Tensor, "cpu", _cpu)
    wrap(torch.Tensor, "type", _type)
    wrap(torch.Tensor, "type_as", lambda function: lambda self, other: self.to(other.device, other.dtype))
    wrap(torch.Tensor, "pin_memory", _pin_memory)
    wrap(torch.Tensor, "is_pinned", _is_pinned)
    wrap(torch.Tensor, "record_stream", lambda function: lambda self, stream: None)
    wrap(torch.Tensor, "get_device", _get_device)
    _patch_storages()


def _to(function: Function) -> Function:
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if called_by_mode():
            return function(self, *args, **kwargs)
        if len(args) == 1 and not kwargs and _is_there(self, args[0]):
            return self
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        elif "other" in kwargs:
            other = kwargs.pop("other")
            kwargs["device"], kwargs["dtype"] = other.device, other.dtype
        device = args[0] if args else None
        if "device" in kwargs:
            device = kwargs["device"]
        if not (is_gpu(device) or _is_cpu(device)):
            return function(self, *args, **kwargs)
        if "device" in kwargs:
            kwargs["device"] = real(device)
        else:
            args = (real(device), *args[1:])
        if torch.compiler.is_compiling() or _device_of(self).type != "cpu":
            return function(self, *args, **kwargs)
        return _move(function, self, _asked_place(device, 2), args, kwargs)

    return to


def _is_there(tensor: Any, device: Any) -> bool:
    """Return True if a move to a device, the only argument, changes nothing."""
    if type(device) is not _DEVICE or not no_other_mode(tensor) or torch.compiler.is_compiling():
        return False
    kind = device.type
    if kind == "cuda":
        where: Place = Gpus.current if device.index is None else device.index
    elif kind == "cpu":
        where = None if called_by_torch(3, but=_CPU_IS_MEANT) else HOST
    else:
        return False
    with unseen():
        return bool(_raw_is_cpu(tensor)) and (where is None or tags_of(tensor).get(TAG) == where)


def _move(function: Function, tensor: Any, where: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copy a tensor that changes its place; None means no place, as in torch's own code."""
    if where is None or place_of(tensor) == where:
        return function(tensor, *args, **kwargs)
    names = ("device", "dtype", "non_blocking", "copy")
    kwargs.update(zip(names, args, strict=False))
    kwargs["copy"] = True
    return place(function(tensor, **kwargs), where)


def _cuda(function: Function) -> Function:
    def cuda(
        self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
    ) -> Any:
        where = torch.device("cuda", index_of(device))
        return self.to(where, non_blocking=non_blocking, memory_format=memory_format)

    return cuda


def _cpu(function: Function) -> Function:
    def cpu(self: Any, memory_format: Any = torch.preserve_format) -> Any:
        if called_by_mode() or torch.compiler.is_compiling() or _device_of(self).type != "cpu":
            return function(self, memory_format=memory_format)
        where = _asked_place("cpu", 2)
        return _move(_raw_to, self, where, (CPU,), {"memory_format": memory_format})

    return cpu


def _type(function: Function) -> Function:
    def type_(self: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if called_by_mode():
            return function(self) if dtype is None else function(self, dtype, non_blocking, **kwargs)
        if dtype is None:
            name: str = function(self)
            return name if called_by_torch() or not self.is_cuda else name.replace("torch.", "torch.cuda.", 1)
        if isinstance(dtype, LegacyType):
            dtype = f"torch.{'cuda.' if dtype.of_gpu else ''}{dtype.__name__}"
        if not isinstance(dtype, str):
            return function(self, dtype, non_blocking, **kwargs)
        moved = self.to("cuda" if dtype.startswith("torch.cuda.") else "cpu", non_blocking=non_blocking)
        return function(moved, dtype.replace("torch.cuda.", "torch."), non_blocking, **kwargs)

    return type_


def _pin_memory(function: Function) -> Function:
    def pin_memory(self: Any, *args: Any) -> Any:
        if called_by_mode():
            return self
        where = place_of(self)
        if where is not None and where != HOST and not called_by_torch(but="torch.utils.data"):
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        if called_by_torch(but="torch.utils.data") or getattr(self.untyped_storage(), PINNED, False):
            return self
        return _mark_pinned(place(self.detach().clone(), HOST), True)

    return pin_memory


def _is_pinned(function: Function) -> Function:
    def is_pinned(self: Any, *args: Any) -> bool:
        return bool(getattr(self.untyped_storage(), PINNED, False))

    return is_pinned


def _get_device(function: Function) -> Function:
    def get_device(self: Any) -> int:
        index: int = function(self)
        if index >= 0 or called_by_mode() or called_by_torch(but=_CPU_IS_MEANT):
            return index
        where = place_of(self)
        return Gpus.current if where is None else where

    return get_device


# ---- storages --------------------------------------------------------------------------------------------------------

_storage_device_of = torch.UntypedStorage.device.__get__


def _untyped(storage: Any) -> Any:
    return getattr(storage, "_untyped_storage", storage)


def _storage_place(storage: Any) -> Place:
    return getattr(_untyped(storage), TAG, None)


def _patch_storages() -> None:
    """Give storages their places too: a move is a copy, and files keep the names of devices."""
    kind = torch.UntypedStorage

    def moved(self: Any, where: Place) -> Any:
        if _storage_place(self) == where:
            return self
        new = kind(self.nbytes()).copy_(self)  # type: ignore[no-untyped-call]
        setattr(new, TAG, where)
        return new

    def clone(self: Any) -> Any:
        new = kind(self.nbytes()).copy_(self)  # type: ignore[no-untyped-call]
        if _storage_place(self) is not None:
            setattr(new, TAG, _storage_place(self))
        return new

    def pin_memory(self: Any, *args: Any) -> Any:
        new = clone(self)
        setattr(new, PINNED, True)
        return new

    def device(self: Any) -> torch.device:
        real_device: torch.device = _storage_device_of(self)
        return real_device if real_device.type != "cpu" or called_by_torch() else device_at(_storage_place(self))

    replace(kind, "device", property(device))
    replace(kind, "clone", clone)
    replace(kind, "is_pinned", lambda self, *args: bool(getattr(self, PINNED, False)))
    replace(kind, "pin_memory", pin_memory)
    replace(kind, "cuda", lambda self, device=None, non_blocking=False: moved(self, index_of(device)))
    wrap(
        kind,
        "cpu",
        lambda function: lambda self: function(self) if called_by_torch(but=_CPU_IS_MEANT) else moved(self, HOST),
    )
    typed = torch.TypedStorage
    replace(typed, "cuda", lambda self, device=None, non_blocking=False: self._new_wrapped_storage(
        self._untyped_storage.cuda(device)))  # fmt: skip
    replace(typed, "pin_memory", lambda self, *args: self._new_wrapped_storage(self._untyped_storage.pin_memory()))


def _patch_files() -> None:
    """Write the name of a tensor's device to files and to other processes, and read it."""
    serialization = torch.serialization

    def location_tag(function: Function) -> Function:
        def call(storage: Any) -> Any:
            where = _storage_place(storage)
            return function(storage) if where is None or where == HOST else f"cuda:{where}"

        return call

    def default_restore_location(function: Function) -> Function:
        def call(storage: Any, location: Any) -> Any:
            if not str(location).startswith(("cuda", "cpu")):
                return function(storage, location)
            setattr(_untyped(storage), TAG, HOST if str(location) == "cpu" else index_of(str(location)))
            return storage

        return call

    wrap(serialization, "location_tag", location_tag)
    wrap(serialization, "default_restore_location", default_restore_location)
    wrap(torch, "load", _load)
    serialization.load = torch.load

    from multiprocessing.reduction import ForkingPickler

    import torch.multiprocessing.reductions as reductions

    def reduce_tensor(tensor: Any) -> Any:
        rebuild, args = reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call]
        return rebuild_at, (place_of(tensor), rebuild, args)

    for tensor_type in (torch.Tensor, torch.nn.parameter.Parameter):
        ForkingPickler.register(tensor_type, reduce_tensor)


def rebuild_at(where: Place, rebuild: Function, args: tuple[Any, ...]) -> Any:
    """Make a tensor that another process sent, at its place."""
    return place(rebuild(*args), where)


def _load(function: Function) -> Function:
    """Check that the GPU exists; a storage that a program's own function returns without a move is on the CPU."""

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if callable(map_location) and not isinstance(map_location, dict):
            chosen = map_location

            def location(storage: Any, tag: str) -> Any:
                setattr(_untyped(storage), TAG, HOST)
                return chosen(storage, tag)

            return function(f, location, *args, **kwargs)
        for target in map_location.values() if isinstance(map_location, dict) else (map_location,):
            real(target)
        if type(map_location) is int:
            map_location = torch.device("cuda", map_location)
        return function(f, map_location, *args, **kwargs)

    return load


# ---- attributes ------------------------------------------------------------------------------------------------------


def _patch_attributes() -> None:
    """Let a program, but not torch itself, read a tensor's place as its device."""

    def device(self: Any) -> torch.device:
        real_device: torch.device = _device_of(self)
        if real_device.type != "cpu" or called_by_mode() or called_by_torch(but=_SEES_PLACES):
            return real_device
        return device_at(place_of(self))

    def is_cuda(self: Any) -> bool:
        if called_by_mode() or called_by_torch(but=_SEES_PLACES):
            return _device_of(self).type == "cuda"
        return _device_of(self).type == "cpu" and place_of(self) != HOST

    def is_cpu(self: Any) -> bool:
        if called_by_mode() or called_by_torch(but=_SEES_PLACES):
            return _device_of(self).type == "cpu"
        return _device_of(self).type == "cpu" and place_of(self) == HOST

    replace(torch.Tensor, "device", property(device))
    replace(torch.Tensor, "is_cuda", property(is_cuda))
    replace(torch.Tensor, "is_cpu", property(is_cpu))


_SEES_PLACES = (
    "torch.utils.checkpoint",
    "torch.optim",
    "torch._tensor_str",
    "torch.amp.grad_scaler",
    "torch.nn.modules.batchnorm",
    *_DATA_PARALLEL,
)
"""Modules of torch that see a tensor's place, as a program does."""


def _default_place() -> Place:
    """Return the place of a new tensor: the CPU, or a GPU inside `set_default_device("cuda")` or `with device`."""
    overrides: Any = torch.overrides
    if torch._C._len_torch_function_stack() > 1:
        for mode in reversed(overrides._get_current_function_mode_stack()):
            if hasattr(mode, "of_device"):
                return index_of(mode.of_device) if is_gpu(mode.of_device) else HOST
    return HOST


def _patch_contexts() -> None:
    def init(function: Function) -> Function:
        def __init__(self: Any, device: Any) -> None:
            self.of_device = device
            function(self, real(device))

        return __init__

    def default_device(function: Function) -> Function:
        def get_default_device() -> torch.device:
            device: torch.device = function()
            return device_at(_default_place()) if device.type == "cpu" else device

        return get_default_device

    wrap(torch.utils._device.DeviceContext, "__init__", init)
    wrap(torch, "get_default_device", default_device)


class LegacyType(type):
    """The type of `torch.FloatTensor` and `torch.cuda.FloatTensor`: names of a data type on a device."""

    of_gpu: bool
    original: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return place(cls.original(*args, **kwargs), Gpus.current if cls.of_gpu else HOST)

    def __instancecheck__(cls, instance: object) -> bool:
        if not isinstance(instance, torch.Tensor) or instance.dtype != cls.original.dtype:
            return False
        return instance.is_cuda == cls.of_gpu


def _patch_legacy_types() -> None:
    for kind in _LEGACY:
        name = f"{kind}Tensor"
        for owner, of_gpu in ((torch.cuda, True), (torch, False)):
            names = {"of_gpu": of_gpu, "original": getattr(torch, name), "__module__": owner.__name__}
            replace(owner, name, LegacyType(name, (), {**names, "dtype": getattr(torch, name).dtype}))
    wrap(
        torch,
        "set_default_tensor_type",
        lambda function: (
            lambda kind: function(kind.replace("torch.cuda.", "torch.") if isinstance(kind, str) else kind)
        ),
    )


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
    replace(torch, "Generator", _stand_in(generator, generators.make_generator))
