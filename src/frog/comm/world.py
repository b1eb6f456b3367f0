"""The world that a rank belongs to. One process alone is a world of one: its collectives do nothing."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from frog.core.env import WorldEnv, bind_loopback
from frog.core.errors import CommError, UsageError

Recorder = Callable[[str, str, int], AbstractContextManager[None]]


@dataclass
class World:
    """All ranks of a run, seen from one of them."""

    env: WorldEnv
    device: torch.device
    timeout_s: float
    record: Recorder = field(default=lambda op, axis, payload_bytes: nullcontext())
    """Told of every collective: operation, axis, bytes of the payload. The events take this place."""

    @property
    def rank(self) -> int:
        return self.env.rank

    @property
    def size(self) -> int:
        return self.env.world_size

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def all_reduce(self, x: Tensor) -> None:
        """Sum `x` over all ranks, in place."""
        if self.size > 1:
            with self._collective("all_reduce", x.numel() * x.element_size()):
                dist.all_reduce(x)

    def gather_rows(self, x: Tensor) -> Tensor:
        """Every rank's `x`, stacked in order of ranks.

        Shapes:  x (...), the same on every rank -> (world size, ...)
        """
        if self.size == 1:
            return x.unsqueeze(0)
        if self.device.type == "cuda":  # NCCL moves what lies on a GPU
            x = x.to(self.device)
        rows = [torch.empty_like(x) for _ in range(self.size)]
        with self._collective("all_gather", x.numel() * x.element_size() * self.size):
            dist.all_gather(rows, x)
        return torch.stack(rows)

    def from_main(self, value: Any) -> Any:
        """Rank 0's `value`, on every rank. Any JSON-like object."""
        if self.size == 1:
            return value
        box = [value]
        with self._collective("broadcast", 0):
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.size > 1:
            with self._collective("barrier", 0):
                dist.barrier()

    def leave(self) -> None:
        """Give the process group back."""
        if dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def _collective(self, op: str, payload_bytes: int) -> Iterator[None]:
        start = time.monotonic()
        try:
            with self.record(op, "dp", payload_bytes):
                yield
        except RuntimeError as error:
            raise CommError(
                f"{op} of {payload_bytes} bytes failed after {time.monotonic() - start:.1f} s "
                f"[rank {self.rank} of {self.size}]: {str(error).splitlines()[0]}",
                "another rank has left or hangs; its own log says why",
            ) from error


def pick_device(wish: str, env: WorldEnv) -> torch.device:
    """The device for this rank: CUDA, else (in a world of one) MPS, else the CPU; or what the run file wishes.

    Raises:  UsageError if the wish cannot be had.
    """
    if wish in ("auto", "cuda") and torch.cuda.is_available():
        if env.local_rank >= torch.cuda.device_count():
            if wish == "auto":
                return torch.device("cpu")
            raise UsageError(
                f"local rank {env.local_rank} has no GPU: this node has {torch.cuda.device_count()}",
                "start as many ranks as there are GPUs, or --set train.device=cpu",
            )
        return torch.device("cuda", env.local_rank)
    if wish in ("auto", "mps") and env.world_size == 1 and torch.backends.mps.is_available():
        return torch.device("mps")
    if wish in ("auto", "cpu"):
        return torch.device("cpu")
    why = "worlds of several ranks run on the CPU there" if wish == "mps" and env.world_size > 1 else "there is none"
    raise UsageError(f"train.device={wish}: {why}", "--set train.device=auto takes what there is")


def join_world(env: WorldEnv, device: torch.device, timeout_s: float) -> World:
    """Meet the other ranks: gloo on CPUs, NCCL on GPUs. Alone, nothing is started.

    Raises:  CommError if the world does not come together in time.
    """
    if env.world_size > 1:
        bind_loopback(env.master_addr)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        try:
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo", timeout=datetime.timedelta(seconds=timeout_s)
            )
        except (RuntimeError, ValueError) as error:
            raise CommError(
                f"rank {env.rank} could not join a world of {env.world_size} at "
                f"{env.master_addr}:{env.master_port}: {str(error).splitlines()[0]}",
                "check that every rank was started, with the same MASTER_ADDR and MASTER_PORT",
            ) from error
    return World(env, device, timeout_s)
