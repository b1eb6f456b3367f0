"""frog.train.comm.collectives as a process group of torch: `init_process_group("frog")`, after a call of `register`.

DDP, FSDP2, DTensor and `torch.distributed` call these methods. A synchronous call runs on the calling thread. An
asynchronous one runs on the group's thread, or on the first thread that waits for it. C++ callers get a Work made from
a future, since a Python object would have to outlive the C++ one. That future never carries an error, because DDP's
reducer would crash; the next call raises the error instead.
"""

# torch's stubs lack these private names and the signatures with which it calls these methods.
# mypy: disable-error-code="override,assignment,attr-defined,name-defined,misc,call-arg"

from __future__ import annotations

import ctypes
import datetime
import secrets
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future

from frog.core.env import WorldEnv, machine, world_env
from frog.train.comm.collectives.arithmetic import BFLOAT16, Buffer
from frog.train.comm.collectives.cost import saved_costs
from frog.train.comm.collectives.exchange import bytes_of
from frog.train.comm.collectives.group import Group, open_group
from frog.train.comm.collectives.messages import Transfer
from frog.train.comm.collectives.rendezvous import own_host
from frog.train.comm.collectives.worker import Handle, Worker

_OPERATIONS = {
    "SUM": "sum", "AVG": "avg", "MIN": "min", "MAX": "max", "PRODUCT": "product",
    "BAND": "band", "BOR": "bor", "BXOR": "bxor",
}  # fmt: skip
_TYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.bfloat16: BFLOAT16,
    torch.complex64: np.dtype(np.float32),
    torch.complex128: np.dtype(np.float64),
    **{
        getattr(torch, name): np.dtype(name)
        for name in (
            *("float16", "float32", "float64", "bool", "int8", "int16", "int32", "int64"),
            *("uint8", "uint16", "uint32", "uint64"),
        )
    },
}


def register() -> None:
    """Register `frog` as a torch backend. A second call does nothing."""
    if "FROG" not in dist.Backend._plugins:
        dist.Backend.register_backend("frog", _create, devices=["cpu"])


def _create(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> FrogProcessGroup:
    if _given is not None:
        return FrogProcessGroup(_given, rank, size, closes=False)
    return FrogProcessGroup(_open(store, rank, size, timeout.total_seconds()), rank, size)


_given: Any = None
"""The group that the next process group of torch uses, instead of creating one."""


def start_on(survivors: Any, timeout_s: float) -> None:
    """Use a group whose members may change (train/comm/elastic/survivors.py) as torch's default group until they do."""
    global _given
    register()
    _given = survivors
    try:
        dist.init_process_group(
            "frog", store=dist.HashStore(), rank=survivors.rank, world_size=survivors.size,
            timeout=datetime.timedelta(seconds=timeout_s),
        )  # fmt: skip
    finally:
        _given = None


def address(env: WorldEnv) -> tuple[str, str]:
    """Return the host name under which other ranks reach this one, and the name of its node."""
    here = env.master_addr in ("localhost", "127.0.0.1", "::1") or env.world_size == env.local_world_size
    return "127.0.0.1" if here else own_host(env.master_addr), node_name(env)


def node_name(env: WorldEnv) -> str:
    """Return the name of this rank's node: ranks of one node share memory."""
    return f"{machine()} {env.node_rank}"


def _open(store: Any, rank: int, size: int, timeout_s: float) -> Group:
    """Connect to the other ranks of a group."""
    host, node = address(world_env())
    if rank == 0:
        store.set("secret", secrets.token_hex(16))
    return open_group(
        store,
        rank,
        size,
        secret=store.get("secret"),
        host=host,
        node=node,
        timeout_s=timeout_s,
        memory=FrogProcessGroup.memory,
        costs=saved_costs() if rank == 0 else None,
    )


def buffer_of(x: Tensor) -> Buffer:
    """Return a tensor's memory as a buffer, which keeps the tensor alive.

    This does not use `x.numpy()`, after which the memory can no longer be released; zero3 releases it.

    Raises:  ValueError if it is not contiguous, not on the CPU, or of an unsupported type.
    """
    if x.device.type != "cpu" or not x.is_contiguous() or x.dtype not in _TYPES:
        raise ValueError(f"backend frog needs contiguous CPU tensors, not {x.dtype} on {x.device}, {x.stride()}")
    dtype = _TYPES[x.dtype]
    if not x.numel():
        return np.empty(0, dtype)
    memory: Any = (ctypes.c_char * x.nbytes).from_address(x.data_ptr())
    memory.tensor = x
    return np.frombuffer(memory, dtype)


def _slices(whole: Tensor, num_parts: int) -> list[Buffer]:
    if whole.numel() % num_parts:
        raise ValueError(f"{whole.numel()} elements cannot be divided into {num_parts} equal parts")
    return np.split(buffer_of(whole), num_parts)


def _rows(whole: Tensor, counts: Sequence[int], num_parts: int) -> list[Buffer]:
    """Return the slices of `whole` along its first dim; equal slices if no counts are given."""
    if not counts:
        return _slices(whole, num_parts)
    row = whole.numel() // len(whole) if len(whole) else 0
    if sum(counts) != len(whole):
        raise ValueError(f"split sizes {list(counts)} do not sum to the {len(whole)} rows of the tensor")
    return np.split(buffer_of(whole), np.cumsum([count * row for count in counts])[:-1])


class FrogWork(dist._Work):
    """An asynchronous collective or message, for callers in Python."""

    def __init__(self, under_way: Handle | Transfer | None, outputs: list[Tensor]) -> None:
        super().__init__()
        self._under_way, self._outputs = under_way, outputs

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        if self._under_way is not None:
            self._under_way.wait()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._under_way is None or self._under_way.is_completed()

    def is_success(self) -> bool:
        return self.exception() is None

    def exception(self) -> BaseException | None:
        return None if self._under_way is None else self._under_way.error

    def result(self) -> list[Tensor]:
        return self._outputs

    def _source_rank(self) -> int:
        peer = self._under_way.peer if isinstance(self._under_way, Transfer) else None
        return -1 if peer is None else peer

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        under_way = self._under_way
        if under_way is None or not under_way.call_at_end(lambda: future.set_result(self._outputs)):
            future.set_result(self._outputs)
        return future


class FrogProcessGroup(dist.ProcessGroup):
    """A group of ranks whose collectives are those of frog.train.comm.collectives."""

    memory: bool | None = None
    """True if ranks of a node share memory; None: they do if the machine supports it."""

    def __init__(self, group: Any, rank: int, size: int, closes: bool = True) -> None:
        """group: a Group, or Survivors. closes: True to close it together with this process group."""
        super().__init__(rank, size)
        self._rank, self._size, self._closes = rank, size, closes
        self._name = self._description = ""
        self.group = group
        self.worker = Worker(f"collectives of rank {rank}")

    # The methods that torch requires of every group.

    def getBackendName(self) -> str:
        return "frog"

    name = getBackendName

    @property
    def pg_name(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        return self._description

    def _get_backend(self, device: torch.device) -> Any:  # torch 2.15 calls it before it batches messages
        return self if torch.device(device).type == "cpu" else super()._get_backend(device)

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def shutdown(self) -> None:
        self.worker.close()
        if self._closes:
            self.group.close()

    abort = shutdown

    # Collectives.

    def _do(self, opts: Any, outputs: list[Tensor], job: Callable[[], None]) -> Any:
        """Run `job` now, or pass it to the worker thread."""
        if self.worker.broken is not None:
            raise self.worker.broken
        if opts is not None and not opts.asyncOp:
            self.worker.run(job)
            return FrogWork(None, outputs)
        if _python_asks():
            return FrogWork(self.worker.start(job), outputs)
        future: Any = torch.futures.Future()
        self.worker.start(job, lambda: future.set_result(outputs))
        return _create_work_from_future(future)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        op, buffers = _operation(opts), [buffer_of(x) for x in tensors]

        def job() -> None:
            for buffer in buffers:
                self.group.all_reduce(buffer, op)

        return self._do(opts, tensors, job)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        root, buffers = opts.rootRank, [buffer_of(x) for x in tensors]

        def job() -> None:
            for buffer in buffers:
                self.group.broadcast(buffer, root)

        return self._do(opts, tensors, job)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        root, op, buffers = opts.rootRank, _operation(opts), [buffer_of(x) for x in tensors]

        def job() -> None:
            for buffer in buffers:
                self.group.reduce(buffer, root, op)

        return self._do(opts, tensors, job)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        pairs = [([buffer_of(x) for x in parts], buffer_of(x)) for parts, x in zip(outputs, inputs, strict=True)]

        def job() -> None:
            for parts, own in pairs:
                self.group.all_gather(parts, own)

        return self._do(opts, [x for parts in outputs for x in parts], job)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        return self.allgather([list(parts) for parts in outputs], inputs, opts)

    def allgather_into_tensor_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        pairs = [(_slices(out, self._size), buffer_of(x)) for out, x in zip(outputs, inputs, strict=True)]

        def job() -> None:
            for parts, own in pairs:
                self.group.all_gather(parts, own)

        return self._do(opts, outputs, job)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def all_gather_single(self, output: Tensor, x: Tensor, opts: Any = None) -> Any:
        return self.allgather_into_tensor_coalesced([output], [x], opts)

    _allgather_base = all_gather_single

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        op = _operation(opts)
        pairs = [(buffer_of(out), [buffer_of(x) for x in parts]) for out, parts in zip(outputs, inputs, strict=True)]

        def job() -> None:
            for own, parts in pairs:
                self.group.reduce_scatter(own, parts, op)

        return self._do(opts, outputs, job)

    def reduce_scatter_tensor_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        op = _operation(opts)
        pairs = [(buffer_of(out), _slices(x, self._size)) for out, x in zip(outputs, inputs, strict=True)]

        def job() -> None:
            for own, parts in pairs:
                self.group.reduce_scatter(own, parts, op)

        return self._do(opts, outputs, job)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def reduce_scatter_single(self, output: Tensor, x: Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_tensor_coalesced([output], [x], opts)

    _reduce_scatter_base = reduce_scatter_single

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        root, own = opts.rootRank, buffer_of(inputs[0])
        parts = [buffer_of(x) for x in outputs[0]] if self._rank == root else None
        return self._do(opts, [x for row in outputs for x in row], lambda: self.group.gather(own, parts, root))

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        root, own = opts.rootRank, buffer_of(outputs[0])
        parts = [buffer_of(x) for x in inputs[0]] if self._rank == root else None
        return self._do(opts, outputs, lambda: self.group.scatter(own, parts, root))

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        arrive, leave = [buffer_of(x) for x in outputs], [buffer_of(x) for x in inputs]
        return self._do(opts, outputs, lambda: self.group.all_to_all(arrive, leave))

    def all_to_all_single(
        self, output: Tensor, x: Tensor, arriving: Sequence[int] = (), leaving: Sequence[int] = (), opts: Any = None
    ) -> Any:
        arrive, leave = _rows(output, arriving, self._size), _rows(x, leaving, self._size)
        even = not arriving and not leaving
        return self._do(opts, [output], lambda: self.group.all_to_all(arrive, leave, even))

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> Any:
        return self._do(opts, [], self.group.barrier)

    # Messages.

    def send(self, tensors: list[Tensor], peer: int, tag: int = 0) -> Any:
        return FrogWork(self.group.messages.send(peer, tag, bytes_of(buffer_of(tensors[0]))), tensors)

    def recv(self, tensors: list[Tensor], peer: int, tag: int = 0) -> Any:
        return FrogWork(self.group.messages.receive(peer, tag, bytes_of(buffer_of(tensors[0]))), tensors)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Any:
        return FrogWork(self.group.messages.receive(None, tag, bytes_of(buffer_of(tensors[0]))), tensors)


def _operation(opts: Any) -> str:
    if opts is None:
        return "sum"
    name = str(opts.reduceOp.op if hasattr(opts.reduceOp, "op") else opts.reduceOp).rpartition(".")[2]
    if name not in _OPERATIONS:
        raise ValueError(f"backend frog does not support the reduction {name}; use one of {', '.join(_OPERATIONS)}")
    return _OPERATIONS[name]


def _python_asks() -> bool:
    """True if torch.distributed's Python functions called the method, rather than C++."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == dist.distributed_c10d.__file__
