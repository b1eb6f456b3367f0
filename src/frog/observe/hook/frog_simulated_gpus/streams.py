"""Streams, events and CUDA graphs.

All work is synchronous on a CPU, so a stream is never behind and an event has a real time. A graph is the operations of
a captured block, which `replay` computes again on the same memory.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from . import generators
from .placement import Gpus, on_host
from .replace import replace, wrap, wrap_everywhere
from .tensors import index_of


class Stream:
    """A queue that is always empty: each call has finished when it returns."""

    _last_id = 0

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device_index = index_of(device)
        self.device = torch.device("cuda", self.device_index)
        self.priority = priority
        Stream._last_id += 1
        self.stream_id = self.cuda_stream = Stream._last_id
        self._outer: list[Stream] = []

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the range that CUDA has on most GPUs."""
        return 0, -5

    def query(self) -> bool:
        """Return True: no work is left."""
        return True

    def is_capturing(self) -> bool:
        """Return True inside `torch.cuda.graph`."""
        return torch.cuda.is_current_stream_capturing()

    def synchronize(self) -> None:
        """Return at once: no work is left."""

    def wait_event(self, event: Event) -> None:
        """Return at once: what the event follows has finished."""

    def wait_stream(self, stream: Stream) -> None:
        """Return at once: the other stream has no work left."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event now."""
        event = event if event is not None else Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._outer.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, *error: object) -> None:
        set_stream(self._outer.pop())

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:{self.device_index} (simulated)>"


class Event:
    """A point in time, read from the clock of the process when it is recorded."""

    def __init__(
        self, device: Any = None, *, enable_timing: bool = False, blocking: bool = False, **kwargs: Any
    ) -> None:
        self.device = torch.device("cuda", index_of(None if isinstance(device, bool) else device))
        self.enable_timing = enable_timing or device is True  # the first argument of torch.cuda.Event
        self._recorded_s: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Take the time."""
        self._recorded_s = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """Return at once: what was recorded has finished."""

    def query(self) -> bool:
        """Return True: what was recorded has finished."""
        return True

    def synchronize(self) -> None:
        """Return at once: what was recorded has finished."""

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to another. Raises RuntimeError as CUDA does."""
        if not self.enable_timing or not end_event.enable_timing:
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded_s is None or end_event._recorded_s is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event._recorded_s - self._recorded_s) * 1e3


class _Streams:
    default: ClassVar[dict[int, Stream]] = {}
    current: Stream | None = None


def default_stream(device: Any = None) -> Stream:
    """Return the default stream of a GPU."""
    index = index_of(device)
    return _Streams.default.setdefault(index, Stream(index))


def current_stream(device: Any = None) -> Stream:
    """Return the current stream of a GPU."""
    index = index_of(device)
    if _Streams.current is not None and _Streams.current.device_index == index:
        return _Streams.current
    return default_stream(index)


def set_stream(stream: Stream | None) -> None:
    """Make a stream the current one."""
    if stream is not None:
        _Streams.current = stream
        Gpus.current = stream.device_index


class StreamContext:
    """Makes a stream the current one inside a block; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        self._before, self._device = _Streams.current, Gpus.current
        set_stream(self.stream)

    def __exit__(self, *error: object) -> None:
        _Streams.current, Gpus.current = self._before, self._device


def patch_streams() -> None:
    """Replace streams and events of torch.cuda, torch.accelerator and torch."""
    for owner in (torch.cuda, torch.cuda.streams, torch):
        replace(owner, "Stream", Stream)
        replace(owner, "Event", Event)
    for owner in (torch.cuda, torch.cuda.streams):
        replace(owner, "ExternalStream", Stream)
    for name, new in (
        ("current_stream", current_stream),
        ("default_stream", default_stream),
        ("set_stream", set_stream),
        ("stream", StreamContext),
        ("StreamContext", StreamContext),
        ("get_stream_from_external", lambda data_ptr, device=None: Stream(device)),
    ):
        replace(torch.cuda, name, new)
    replace(torch.accelerator, "current_stream", current_stream)
    replace(torch.accelerator, "set_stream", set_stream)


# ---- CUDA graphs -----------------------------------------------------------------------------------------------------

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
        [
            values.get(declaration.name)
            for declaration in declared
            if declaration.alias_info is not None and declaration.alias_info.is_write
        ]
    )


def _compute(operation: Any, args: Any, kwargs: dict[str, Any], written: list[torch.Tensor | None]) -> None:
    """Compute an operation again, and write each result where it was at the capture; None: it is there already."""
    result = operation(*args, **kwargs)
    if operation.namespace == "c10d":
        from torch._C._distributed_c10d import Work

        for work in [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.ScriptObject)]:
            Work.unbox(work).wait()
    elif operation.namespace.startswith("_c10d_functional"):  # its results are complete only after a wait
        for tensor in _tensors(result):
            torch.ops._c10d_functional.wait_tensor(tensor)
    for target, new in zip(written, _tensors(result), strict=True):
        if target is not None:
            target.copy_(new)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes operations and lists them, then undoes their changes, because a GPU's capture computes nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Callable[[], Any]] = []
        self._random = [(each, each.get_state()) for each in (torch.default_generator, *generators.of_gpus)]
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
        for generator, state in self._random:
            generator.set_state(state)


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
        with torch.inference_mode(), torch._C._DisableAutocast(), generators.drawing(Gpus.current):
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
