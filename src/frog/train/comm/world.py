"""The world of a rank. A single process is a world of one: its collectives do nothing."""

from __future__ import annotations

import datetime
import functools
import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from frog.core.env import WorldEnv
from frog.core.errors import CommError, ErrorFacts, UsageError
from frog.core.units import count
from frog.train.comm.axis import Axis, Recorder, Silent, failed
from frog.train.comm.backend import Backend, choose_backend


@dataclass
class World:
    """All ranks of a run, seen from one of them."""

    env: WorldEnv
    device: torch.device
    timeout_s: float
    requested_backend: str = field(kw_only=True, default="auto")
    _recorder: list[Recorder] = field(default_factory=lambda: [Silent()])
    """One shared entry that all axes look up, so that the events can replace it at any time."""
    _groups: list[Any] = field(default_factory=list)
    """torch's groups, which implement this rank's axes."""

    @functools.cached_property
    def backend(self) -> Backend:
        """The backend of the collectives. Raises UsageError if the requested one does not support the device."""
        return choose_backend(self.requested_backend, self.device)

    @property
    def rank(self) -> int:
        return self.env.rank

    @property
    def size(self) -> int:
        return self.env.world_size

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @functools.cached_property
    def axis(self) -> Axis:
        """The whole world as one axis."""
        return Axis("world", range(self.size), self.rank, self.device, None, self._recorder, self.backend)

    def report_to(self, recorder: Recorder) -> None:
        """Report every collective of every axis to `recorder` from now on."""
        self._recorder[0] = recorder

    def make_axis(self, name: str, ranks_of_all: Sequence[Sequence[int]]) -> Axis:
        """Return this rank's axis from `ranks_of_all`, the same list on every rank, which covers the world."""
        own: Axis | None = None
        for ranks in ranks_of_all:
            # torch requires that every rank creates all groups in the same order, including those it is not in.
            whole = len(ranks) == self.size
            group = dist.new_group(list(ranks), timeout=self._timeout) if len(ranks) > 1 and not whole else None
            if self.rank in ranks:
                if group is not None:
                    self._groups.append(group)
                own = Axis(name, ranks, self.rank, self.device, group, self._recorder, self.backend)
        assert own is not None, f"rank {self.rank} is in none of {ranks_of_all}"
        return own

    @property
    def _timeout(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self.timeout_s)

    def all_reduce(self, x: Tensor) -> None:
        """Sum `x` over all ranks, in place."""
        self.axis.all_reduce(x)

    def gather_rows(self, x: Tensor) -> Tensor:
        """Return every rank's `x`, stacked in rank order.

        Shapes:  x (...), the same on every rank -> (world size, ...)
        """
        x = self.backend.movable(x, self.device)
        rows = torch.empty((self.size, *x.shape), dtype=x.dtype, device=x.device)
        self.axis.all_gather(rows, x)
        return rows

    def from_main(self, value: Any) -> Any:
        """Return rank 0's `value` on every rank. Any JSON-like object."""
        if self.size == 1:
            return value
        values = [value]
        with self._collective("broadcast"):
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def gather_objects(self, value: Any) -> list[Any]:
        """Return every rank's `value`, in rank order. Any object that can be pickled."""
        values = [value] * self.size
        if self.size > 1:
            with self._collective("all_gather"):
                dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        if self.size > 1:
            with self._collective("barrier"):
                dist.barrier()

    def forget_axes(self) -> None:
        """Destroy the groups of all axes. A collective call."""
        self.barrier()
        for group in self._groups:
            dist.destroy_process_group(group)
        self._groups.clear()

    def leave(self) -> None:
        """Destroy the process groups."""
        if dist.is_initialized():
            gc.collect()  # a group kept alive by a reference cycle would crash the interpreter at exit
            dist.destroy_process_group()

    @contextmanager
    def _collective(self, op: str) -> Iterator[None]:
        start_ns = time.monotonic_ns()
        note = self._recorder[0](op, "world", 0)
        try:
            yield
        except RuntimeError as error:
            where = f"rank {self.rank} of {self.size}"
            raise failed(
                self.backend, error, op, where, start_ns, op=op, axis="world", payload_bytes=0, seq=note.seq
            ) from error
        end_ns = time.monotonic_ns()
        note.done(end_ns, end_ns - start_ns)


def pick_device(requested: str, env: WorldEnv) -> torch.device:
    """Return the device for this rank.

    "auto" picks CUDA if each rank of this node can have its own GPU, else MPS in a world of one, else the CPU: ranks on
    different kinds of devices would wait for each other in different backends.

    Raises:  UsageError if the requested device does not exist.
    """
    if requested in ("auto", "cuda") and torch.cuda.is_available():
        num_gpus = torch.cuda.device_count()
        if max(env.local_world_size, env.local_rank + 1) <= num_gpus:
            return torch.device("cuda", env.local_rank)
        if requested == "cuda":
            raise UsageError(
                f"this node has {count(num_gpus, 'GPU')} for {count(env.local_world_size, 'rank')}",
                "start at most as many ranks as there are GPUs, or --set train.device=cpu",
            )
        return torch.device("cpu")
    if requested in ("auto", "mps") and env.world_size == 1 and torch.backends.mps.is_available():
        return torch.device("mps")
    if requested in ("auto", "cpu"):
        return torch.device("cpu")
    why = (
        "several ranks need the CPU on this machine" if requested == "mps" and env.world_size > 1 else "no such device"
    )
    raise UsageError(f"train.device={requested}: {why}", "--set train.device=auto uses the available device")


def join_world(env: WorldEnv, device: torch.device, timeout_s: float, backend: str = "auto") -> World:
    """Connect to the other ranks through a backend (see frog.train.comm.backend). A world of one starts none.

    Raises:  CommError if the world does not form in time; UsageError if the backend does not support the device.
    """
    world = World(env, device, timeout_s, requested_backend=backend)
    chosen = world.backend  # this rejects an unsupported backend even if none is started
    if env.world_size > 1:
        with explained_rendezvous(chosen, env):
            chosen.start(env, device, timeout_s)
    return world


@contextmanager
def explained_rendezvous(backend: Backend, env: WorldEnv) -> Iterator[None]:
    """Convert errors while the ranks find each other to CommError."""
    start_ns = time.monotonic_ns()
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise CommError(
            f"rank {env.rank} could not join a world of {env.world_size} at "
            f"{env.master_addr}:{env.master_port}: {backend.shorten(error)}",
            "check that every rank was started, with the same MASTER_ADDR and MASTER_PORT",
            ErrorFacts(
                cause=backend.cause_of(error),
                op="rendezvous",
                waited_s=round((time.monotonic_ns() - start_ns) / 1e9, 3),
            ),
        ) from error
