"""Recorded operations, collectives and allocations of a program whose tensors are fake.

A dispatch mode sees every operation before torch's fake tensor mode answers it. It writes one row for each:

    ["product", line, pass, num, rows, inner, columns, itemsize, bytes that a load reads at once, name]
    ["attention", line, pass, batch x heads, queries, keys, width of q and k, width of v, causal, backward, name]
    ["memory", line, pass, bytes that it reads and writes, name]
    ["collective", line, pass, kind, bytes, ranks, stride, "blocking" or "started", key, index of the group]
    ["wait", key]
    ["sync", line]

and those of streams and events, stand_in_cuda_rank.py, and of messages, messages_rank.py.

`line` is an index into the lines of the user's files. An operation of the backward pass belongs to the line whose
forward operation it differentiates.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from frog.plan.estimate.kernels import LOAD_BYTES
from frog.plan.program.known_values_rank import computed, fake_results, follow, value_of

_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_OWN = os.path.dirname(os.path.abspath(__file__))
_BLOCK = 512
"""CUDA's allocator hands out multiples of it."""

_COLLECTIVES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "alltoall_base_": "all_to_all",
    "alltoall_": "all_to_all",
    "gather_": "gather",
    "scatter_": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv_": "recv",
}
_FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
}
_FREE = {"detach", "alias", "_local_scalar_dense", "empty", "empty_like", "empty_strided", "new_empty", "resize_"}
_FREE |= {"_unsafe_view", "lift_fresh"}
"""Operations that launch no kernel, next to views."""
_BY_VALUE = ("DynamicOutputShapeException", "DataDependentOutputException")
"""Errors of fake tensors for an operation whose shape or value depends on data."""
_ATTENTION = ("_scaled_dot_product_", "_flash_attention_", "_efficient_attention_")


class Complete(BaseException):
    """The planned steps are complete, and the program begins another one."""


class CannotFake(Exception):
    """An operation that fake tensors cannot answer, with its line."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The rows, the storages, and the moments at which storages were allocated and freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows: list[list[Any]] = []
        self.lines: list[str] = ["(outside of your files)"]
        self.storages: list[list[Any]] = []
        """[bytes, line, kind] of each storage."""
        self.memory: list[int] = []
        """Index + 1 of a storage when it is allocated, and its negative when it is freed."""
        self.allocated = self.peak = 0
        """Bytes of all living storages, and the most since the program reset its peak."""
        self.answered: dict[str, list[Any]] = {}
        """Values that the program asked for, by line: what, and how often."""
        self.no_rule: dict[str, int] = {}
        """Operations counted as memory-bound because no other rule knows them."""
        self.embedded: dict[str, int] = {}
        """Numbers of indices that were looked up in the step, by line and shape of the embedding."""
        self.groups: list[list[int]] = []
        """The ranks of each group that communicates."""
        self.in_optimizer = False
        self.began = False
        """True if a forward pass that records gradients has begun since an optimizer's step."""
        self.stream = 0
        """The stream on which the program launches; 0 is the default one."""
        self.pads_products = False
        """True if the program compiles: the compiler fills up matrices whose rows start anywhere."""
        self.paused = False
        self.is_complete = False
        """True after the planned steps; the next forward pass ends the program."""
        self._line_of: dict[str, int] = {}
        self._forward_line: dict[int, int] = {}
        self._live: dict[int, tuple[int | None, weakref.ref[Any]]] = {}
        """Index and reference of each storage, by its address; without an index it is resized to nothing."""

    # ---- lines -------------------------------------------------------------------------------------------------------

    def line(self) -> int:
        """Return the index of the user's line that runs, or whose gradient is computed."""
        if torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled():
            node = torch._C._current_autograd_node()
            if node is not None:
                known = self._forward_line.get(node._sequence_nr())
                if known is not None:
                    return known
        return self.index_of(user_line())

    def index_of(self, text: str | None) -> int:
        """Return the index of a line, 0 if it is unknown."""
        if text is None:
            return 0
        if text not in self._line_of:
            self._line_of[text] = len(self.lines)
            self.lines.append(text)
        return self._line_of[text]

    def which_pass(self) -> str:
        """Return the part of the step that runs."""
        if self.in_optimizer:
            return "optimizer"
        if torch._C._current_graph_task_id() == -1:
            return "forward"
        return "recomputed" if torch.is_grad_enabled() else "backward"

    # ---- operations --------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused or func.namespace == "prim":
            return func(*args, **kwargs)
        if any(getattr(kind, "__name__", "") == "DTensor" for kind in types):
            return NotImplemented  # DTensor calls the operation again for the part of this rank
        given = tensors_in((args, kwargs))
        if given and not any(isinstance(tensor, FakeTensor) for tensor in given):
            with _disable_current_modes():
                return func(*args, **kwargs)  # data on the CPU
        device = kwargs.get("device")
        if device is not None and device.type == "cuda":
            kwargs = {**kwargs, "device": torch.device("cpu")}  # where torch calls without its function mode
        name = func._schema.name.partition("::")[2]
        space = func.namespace
        line = self.line()
        if name == "_local_scalar_dense":
            return self.answer(args[0], line)
        if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
            self._forward_line[torch._C._autograd._get_sequence_nr() - 1] = line
        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            values = computed(func, args, kwargs) if type(error).__name__ in _BY_VALUE else None
            if values is None:
                explain(error, name, self.lines[line])
                raise
            result = fake_results(next(each for each in given if isinstance(each, FakeTensor)).fake_mode, values)
        else:
            follow(func, args, kwargs, result)
        if space == "c10d":
            self._collective(_COLLECTIVES.get(name, name), args, kwargs, line)
        elif space == "_c10d_functional":
            self._functional(name, args, result, line)
        else:
            self._operation(func, name, args, kwargs, result, line)
        self._allocate(result, line)
        return result

    def _operation(self, func: Any, name: str, args: Any, kwargs: Any, result: Any, line: int) -> None:
        if name in _FREE or func.is_view:
            return
        inputs = tensors_in((args, kwargs))
        outputs = tensors_in(result)
        if all(is_meta(tensor) for tensor in (*inputs, *outputs)):
            return
        row = product_row(name, args, outputs, pads=self.pads_products) or attention_row(name, args)
        passed = self.which_pass()
        if row is not None:
            # The forward pass of a torch.autograd.Function has no gradients on.
            if passed == "forward" and (torch.is_grad_enabled() or called_by("torch.autograd.function")):
                self.began = True
                if self.is_complete:
                    raise Complete
            kind, *numbers = row
            self.rows.append([kind, line, passed, *numbers, name])
            return
        written = {id(output): output for output in outputs}
        written |= {id(output): output for output in mutated(func, args, kwargs)}
        if name in ("embedding", "index", "index_select", "gather"):
            num_bytes = 2 * sum(map(size_of, outputs)) + sum(map(size_of, inputs[1:]))
            if name == "embedding" and passed == "forward":
                table = f"{line} {tuple(args[0].shape)}"
                self.embedded[table] = self.embedded.get(table, 0) + args[1].numel()
        elif name in ("zeros", "ones", "full", "fill_", "zero_", "zeros_like", "ones_like", "full_like", "copy_"):
            reads = inputs[1:] if name == "copy_" else []
            num_bytes = sum(map(size_of, (*written.values(), *reads)))
        else:
            num_bytes = sum(map(size_of, (*inputs, *written.values())))
        if num_bytes:
            if func.namespace not in ("aten", "prims", "fsdp"):
                self.no_rule[str(func)] = self.no_rule.get(str(func), 0) + 1
            self.rows.append(["memory", line, passed, num_bytes, name])

    def answer(self, tensor: Any, line: int) -> Any:
        """Return the value of a fake tensor if it is known, else 1.0, 0 or False."""
        if tensor.constant is not None:
            return tensor.constant.item()
        known = value_of(tensor)
        if known is not None:
            self.rows.append(["sync", line])
            with _disable_current_modes():
                return known.item()
        if called_by("torch.optim"):
            return 1.0  # the number of steps, which optimizers keep on the CPU
        self.note_answer(".item()", line)
        self.rows.append(["sync", line])
        if tensor.dtype == torch.bool:
            return False
        if not tensor.dtype.is_floating_point:
            return 0
        return 0.0 if called_by("torch.amp") else 1.0  # a loss scaler asks whether a gradient was infinite

    def note_answer(self, what: str, line: int) -> None:
        """Count a value that the program asked for and that no computation gave."""
        self.answered.setdefault(self.lines[line], [what, 0])[1] += 1

    # ---- collectives -------------------------------------------------------------------------------------------------

    def _collective(self, kind: str, args: Any, kwargs: Any, line: int) -> None:
        """Record a collective of torch.distributed; its payload is the larger side, as for an all-gather's result."""
        values = [*args, *kwargs.values()]
        sizes = [sum(map(size_of, tensors_in(value))) for value in values]
        group = next((value for value in values if hasattr(value, "_type") and "ProcessGroup" in str(value)), None)
        ranks = ranks_of(group)
        key, is_started = self._how_it_waits()
        mode = "started" if is_started else "blocking"
        self._add_collective(kind, max(sizes, default=0), ranks, line, mode, key)

    def _functional(self, name: str, args: Any, result: Any, line: int) -> None:
        if name == "wait_tensor" or name not in _FUNCTIONAL:
            return
        sizes = [sum(map(size_of, tensors_in(value))) for value in (args, result)]
        from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined]

        name_of_group = next(value for value in reversed(args) if isinstance(value, str))
        ranks = ranks_of(_resolve_process_group(name_of_group))  # type: ignore[arg-type]
        self._add_collective(_FUNCTIONAL[name], max(sizes), ranks, line, "blocking", "")

    def _add_collective(self, kind: str, num_bytes: int, ranks: list[int], line: int, mode: str, key: str) -> None:
        stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
        if ranks not in self.groups:
            self.groups.append(ranks)
        where = len(ranks), stride, mode, key, self.groups.index(ranks)
        self.rows.append(["collective", line, self.which_pass(), kind, num_bytes, *where])

    def _how_it_waits(self) -> tuple[str, bool]:
        """Return the key under which the program waits for a collective, and True if it continues meanwhile."""
        frame = sys._getframe(1)
        while frame is not None:
            name, code = frame.f_globals.get("__name__", ""), frame.f_code.co_name
            if name.endswith("_fsdp_param_group") and code in ("unshard", "post_backward"):
                return (f"unshard {id(frame.f_locals['self'])}" if code == "unshard" else "reduce"), True
            if name.endswith("distributed_c10d") and frame.f_locals.get("async_op"):
                inner = frame.f_back
                if inner is None or "_fsdp_collectives" not in inner.f_globals.get("__name__", ""):
                    return "reduce", True
            frame = frame.f_back  # type: ignore[assignment]
        return "", False

    # ---- memory ------------------------------------------------------------------------------------------------------

    def _allocate(self, result: Any, line: int) -> None:
        for tensor in tensors_in(result):
            self.add_storage(tensor, line)

    def add_storage(self, tensor: Any, line: int) -> None:
        """Record the storage of a tensor, if it is new, and when it is freed."""
        if is_meta(tensor):
            return
        storage = tensor.untyped_storage()
        if storage._cdata not in self._live and storage.nbytes():
            self._hold(storage, line, storage.nbytes())

    def _hold(self, storage: Any, line: int, num_bytes: int) -> None:
        """Record the allocation of a storage's bytes, and that they are freed with it."""
        passed = self.which_pass()
        is_kept = passed == "forward" and torch.is_grad_enabled()
        self.storages.append([-(-num_bytes // _BLOCK) * _BLOCK, line, "activations" if is_kept else passed])
        index, key = len(self.storages) - 1, storage._cdata
        self._count(index + 1)
        if key in self._live:
            self._live[key] = index, self._live[key][1]
            return

        def free(_: object) -> None:
            held, _reference = self._live.pop(key)
            if held is not None:
                self._count(-(held + 1))

        self._live[key] = index, weakref.ref(storage, free)

    def _count(self, event: int) -> None:
        """Record an allocation, or a storage that is freed, by its number and sign."""
        self.memory.append(event)
        size = self.storages[abs(event) - 1][0]
        self.allocated += size if event > 0 else -size
        self.peak = max(self.peak, self.allocated)

    def resize(self, storage: Any, num_bytes: int) -> None:
        """Record that a storage is resized, as FSDP does to free and allocate a layer's gathered weights."""
        key = storage._cdata
        held, reference = self._live.get(key, (None, None))
        if held is not None and reference is not None:
            self._count(-(held + 1))
            self._live[key] = None, reference
        if num_bytes:
            self._hold(storage, self.line(), num_bytes)
            self.storages[-1][2] = "other"

    def classify(self, tensors: Iterable[Any], kind: str) -> None:
        """Name what the storages of these tensors hold."""
        for tensor in tensors:
            local = getattr(tensor, "_local_tensor", tensor)
            if is_meta(local):
                continue
            self.add_storage(local, 0)
            known = self._live.get(local.untyped_storage()._cdata)
            if known is not None and known[0] is not None:
                self.storages[known[0]][2] = kind


def user_line(skip: int = 1) -> str | None:
    """Return `file:line` of the innermost frame in the user's own files, or None.

    In a model of a library, called from the user's files, it is the library's line: the user has no other model.
    """
    frame: Any = sys._getframe(skip)
    in_library, is_model = None, False
    while frame is not None:
        name = frame.f_code.co_filename
        if is_user_file(name):
            return in_library if is_model else _place(name, frame)
        if _is_library(name):
            in_library = in_library or _place(name, frame)
            is_model = is_model or frame.f_code.co_name == "forward"
        frame = frame.f_back
    return None


def _place(name: str, frame: Any) -> str:
    _, is_installed, inside = name.rpartition("site-packages" + os.sep)
    here = inside if is_installed else os.path.relpath(name)
    return f"{here if not here.startswith('..') else name}:{frame.f_lineno}"


@functools.cache
def is_user_file(name: str) -> bool:
    """True for a file of the user's own: not of torch, of Frog's recorder, or installed."""
    return not (is_frog_or_torch(name) or name.startswith("<") or "site-packages" in name or "/lib/python" in name)


@functools.cache
def _is_library(name: str) -> bool:
    """True for an installed file of a library other than torch."""
    return "site-packages" in name and not is_frog_or_torch(name)


def is_frog_or_torch(name: str) -> bool:
    """True for a file of torch or of Frog's recorder."""
    return name.startswith((_TORCH, _OWN))


def called_by(module: str) -> bool:
    """True if a function of this module is on the stack."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(module):
            return True
        frame = frame.f_back
    return False


def explain(error: RuntimeError, name: str, line: str) -> None:
    """Raise CannotFake for an error that only fake tensors have; return for any other.

    Raises:  CannotFake.
    """
    kind = type(error).__name__
    if kind in _BY_VALUE:
        raise CannotFake(f"{line}: the shape or value of {name} depends on data, which a plan does not compute")
    if kind in ("UnsupportedOperatorException", "UnsupportedFakeTensorException", "MetadataMismatchError"):
        raise CannotFake(f"{line}: {name} has no shape function, so fake tensors cannot run it")


def tensors_in(value: Any) -> list[Any]:
    """Return the tensors in nested lists, each once."""
    leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return list({id(leaf): leaf for leaf in leaves}.values())


def is_meta(tensor: Any) -> bool:
    """True for a tensor that the program created on the device `meta`, without memory."""
    return str(getattr(tensor, "fake_device", tensor.device)) == "meta"


def size_of(tensor: Any) -> int:
    """Return the bytes of the elements; an expanded dimension counts once."""
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or size == 0]
    return int(math.prod(sizes) * tensor.element_size())


def mutated(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments that an operation writes."""
    written: list[Any] = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += tensors_in(args[index] if index < len(args) else kwargs.get(argument.name))
    return written


def product_row(name: str, args: Any, outputs: list[Any], *, pads: bool) -> list[Any] | None:
    """Return the sizes of a matrix product, or None for another operation.

    pads: a compiler fills up rows that do not start at multiples of what one load reads.
    """
    if name in ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_int_mm"):
        left, right = args[1:3] if name in ("addmm", "baddbmm") else args[:2]
        *batch, rows, inner = left.shape
        sizes = math.prod(batch), rows, inner, right.shape[-1], left.element_size()
        loaded = LOAD_BYTES if pads else min(map(loaded_at_once, (left, right, *outputs[:1])))
        return ["product", *sizes, loaded]
    if name == "convolution":
        weight, result = args[1], outputs[0]
        columns, *filter_sizes = weight.shape
        rows = result.shape[0] * math.prod(result.shape[2:])
        return ["product", 1, rows, math.prod(filter_sizes), columns, weight.element_size(), LOAD_BYTES]
    if name == "convolution_backward":
        grad, _, weight = args[:3]
        columns, *filter_sizes = weight.shape
        rows = grad.shape[0] * math.prod(grad.shape[2:])
        num_results = sum(map(bool, args[-1][:2]))
        return ["product", num_results, rows, columns, math.prod(filter_sizes), weight.element_size(), LOAD_BYTES]
    return None


def loaded_at_once(matrix: Any) -> int:
    """Return how many bytes of a matrix, or of each in a batch, one load reads: all rows start at multiples of them."""
    steps = [step for size, step in zip(matrix.shape, matrix.stride(), strict=True) if size > 1 and step != 1]
    return math.gcd(LOAD_BYTES, *(step * matrix.element_size() for step in steps))


def attention_row(name: str, args: Any) -> list[Any] | None:
    """Return the sizes of fused attention, with the layout (batch, heads, sequence, width), or None."""
    if not name.startswith(_ATTENTION[0]):
        return None
    is_backward = "backward" in name
    query, key, value = args[1:4] if is_backward else args[:3]
    flags = [value for value in args if isinstance(value, bool)]
    batch_heads = query.shape[0] * query.shape[1]
    sizes = query.shape[2], key.shape[2], query.shape[3], value.shape[3]
    if not is_backward and "efficient" in name:
        flags = flags[1:]  # the first one asks for the sums of the softmax
    return ["attention", batch_heads, *sizes, any(flags[-1:] if is_backward else flags[:1]), is_backward]


def ranks_of(group: Any) -> list[int]:
    """Return the ranks of a process group, of the whole world if it is unknown."""
    import torch.distributed as dist

    if group is None:
        return list(range(dist.get_world_size()))
    try:
        from torch._C._distributed_c10d import ProcessGroup

        group = ProcessGroup.unbox(group) if not isinstance(group, ProcessGroup) else group
        return dist.get_process_group_ranks(group)
    except (ImportError, AttributeError, ValueError, RuntimeError, KeyError):
        return list(range(dist.get_world_size()))
