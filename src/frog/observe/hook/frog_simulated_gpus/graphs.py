"""CUDA graphs: the operations of a captured block, which `replay` computes again on the same memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from .replace import replace, wrap, wrap_everywhere
from .streams import Stream, StreamContext
from .tensors import on_host

Function = Callable[..., Any]


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _storage_id(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _written(operation: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operation changes; collectives do not declare theirs."""
    if operation.namespace == "c10d":
        return _tensors((args, kwargs))
    declared = operation._schema.arguments
    values = dict(zip((argument.name for argument in declared), args)) | kwargs  # noqa: B905  # rest: defaults
    return _tensors(
        [values.get(one.name) for one in declared if one.alias_info is not None and one.alias_info.is_write]
    )


def _compute(operation: Any, args: Any, kwargs: dict[str, Any], written: list[torch.Tensor | None]) -> None:
    """Compute an operation again, and write each result where it was at the capture; None: it is there already."""
    result = operation(*args, **kwargs)
    if operation.namespace == "c10d":
        from torch._C._distributed_c10d import Work

        for work in [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.ScriptObject)]:
            Work.unbox(work).wait()
    for target, new in zip(written, _tensors(result), strict=True):
        if target is not None:
            target.copy_(new)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes operations and lists them, then undoes their changes, because a GPU's capture computes nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Callable[[], Any]] = []
        self._random = torch.default_generator.get_state()
        self._own: set[int] = set()
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if set(types) - {torch.Tensor, torch.nn.Parameter}:
            return NotImplemented  # a DTensor: its parts arrive here next
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and not on_host(args[0]):
            raise RuntimeError(
                "CUDA error: operation not permitted when stream is capturing\n"
                "(simulated GPUs: the program reads a number from the GPU, for example with item())"
            )
        self._keep(_written(func, args, kwargs))
        result = func(*args, **kwargs)
        if not func.is_view and _tensors((args, kwargs, result)):
            self._record(func, args, kwargs, result)
        return result

    def _record(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
        given = {_storage_id(tensor) for tensor in _tensors((args, kwargs))}
        made = [None if _storage_id(tensor) in given else tensor.detach() for tensor in _tensors(result)]
        self._own |= {_storage_id(tensor) for tensor in made if tensor is not None}
        self.calls.append(lambda: _compute(func, args, kwargs, made))

    def _keep(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if _storage_id(tensor) not in self._own | self._before.keys():
                self._before[_storage_id(tensor)] = storage, storage.clone()  # type: ignore[no-untyped-call]

    def undo(self) -> None:
        """Give tensors that existed before the capture, and the random generator, their values again."""
        for storage, values in self._before.values():
            if storage.nbytes() == values.nbytes():
                storage.copy_(values)
        self._before.clear()
        torch.default_generator.set_state(self._random)


class CUDAGraph:
    """Operations that were captured, in their order."""

    capturing: ClassVar[CUDAGraph | None] = None

    def __init__(self, keep_graph: bool = False) -> None:
        self.recorder = _Recorder()
        self._block = contextlib.ExitStack()

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        """Record the operations from here on; compiled functions run uncompiled, so that each operation is seen."""
        self.recorder = _Recorder()
        CUDAGraph.capturing = self
        if "torch._dynamo" in sys.modules:  # slow to import, and without it nothing is compiled
            self._block.enter_context(torch.compiler.set_stance("force_eager"))
        self._block.enter_context(self.recorder)

    def capture_end(self) -> None:
        """End the recording."""
        CUDAGraph.capturing = None
        self._block.close()
        self.recorder.undo()

    def replay(self) -> None:
        """Compute the operations again."""
        with torch.inference_mode(), torch._C._DisableAutocast():
            for call in self.recorder.calls:
                call()

    def reset(self) -> None:
        """Forget the operations."""
        self.recorder = _Recorder()

    def instantiate(self) -> None:
        """Do nothing: the operations are ready."""

    def pool(self) -> tuple[int, int]:
        """Return the only pool."""
        return 0, 0


@contextlib.contextmanager
def graph(cuda_graph: CUDAGraph, pool: Any = None, stream: Stream | None = None, **options: Any) -> Iterator[None]:
    """Capture a block."""
    with StreamContext(stream or Stream()):
        cuda_graph.capture_begin()
        try:
            yield
        finally:
            cuda_graph.capture_end()


def _resize(function: Function) -> Function:
    """Repeat a change of a storage's size, with which FSDP frees and fills parameters, at a replay too."""

    def resize_(self: Any, size: int) -> Any:
        if CUDAGraph.capturing is not None:
            CUDAGraph.capturing.recorder.calls.append(lambda: function(self, size))
        return function(self, size)

    return resize_


def _wait(function: Function) -> Function:
    """Record nothing while a collective ends: what gloo computes then, it computes at a replay too."""

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if CUDAGraph.capturing is None:
            return function(self, *args, **kwargs)
        with _disable_current_modes():
            return function(self, *args, **kwargs)

    return wait


def _also_cpu(function: Function) -> Function:
    """Let optimizers with `capturable=True` have their parameters on the CPU."""
    return lambda *args, **kwargs: [*function(*args, **kwargs), "cpu"]


def patch_graphs() -> None:
    """Replace CUDA graphs."""
    for owner in (torch.cuda, torch.cuda.graphs):
        replace(owner, "CUDAGraph", CUDAGraph)
        replace(owner, "graph", graph)
        replace(owner, "is_current_stream_capturing", lambda: CUDAGraph.capturing is not None)
        replace(owner, "graph_pool_handle", lambda: (0, 0))
    wrap(torch.UntypedStorage, "resize_", _resize)
    if torch.distributed.is_available():
        wrap(torch.distributed.Work, "wait", _wait)
    wrap_everywhere(optimizer, {"_get_capturable_supported_devices": _also_cpu})
