"""A layer over `torch.distributed` in a learner's process: it reports each operation and delays it until all ranks
have called it.

The operations themselves are torch's. The layer adds two rules:

- before an operation, its rank reports it, and continues when the judge has seen the other ranks arrive;
- an asynchronous operation works on a copy, and its result arrives when the rank waits for it: code that does not wait
  reads the old numbers, on every machine and every time.

DTensor communicates by the functional collectives, which the layer treats as blocking. Operations that torch starts in
C++ (DDP, the first FSDP) bypass this layer.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives, distributed_c10d

from frog.learn.grader import late_future
from frog.learn.grader.late_future import LateFuture


class Judge(Protocol):
    """The connection to the judge."""

    def send(self, message: dict[str, Any]) -> None: ...
    def answer(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class _Form:
    """An operation's arguments: those it fills, those that must have equal sizes on all ranks, and its root."""

    fills: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    root: str | None = None


_FORMS = {
    "all_reduce": _Form(("tensor",), ("tensor",)),
    "broadcast": _Form(("tensor",), ("tensor",), "src"),
    "reduce": _Form(("tensor",), ("tensor",), "dst"),
    "all_gather": _Form(("tensor_list",), ("tensor",)),
    "all_gather_into_tensor": _Form(("output_tensor",), ("input_tensor",)),
    "all_gather_single": _Form(("output_tensor",), ("input_tensor",)),
    "gather": _Form(("gather_list",), ("tensor",), "dst"),
    "scatter": _Form(("tensor",), ("tensor",), "src"),
    "reduce_scatter": _Form(("output",), ("output",)),
    "reduce_scatter_tensor": _Form(("output",), ("output",)),
    "reduce_scatter_single": _Form(("output",), ("output",)),
    "all_to_all": _Form(("output_tensor_list",)),
    "all_to_all_single": _Form(("output",)),
    "all_reduce_coalesced": _Form(("tensors",), ("tensors",)),
    "barrier": _Form(),
    "monitored_barrier": _Form(),
    "all_gather_object": _Form(),
    "gather_object": _Form(root="dst"),
    "broadcast_object_list": _Form(root="src"),
    "scatter_object_list": _Form(root="src"),
}
_SENT = {
    "all_gather": "tensor",
    "all_gather_into_tensor": "input_tensor",
    "all_gather_single": "input_tensor",
    "reduce_scatter": "input_list",
    "reduce_scatter_tensor": "input",
    "reduce_scatter_single": "input",
    "all_to_all": "input_tensor_list",
    "all_to_all_single": "input",
}
"""The argument with a rank's input, for operations that do not work in place."""
_FUNCTIONAL = (
    "all_reduce",
    "broadcast",
    "all_gather_single",
    "all_gather_tensor",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "all_to_all_single",
)
"""Functional collectives: they return their result, and their first argument is a rank's input."""


class Layer:
    """The operations of this process. Each process installs one layer before it loads the learner's code."""

    def __init__(self, judge: Judge, files: Iterable[str], held: bool) -> None:
        self._judge, self._files, self._held = judge, frozenset(files), held
        self._number = 0
        self._inside = False
        self._batch: int | None = None
        self._num_batches = 0
        self._unfinished: dict[int, Any] = {}
        """Messages that the learner has not waited for. gloo's thread spins if one's buffer no longer exists."""

    def install(self) -> None:
        """Replace torch's functions in every module that exposes them."""
        for name, form in _FORMS.items():
            if hasattr(distributed_c10d, name):  # torch before 2.13 has no all_gather_single
                self._stand_in(name, functools.partial(self._collective, name, form))
        for name in ("send", "recv", "isend", "irecv"):
            self._stand_in(name, functools.partial(self._message, name))
        self._stand_in("batch_isend_irecv", self._in_batch)
        self._stand_in("new_group", self._new_group)
        for name in _FUNCTIONAL:
            if hasattr(_functional_collectives, name):
                self._stand_in(name, functools.partial(self._functional, name), (_functional_collectives,))
        torch.futures.collect_all = late_future.collect_all
        torch.futures.wait_all = late_future.wait_all

    def _stand_in(
        self, name: str, run: Callable[..., Any], modules: Sequence[ModuleType] = (distributed_c10d, dist)
    ) -> None:
        original = getattr(modules[0], name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._inside or not dist.is_initialized():
                return original(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return run(original, bound)

        for module in modules:
            setattr(module, name, wrapper)

    # ---- operations --------------------------------------------------------------------------------------------------

    def _collective(self, name: str, form: _Form, original: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
        given, group = bound.arguments, _ranks_of(bound.arguments["group"])
        if group is None:  # torch warns that this rank is not in the group, and does nothing
            return original(*bound.args, **bound.kwargs)
        sizes = [text for argument in form.sizes if (text := _shape(given[argument]))]
        sizes += [str(given["op"]).split(".")[-1]] if "op" in given and not isinstance(given["op"], list) else []
        sizes += [f"root {_root(given, form.root, group)}"] if form.root else []
        sent = _tensors(given.get(_SENT.get(name) or (form.sizes[0] if form.sizes else "")))
        is_async = bool(given.get("async_op"))
        number = self._enter(name, group, sizes, sent, is_async)
        if not is_async:
            self._judge.answer()
            return self._real(original, bound)
        targets = [tensor for argument in form.fills for tensor in _tensors(given[argument])]
        copies = {id(tensor): tensor.detach().clone() for tensor in targets}
        for argument in form.fills:
            given[argument] = _replaced(given[argument], copies)
        work = self._real(original, bound)
        return LateWork(self, number, work, [(tensor, copies[id(tensor)]) for tensor in targets])

    def _message(self, name: str, original: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
        given, group = bound.arguments, _ranks_of(bound.arguments["group"])
        if group is None:
            return original(*bound.args, **bound.kwargs)
        end = "dst" if "send" in name else "src"
        peer = given[end] if given[f"group_{end}"] is None else group[given[f"group_{end}"]]
        tensor, is_async = given["tensor"], name.startswith("i")
        both = tuple(sorted({dist.get_rank(), peer})) if peer is not None else (dist.get_rank(),)
        extra = {"peer": peer, "tag": given["tag"], "batch": self._batch}
        number = self._enter(name, both, [_shape(tensor)], [tensor], is_async, **extra)
        if not is_async:
            sender = self._judge.answer().get("from")
            if end == "src" and peer is None:
                given["src"] = sender
            return self._real(original, bound)
        copy = tensor.detach().clone()
        given["tensor"] = copy
        work = self._unfinished[number] = self._real(original, bound)
        return LateWork(self, number, work, [(tensor, copy)] if end == "src" else [])

    def _in_batch(self, original: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
        """Start the messages of one batch; each is reported with the batch's number."""
        self._batch, self._num_batches = self._num_batches, self._num_batches + 1
        try:
            return original(*bound.args, **bound.kwargs)
        finally:
            self._batch = None

    def _new_group(self, original: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
        ranks = bound.arguments["ranks"]
        everyone = tuple(range(dist.get_world_size()))
        members = list(everyone if ranks is None else ranks)
        self._enter("new_group", everyone, [f"ranks {members}"], [], False)
        self._judge.answer()
        return self._real(original, bound)

    def _functional(self, name: str, original: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
        tensor, *_ = bound.args
        name_of_group = _functional_collectives._resolve_group_name(bound.arguments["group"], bound.arguments["tag"])
        group = distributed_c10d._resolve_process_group(name_of_group)  # type: ignore[attr-defined]
        ranks = tuple(dist.get_process_group_ranks(group))
        sizes = [] if name == "all_to_all_single" else [_shape(tensor)]
        sizes += [bound.arguments["reduceOp"].upper()] if "reduceOp" in bound.arguments else []
        self._enter(name, ranks, sizes, [tensor], False)
        self._judge.answer()
        return self._real(original, bound)

    def _real(self, original: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
        """Call torch's own function without reporting the operations that it calls."""
        self._inside = True
        try:
            return original(*bound.args, **bound.kwargs)
        finally:
            self._inside = False

    # ---- messages to the judge ---------------------------------------------------------------------------------------

    def _enter(
        self,
        op: str,
        group: tuple[int, ...],
        sizes: list[str],
        sent: list[torch.Tensor],
        is_async: bool,
        **extra: Any,
    ) -> int:
        if self._held and self._number < 20:
            time.sleep(0.002)
        message = {
            "op": op,
            "group": group,
            "sizes": sizes,
            "is_async": is_async,
            "line": self._line(),
            "numel": sum(tensor.numel() for tensor in sent),
            "dtype": str(sent[0].dtype).removeprefix("torch.") if sent else "",
            "num_bytes": sum(tensor.numel() * tensor.element_size() for tensor in sent),
            **extra,
        }
        self._judge.send({"type": "enter", "operation": message})
        self._number += 1
        return self._number - 1

    def wait(self, number: int, overwritten: bool) -> None:
        """Wait until all ranks have called the asynchronous operation with this number.

        overwritten: the learner's code wrote to its tensors after the operation had started.
        """
        self._judge.send({"type": "wait", "number": number, "overwritten": overwritten})
        self._judge.answer()

    def finish(self, number: int) -> None:
        """Let go of a message that the learner has waited for."""
        self._unfinished.pop(number, None)

    def _line(self) -> str:
        """Return the innermost line of the learner's files on the call stack."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename not in self._files:
            frame = frame.f_back  # type: ignore[assignment]
        return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}" if frame is not None else ""


class LateWork:
    """An asynchronous operation whose result arrives on `wait`, or on the third call of `is_completed`."""

    def __init__(self, layer: Layer, number: int, work: Any, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._layer, self._number, self._work, self._pairs = layer, number, work, pairs
        self._asked, self._is_done = 0, False
        self._futures: list[LateFuture] = []
        self._versions = [_version(target) for target, _ in pairs]

    def wait(self, timeout: Any = None) -> bool:
        """Wait for the operation and copy its result to the learner's tensors."""
        if not self._is_done:
            overwritten = self._versions != [_version(target) for target, _ in self._pairs]
            self._layer.wait(self._number, overwritten)
            if self._work is not None:
                self._work.wait()
            self._layer.finish(self._number)
            for target, copy in self._pairs:
                target.detach().copy_(copy)
            self._is_done = True
            for future in self._futures:
                future.complete()
        return True

    synchronize = wait
    block_current_stream = wait

    def is_completed(self) -> bool:
        """Return True if the operation has completed; never at the first call."""
        self._asked += 1
        return self._is_done or (self._asked > 2 and self.wait())

    def is_success(self) -> bool:
        return self._is_done

    def exception(self) -> None:
        return None

    def source_rank(self) -> int:
        return int(self._work.source_rank()) if self._work is not None else 0

    def result(self) -> list[torch.Tensor]:
        return [target for target, _ in self._pairs]

    def get_future(self) -> LateFuture:
        """Return a future of the filled tensors. Waiting for either completes both."""
        future = LateFuture(self._arrived)
        self._futures.append(future)
        return future

    def _arrived(self) -> list[torch.Tensor]:
        self.wait()
        return self.result()


def _version(tensor: torch.Tensor) -> int:
    """Return a number that changes whenever the tensor is written to."""
    return 0 if tensor.is_inference() else tensor._version


def _ranks_of(group: Any) -> tuple[int, ...] | None:
    """Return the global ranks of a group; None if this rank is not a member."""
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return None
    return tuple(dist.get_process_group_ranks(group or dist.group.WORLD))


def _root(given: dict[str, Any], end: str, group: tuple[int, ...]) -> int:
    in_group = given.get(f"group_{end}")
    return int(given[end] or 0) if in_group is None else group[in_group]


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for tensor in value if isinstance(tensor, torch.Tensor)] if isinstance(value, (list, tuple)) else []


def _shape(value: Any) -> str:
    return " + ".join(f"{t.numel()} x {str(t.dtype).removeprefix('torch.')}" for t in _tensors(value))


def _replaced(value: Any, copies: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return copies[id(value)]
    return [copies[id(tensor)] for tensor in value] if isinstance(value, (list, tuple)) else value
