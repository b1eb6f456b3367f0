"""The device of each tensor: a tag on its storage, which views share, and a mode that gives results their tags.

All memory is the CPU's. The tag is the index of a GPU, or HOST; the storage of a tensor that no intercepted call made
has none (a gradient inside autograd, the output of a compiled function). Such a tensor may meet any other, and counts
as one on the current GPU when a program asks. `Placement` sees every call of torch's functions that Python makes: it
compares the tags of the arguments, raises CUDA's error where they differ, and tags the result.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parameter import Parameter
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
HOST = -1
TAG = "_frog_place"
"""Attribute of a storage, or of a tensor without one: HOST or the index of a GPU."""
PINNED = "_frog_pinned"

Function = Callable[..., Any]
Place = int | None
_storage_of = torch.Tensor.untyped_storage
_EXACT = (torch.Tensor, Parameter)


class Gpus:
    """The GPUs that this process sees, and its current one."""

    count = 0
    current = 0


# ---- tags ------------------------------------------------------------------------------------------------------------


def tags_of(tensor: Any) -> dict[str, Any]:
    """Return the attributes that hold a tensor's tag; must run where torch functions are not intercepted."""
    try:
        return _storage_of(tensor).__dict__
    except Exception:  # sparse tensors and wrappers have no storage; the kinds of errors differ
        functorch = torch._C._functorch
        if functorch.is_functorch_wrapped_tensor(tensor):
            return tags_of(functorch.get_unwrapped(tensor))
        attributes: dict[str, Any] = getattr(tensor, "__dict__", {})
        return attributes


def place_of(tensor: Any) -> Place:
    """Return HOST, the index of a GPU, or None if the tensor has no tag."""
    with torch._C.DisableTorchFunction():
        return tags_of(tensor).get(TAG)


def place(tensor: Any, where: Place) -> Any:
    """Tag a new tensor, and return it."""
    if isinstance(tensor, torch.Tensor):
        with torch._C.DisableTorchFunction():
            if where is None:
                tags_of(tensor).pop(TAG, None)
            else:
                tags_of(tensor)[TAG] = where
    return tensor


def place_all(results: Any, where: Place) -> None:
    """Tag all tensors without a tag in tuples, lists and dictionaries."""
    if where is None:
        return
    if isinstance(results, torch.Tensor):
        with torch._C.DisableTorchFunction():
            tags_of(results).setdefault(TAG, where)
    elif isinstance(results, (list, tuple)):
        for result in results:
            place_all(result, where)
    elif isinstance(results, dict):
        for result in results.values():
            place_all(result, where)


def first_place(values: Any) -> Place:
    """Return the place of the first tensor with a tag in arguments, preferring GPUs."""
    places = {where for _, where in _placed(values)}
    return max(places) if places else None


def on_host(tensor: Any) -> bool:
    """Return True for a tensor on the CPU."""
    return place_of(tensor) == HOST


def device_at(where: Place) -> torch.device:
    """Return the device that a program reads."""
    return CPU if where == HOST else torch.device("cuda", Gpus.current if where is None else where)


def name_of(where: int) -> str:
    """Return the name of a device in an error."""
    return "cpu" if where == HOST else f"cuda:{where}"


# ---- tensors on different devices ------------------------------------------------------------------------------------


def _placed(values: Any) -> Iterator[tuple[Any, int]]:
    """Yield the tensors with a tag in nested arguments, each with its place."""
    if isinstance(values, torch.Tensor):
        with torch._C.DisableTorchFunction():
            where = tags_of(values).get(TAG)
        if where is not None:
            yield values, where
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _placed(value)
    elif isinstance(values, dict):
        yield from _placed(list(values.values()))


_CHECKED = ("torch.nn.modules.", "torch.nn.functional", "torch.nn.init", "torch.functional")
"""Modules of torch whose arguments are the program's; the rest of torch handles several devices itself."""


_TRANSPARENT = (
    __name__,
    f"{__package__}.generators",
    f"{__package__}.tensors",
    f"{__package__}.kernels",
    "torch.overrides",
)


def _caller_is_checked() -> bool:
    """Return True if the program, or a module of a network, calls the function that the mode handles."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__") in _TRANSPARENT and frame.f_back is not None:
        frame = frame.f_back
    module: str = frame.f_globals.get("__name__", "")
    if not (module == "torch" or module.startswith("torch.")) or module == "torch._tensor":
        return True
    return module.startswith(_CHECKED) and module != "torch.nn.modules.module"


def common_place(func: Any, args: Any, kwargs: Any) -> Place:
    """Return the place of arguments on several devices, or raise CUDA's error if they may not meet."""
    placed = list(_placed((args, kwargs)))
    allowed = func not in _STRICT
    full = [where for tensor, where in placed if not (allowed and where == HOST and tensor.dim() == 0)]
    places = list(dict.fromkeys(full)) or [HOST]
    if len(places) > 1 and not _may_mix(func) and _caller_is_checked():
        places.sort(key=lambda where: where == HOST)
        text = ", ".join(f"{name_of(where)} {tuple(tensor.shape)}" for tensor, where in placed)
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{name_of(places[0])} and {name_of(places[1])}!\n"
            f"(simulated GPUs: arguments of {getattr(func, '__name__', func)}: {text})"
        )
    return places[0]


def _may_mix(func: Any) -> bool:
    """True for a function whose tensors may be on several devices, also while `frog check` wraps it."""
    return func in _MAY_MIX or getattr(func, "__wrapped__", None) in _MAY_MIX


_STRICT: set[Any] = {
    torch.cat,
    torch.stack,
    torch.index_select,
    torch.Tensor.index_select,
    torch.nn.functional.embedding,
}
"""Functions in which a tensor without dimensions on the CPU is not a number."""

_MAY_MIX: set[Any] = set()
"""Functions whose tensors may be on several devices."""


def _fill_may_mix() -> None:
    tensor = torch.Tensor
    for name in ("copy_", "set_", "to", "type", "cuda", "cpu", "type_as", "__deepcopy__", "backward", "tensor_split"):
        _MAY_MIX.add(getattr(tensor, name))
    for name in ("register_hook", "is_set_to", "is_same_size", "_backward_hooks", "share_memory_", "map_", "map2_"):
        _MAY_MIX.add(getattr(tensor, name, None))
    for name in ("result_type", "can_cast", "tensor_split", "tensor", "as_tensor", "is_same_size", "ctc_loss"):
        _MAY_MIX.add(getattr(torch, name, None))
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu", "_has_compatible_shallow_copy_type", "swap_tensors"):
        _MAY_MIX.add(getattr(torch, name, None))
    for name in dir(torch):
        if name.startswith(("_foreach_", "_fused_", "_amp_")):
            _MAY_MIX.add(getattr(torch, name))
    _MAY_MIX.update((torch.nn.functional.ctc_loss, torch.autograd.backward, torch.autograd.grad))
    _MAY_MIX.discard(None)


# ---- the mode --------------------------------------------------------------------------------------------------------

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
special: dict[Any, Handler] = {}
"""Functions with rules of their own."""


class Placement(TorchFunctionMode):
    """Compares the places of arguments, and gives results theirs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handle: Handler = special.get(func, call)
        try:
            return handle(func, args, kwargs or {})
        except RuntimeError as error:
            if OUT_OF_MEMORY in str(error):
                raise out_of_memory(error, first_place((args, kwargs or {}))) from None
            raise


OUT_OF_MEMORY = "DefaultCPUAllocator: can't allocate memory"


def out_of_memory(error: RuntimeError, where: Place) -> RuntimeError:
    """Return the error of CUDA's allocator for that of the CPU's, unless the tensor is on the CPU."""
    if where in (HOST, None):
        return error
    asked = re.search(r"allocate (\d+) bytes", str(error))
    size = int(asked[1]) / 2**30 if asked else 0.0
    return torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {size:.2f} GiB. GPU {where} has no memory left.\n"
        "(simulated GPUs: the memory of this machine)"
    )


def call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call a function whose arguments must be on one device, and tag what it returns."""
    where = _only_place(args, kwargs)
    if where == SEVERAL:
        where = common_place(func, args, kwargs)
    result = func(*args, **kwargs)
    return result if where is None else _tagged(result, where)


def place_for(func: Any, args: Any, kwargs: dict[str, Any]) -> Place:
    """Return the place of what a call computes, or raise CUDA's error if its arguments may not meet."""
    where = _only_place(args, kwargs)
    return common_place(func, args, kwargs) if where == SEVERAL else where


SEVERAL = -2
"""Stands for more than one place."""


def _only_place(args: Any, kwargs: dict[str, Any]) -> Place:
    """Return the place of all arguments that have one, SEVERAL if these differ."""
    where: Place = None
    for arg in (*args, *kwargs.values()) if kwargs else args:
        kind = type(arg)
        if kind in _EXACT:
            try:
                tag = _storage_of(arg).__dict__.get(TAG)
            except Exception:  # as in `tags_of`, which would cost a call for each tensor
                tag = tags_of(arg).get(TAG)
        elif kind is list or kind is tuple:
            tag = _only_place([item for item in arg if type(item) in _EXACT], {})
        else:
            continue
        if tag is not None and tag != where:
            if where is not None:
                return SEVERAL
            where = tag
    return where


def _tagged(result: Any, where: Place) -> Any:
    kind = type(result)
    if kind in _EXACT:
        tags_of(result).setdefault(TAG, where)
    elif kind is list or isinstance(result, tuple):
        for item in result:
            _tagged(item, where)
    return result


def tagged_if_known(result: Any, where: Place) -> Any:
    """Give tensors without a tag a place, if it is known; return them."""
    return result if where is None else _tagged(result, where)


_MODES = (__name__, f"{__package__}.generators", "torch.utils._device")


def called_by_mode() -> bool:
    """Return True if the function that asks, a replacement, was called by a mode, which has found it by its name."""
    return sys._getframe(2).f_globals.get("__name__") in _MODES


class _Modes(threading.local):
    """The mode of each thread."""

    mode: Placement | None = None


_modes = _Modes()


def enter() -> None:
    """Intercept this thread's calls from now on."""
    if _modes.mode is None:
        _modes.mode = Placement()
        torch._C._push_on_torch_function_stack(_modes.mode)


unseen: Any = torch._C.DisableTorchFunction
"""A block whose calls no mode sees."""
_num_modes = torch._C._len_torch_function_stack


def only_mode(tensor: Any) -> bool:
    """Return True for an ordinary tensor where the mode of this module is the only one that would see a call."""
    return type(tensor) in _EXACT and _num_modes() == 1 and _modes.mode is not None


def no_other_mode(tensor: Any) -> bool:
    """Return True for an ordinary tensor where no mode, or only that of this module, would see a call."""
    return type(tensor) in _EXACT and (_num_modes() == 0 or only_mode(tensor))


def leave() -> None:
    """Intercept no more calls of this thread, whose end with a mode would abort a process that is ending too."""
    _modes.mode = None
    while _num_modes():
        torch._C._pop_torch_function_stack()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Leave this thread's calls alone inside a block, where torch compiles what it sees."""
    stack: list[Any] = []
    while torch._C._len_torch_function_stack():
        stack.append(torch._C._pop_torch_function_stack())
    for mode in reversed(stack):
        if not isinstance(mode, Placement):
            torch._C._push_on_torch_function_stack(mode)
    try:
        yield
    finally:
        while torch._C._len_torch_function_stack():
            torch._C._pop_torch_function_stack()
        for mode in reversed(stack):
            torch._C._push_on_torch_function_stack(mode)


def _patch_threads() -> None:
    begin = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def _bootstrap_inner(self: threading.Thread) -> None:
        enter()
        try:
            begin(self)
        finally:
            leave()

    threading.Thread._bootstrap_inner = _bootstrap_inner  # type: ignore[attr-defined]


# ---- functions with rules of their own -------------------------------------------------------------------------------


def _plain(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


def _view(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    return tagged_if_known(func(*args, **kwargs), tags_of(args[0]).get(TAG))


def _check_indices(tensor: Any, index: Any) -> None:
    own = tags_of(tensor).get(TAG)
    if own is None or not _caller_is_checked():
        return
    for _, where in _placed(index if isinstance(index, (tuple, list)) else (index,)):
        if where not in (HOST, own):
            raise RuntimeError(
                f"indices should be either on cpu or on the same device as the indexed tensor ({name_of(own)})"
            )


def _get_item(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    index = args[1]
    if not isinstance(index, (int, slice, type(None))):
        _check_indices(args[0], index)
    return _view(func, args, kwargs)


def _has_tensor(index: Any) -> bool:
    return isinstance(index, torch.Tensor) or (isinstance(index, (tuple, list)) and any(map(_has_tensor, index)))


def _set_item(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Copy from any device for plain indices; with tensors as indices the values must be on the same device."""
    tensor, index, value = args
    if _has_tensor(index):
        _check_indices(tensor, index)
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            common_place(func, (tensor, value), {})
    return func(*args, **kwargs)


def _index_put(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    _check_indices(args[0], args[1] if len(args) > 1 else kwargs.get("indices"))
    return _view(func, args, kwargs)


def _set_grad(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Refuse a gradient on another device, in CUDA's words."""
    tensor, grad = args
    if isinstance(grad, torch.Tensor):
        own, other = tags_of(tensor).get(TAG), tags_of(grad).get(TAG)
        if own is not None and other is not None and own != other and _caller_is_checked():
            kinds = ["cpu" if where == HOST else "cuda" for where in (other, own)]
            raise RuntimeError(
                f"attempting to assign a gradient with device type '{kinds[0]}' to a tensor with device type "
                f"'{kinds[1]}'. Please ensure that the gradient and the tensor are on the same device"
            )
    return func(*args)


def _grad(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    result = func(*args, **kwargs)
    inputs: Any = args[1] if len(args) > 1 else kwargs["inputs"]
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    for value, given in zip(result, inputs, strict=True):
        if type(given) in _EXACT:
            place_all(value, tags_of(given).get(TAG))
    return result


def _register_hook(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Tag the gradient that a hook receives."""
    tensor, hook = args[0], args[1] if len(args) > 1 else kwargs["hook"]
    where = tags_of(tensor).get(TAG)

    def placed(grad: Any) -> Any:
        place_all(grad, where)
        return hook(grad)

    return func(tensor, placed)


def _to_numpy(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    where = tags_of(args[0]).get(TAG)
    if where is not None and where != HOST:
        raise TypeError(
            f"can't convert {name_of(where)} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )
    return func(*args, **kwargs)


def _from_data(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Make a tensor from numbers: those of a list of tensors go to the CPU, a tensor's stay where they are."""
    result = func(*args, **kwargs)
    return tagged_if_known(result, tags_of(args[0]).get(TAG) if args and isinstance(args[0], torch.Tensor) else None)


_PLAIN = (
    *("shape", "dtype", "requires_grad", "is_leaf", "grad_fn", "ndim", "layout", "is_sparse", "is_meta", "device"),
    *("is_cuda", "is_cpu", "is_quantized", "is_complex", "is_floating_point", "is_contiguous", "is_inference"),
    *("dim", "size", "numel", "nelement", "stride", "storage_offset", "element_size", "data_ptr", "untyped_storage"),
    *("type", "item", "tolist", "is_pinned", "_version", "output_nr", "itemsize", "nbytes", "retain_grad"),
)
"""Attributes and methods that return no tensor."""


def _fill_special() -> None:
    tensor: Any = torch.Tensor
    for name in _PLAIN:
        attribute = getattr(tensor, name, None)
        if attribute is not None:
            is_attribute = type(attribute).__name__ in ("getset_descriptor", "property")
            special[attribute.__get__ if is_attribute else attribute] = _plain
    for name in ("grad", "data"):
        special[getattr(tensor, name).__get__] = lambda func, args, kwargs: tagged_if_known(
            func(*args), tags_of(args[0]).get(TAG)
        )
    special.update(
        {
            tensor.grad.__set__: _set_grad,
            tensor.data.__set__: _plain,
            tensor.__getitem__: _get_item,
            tensor.__setitem__: _set_item,
            tensor.index_put_: _index_put,
            tensor.index_put: _index_put,
            tensor.register_hook: _register_hook,
            tensor.numpy: _to_numpy,
            tensor.__array__: _to_numpy,
            torch.autograd.grad: _grad,
            torch.device: _plain,
            torch.tensor: _from_data,
            torch.as_tensor: _from_data,
        }
    )
    special[tensor.tensor_split] = special[torch.tensor_split] = _view
    special[torch._C._set_grad_enabled] = _plain
    for name in dir(torch):
        if name.startswith("_foreach_") and name.endswith("_"):  # they change tensors that have their places
            special[getattr(torch, name)] = _plain


def _patch_engine() -> None:
    """Run autograd with the mode, so that hooks, recomputed layers and functions of the program's own have it too."""
    run = torch.autograd.graph._engine_run_backward

    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        if torch._C._len_torch_function_stack():
            return run(*args, **kwargs)
        with Placement():
            return run(*args, **kwargs)

    for module in (torch.autograd, torch.autograd.graph):
        module._engine_run_backward = _engine_run_backward  # type: ignore[attr-defined]


def _patch_functions() -> None:
    """Tag the gradients that a function of the program's own receives, if the inputs were parameters."""
    kind = torch.autograd.function.BackwardCFunction
    apply = kind.apply

    def placed(self: Any, *args: Any) -> Any:
        for node, _ in self.next_functions:
            leaf = getattr(node, "variable", None)
            if leaf is not None:
                place_all(args, place_of(leaf))
                break
        return apply(self, *args)  # type: ignore[no-untyped-call]

    kind.apply = placed  # type: ignore[method-assign]


def patch_placement() -> None:
    """Intercept the calls of this thread and of those that it starts."""
    _fill_may_mix()
    _fill_special()
    _patch_threads()
    _patch_engine()
    _patch_functions()
    enter()
