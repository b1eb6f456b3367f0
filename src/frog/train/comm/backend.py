"""Backends, which move the bytes of the collectives. One object per backend contains all that Frog knows about it.

| part            | contents                                                                                   |
|-----------------|--------------------------------------------------------------------------------------------|
| `devices`       | the tensors it can move; `comm.backend = "auto"` takes the first that supports the device  |
| `start`         | how a rank joins a world through it                                                        |
| operations      | the collectives that it lacks or implements inefficiently                                  |
| quirks          | behaviour that callers must know about                                                     |
| `wordings`      | its error texts and the cause of each: the only place where their text is parsed           |

To add one, write a subclass, an entry in `BACKENDS`, and its name in `CommConfig.backend` (a test compares the two). A
process group written in Python is registered in the subclass's `start`, like `frog`'s.
"""

from __future__ import annotations

import datetime
import re
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from frog.core.env import WorldEnv, bind_loopback, preferred_backend
from frog.core.errors import Cause, UsageError
from frog.train.comm.attempt_store import attempt_store

# These functions have new names in torch 2.13; torch 2.11 and earlier have the old ones.
all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Wordings = tuple[tuple[str, Cause], ...]

_TORCH_WORDINGS: Wordings = (
    ("timed out", "timed_out"),
    ("closed by peer", "closed"),
    ("reset by peer", "closed"),
    ("broken pipe", "closed"),
    ("connection refused", "refused"),
    ("timeout", "timed_out"),
    ("split sizes", "mismatch"),
)
"""Error texts of torch's stores and process groups, for all backends; lower case, and the first match counts."""


_FINGERPRINT = re.compile(
    r"Rank (\d+) is running collective: CollectiveFingerPrint\(SequenceNumber=\d+, OpType=(\w+)"
    r"(?:, TensorShape=\[([\d, ]*)\])?"
)
"""A call of one rank, in the error of torch's debug level DETAIL, which compares each call of all ranks. If the numbers
of dims differ, torch does not know the other rank's call, and writes `SequenceNumber=0OpType=SCATTER`."""


class Backend:
    """One of torch's process groups."""

    name: ClassVar[str]
    devices: ClassVar[tuple[str, ...]]
    """Types of the devices whose tensors it can move."""
    has_reduce_scatter: ClassVar[bool] = True
    """True if its own reduce-scatter sends no more bytes than necessary."""
    stamps_end: ClassVar[bool] = False
    """True if the callback of a collective's future runs at the moment when its last byte arrives."""
    runs_hooks_on_its_threads: ClassVar[bool] = False
    """True if waiting for a collective inside another collective's callback may block forever."""
    wordings: ClassVar[Wordings] = ()
    """Its error texts beyond torch's own, in lower case."""

    def start(self, env: WorldEnv, device: torch.device, timeout_s: float, store: Any = None) -> None:
        """Join the world as torch's default group, through `store` or else as the environment specifies."""
        dist.init_process_group(
            self.name,
            store=attempt_store(env, timeout_s) if store is None else store,
            rank=env.rank,
            world_size=env.world_size,
            timeout=datetime.timedelta(seconds=timeout_s),
            **self.options(device),
        )

    def options(self, device: torch.device) -> dict[str, Any]:
        """Return additional arguments for torch's `init_process_group`."""
        return {}

    def all_gather(self, whole: Tensor, part: Tensor, size: int, group: Any) -> Any:
        """Begin to fill `whole` with the parts of `size` ranks; return torch's work."""
        return all_gather_single(whole, part, group=group, async_op=True)

    def movable(self, x: Tensor, device: torch.device) -> Tensor:
        """Return `x` if this backend can move it, else a copy on the rank's `device`."""
        return x if x.device.type in self.devices else x.to(device)

    def owns(self, error: Exception) -> bool:
        """True if an error that torch raised comes from communication."""
        return isinstance(error, dist.DistError) or self.name in str(error).lower()

    def cause_of(self, error: Exception) -> Cause | None:
        """Return the cause of an error that torch raised; None if its text is unknown."""
        text = str(error).lower()
        return next((cause for words, cause in (*self.wordings, *_TORCH_WORDINGS) if words in text), None)

    def shorten(self, error: Exception) -> str:
        """Shorten the text of an error that torch raised to one line for people."""
        if calls := _FINGERPRINT.findall(str(error)):
            called = (
                f"rank {rank} calls {op.lower()}{f' of shape [{shape}]' * bool(shape)}" for rank, op, shape in calls
            )
            return f"the ranks call different collectives: {', '.join(called)}"
        return (str(error).splitlines() or [type(error).__name__])[0]


class Gloo(Backend):
    """Gloo, over TCP, between CPUs."""

    name = "gloo"
    devices = ("cpu",)
    has_reduce_scatter = False  # its own is a full all-reduce internally
    stamps_end = True
    runs_hooks_on_its_threads = True  # two of them
    wordings = (
        ("op.preamble.length <= op.nbytes", "mismatch"),
        ("failed to pass monitoredbarrier", "closed"),  # torch's debug level DETAIL; or the rank was too late
    )

    def start(self, env: WorldEnv, device: torch.device, timeout_s: float, store: Any = None) -> None:
        bind_loopback(env.master_addr)
        super().start(env, device, timeout_s, store)

    def all_gather(self, whole: Tensor, part: Tensor, size: int, group: Any) -> Any:
        return dist.all_gather(list(whole.chunk(size)), part, group, async_op=True)

    def shorten(self, error: Exception) -> str:
        """Remove gloo's source line at the start, and its advice at the end."""
        line = super().shorten(error)
        where, bracket, rest = line.partition("] ")
        said = rest if bracket and where.startswith(("[/", "[rank")) else line
        return said.partition(" This is typically caused by")[0]


class NCCL(Backend):
    """NCCL, between NVIDIA GPUs."""

    name = "nccl"
    devices = ("cuda",)
    wordings = (
        ("remote process exited", "closed"),
        ("ncclremoteerror", "closed"),
        ("mismatch", "mismatch"),
    )

    def start(self, env: WorldEnv, device: torch.device, timeout_s: float, store: Any = None) -> None:
        torch.cuda.set_device(device)
        super().start(env, device, timeout_s, store)

    def options(self, device: torch.device) -> dict[str, Any]:
        return {"device_id": device}  # or NCCL guesses the GPU from the rank, and warns that this may hang


class Frog(Backend):
    """Frog's own backend, between CPUs: shared memory within a machine, TCP between machines."""

    name = "frog"
    devices = ("cpu",)
    stamps_end = True
    runs_hooks_on_its_threads = True  # on one thread, at the end of a collective

    def start(self, env: WorldEnv, device: torch.device, timeout_s: float, store: Any = None) -> None:
        from frog.train.comm.process_group import register  # slow: it extends torch's classes

        register()
        super().start(env, device, timeout_s, store)

    def owns(self, error: Exception) -> bool:
        from frog.train.comm.collectives.errors import CollectiveError

        return isinstance(error, CollectiveError) or super().owns(error)

    def cause_of(self, error: Exception) -> Cause | None:
        from frog.train.comm.collectives.errors import CollectiveError

        return error.cause if isinstance(error, CollectiveError) else super().cause_of(error)


BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (Gloo(), NCCL(), Frog())}


def choose_backend(requested: str, device: torch.device) -> Backend:
    """Return the backend that a run file names; for "auto", the first that moves tensors of `device`.

    With "auto", the environment's FROG_BACKEND takes precedence.

    Raises:  UsageError if the named backend does not support the device, or does not exist.
    """
    if requested == "auto":  # a device that no backend supports, such as MPS, is alone in its world: nothing is sent
        first = preferred_backend()
        if first not in (None, *BACKENDS):
            raise UsageError(f"FROG_BACKEND={first}: choose from {', '.join(BACKENDS)}", "unset FROG_BACKEND")
        by_preference = sorted(BACKENDS.values(), key=lambda backend: backend.name != first)
        return next((found for found in by_preference if device.type in found.devices), BACKENDS["gloo"])
    backend = BACKENDS[requested]
    if device.type not in backend.devices:
        raise UsageError(
            f"comm.backend={requested} supports {', '.join(backend.devices)}, but this rank computes on {device.type}",
            "use --set comm.backend=auto to match the device, or change train.device",
        )
    return backend
