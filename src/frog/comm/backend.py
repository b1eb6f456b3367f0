"""Backends: what carries the bytes of the collectives. One object each says all that Frog knows of it.

| part            | what it says                                                                               |
|-----------------|--------------------------------------------------------------------------------------------|
| `devices`       | which tensors it can move; `comm.backend = "auto"` takes the first that moves the device's |
| `start`         | how a rank joins a world through it                                                        |
| operations      | those that it has no good way of its own for                                               |
| quirks          | what callers must know of how it works                                                     |
| `wordings`      | what its errors say, and which cause each means: the only place where their text is read   |

To add one: a subclass, an entry in `BACKENDS`, and its name in `CommConfig.backend` (a test holds the two together). A
process group written in Python is registered in the subclass's `start`, as `frog`'s is.
"""

from __future__ import annotations

import datetime
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from frog.comm.attempt_store import attempt_store
from frog.comm.collectives.errors import CollectiveError
from frog.core.env import WorldEnv, bind_loopback, preferred_backend
from frog.core.errors import UsageError
from frog.core.facts import Cause

# Under their names in torch 2.13, or those in torch 2.11 and earlier.
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
"""Of torch's stores and process groups, whichever the backend; in small letters, the first that is found counts."""


class Backend:
    """One of torch's process groups."""

    name: ClassVar[str]
    devices: ClassVar[tuple[str, ...]]
    """Types of the devices whose tensors it moves."""
    has_reduce_scatter: ClassVar[bool] = True
    """Whether its own reduce-scatter sends no more than it must."""
    stamps_end: ClassVar[bool] = False
    """Whether a collective's future calls back at the moment when its last byte is there."""
    runs_hooks_on_its_threads: ClassVar[bool] = False
    """Whether what waits for a collective inside another's callback may wait for ever."""
    wordings: ClassVar[Wordings] = ()
    """What its errors say beyond torch's own, in small letters."""

    def start(self, env: WorldEnv, device: torch.device, timeout_s: float, store: Any = None) -> None:
        """Join the world, as torch's default group; through `store` if there is one, else as the environment says."""
        dist.init_process_group(
            self.name,
            store=attempt_store(env, timeout_s) if store is None else store,
            rank=env.rank,
            world_size=env.world_size,
            timeout=datetime.timedelta(seconds=timeout_s),
            **self.options(device),
        )

    def options(self, device: torch.device) -> dict[str, Any]:
        """Return more arguments for torch's `init_process_group`."""
        return {}

    def all_gather(self, whole: Tensor, part: Tensor, size: int, group: Any) -> Any:
        """Begin to fill `whole` with the `size` ranks' parts; return torch's work."""
        return all_gather_single(whole, part, group=group, async_op=True)

    def movable(self, x: Tensor, device: torch.device) -> Tensor:
        """`x` where this backend can move it: as it is, or on the rank's `device`."""
        return x if x.device.type in self.devices else x.to(device)

    def owns(self, error: Exception) -> bool:
        """Whether an error that torch raised comes from communication."""
        return isinstance(error, dist.DistError) or self.name in str(error).lower()

    def cause_of(self, error: Exception) -> Cause | None:
        """What an error of torch means; None if its words are not known here."""
        text = str(error).lower()
        return next((cause for words, cause in (*self.wordings, *_TORCH_WORDINGS) if words in text), None)

    def shorten(self, error: Exception) -> str:
        """An error of torch in one line for people."""
        return (str(error).splitlines() or [type(error).__name__])[0]


class Gloo(Backend):
    """Over TCP, between CPUs."""

    name = "gloo"
    devices = ("cpu",)
    has_reduce_scatter = False  # its own is a whole all-reduce inside
    stamps_end = True
    runs_hooks_on_its_threads = True  # two of them
    wordings = (("op.preamble.length <= op.nbytes", "mismatch"),)

    def start(self, env: WorldEnv, device: torch.device, timeout_s: float, store: Any = None) -> None:
        bind_loopback(env.master_addr)
        super().start(env, device, timeout_s, store)

    def all_gather(self, whole: Tensor, part: Tensor, size: int, group: Any) -> Any:
        return dist.all_gather(list(whole.chunk(size)), part, group, async_op=True)

    def shorten(self, error: Exception) -> str:
        """Without the line of gloo's source in front, and its advice behind."""
        line = super().shorten(error)
        where, bracket, rest = line.partition("] ")
        said = rest if bracket and where.startswith("[/") else line
        return said.partition(" This is typically caused by")[0]


class NCCL(Backend):
    """Between NVIDIA GPUs."""

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
    """Our own, between CPUs: through shared memory on one machine, over TCP between machines."""

    name = "frog"
    devices = ("cpu",)
    stamps_end = True
    runs_hooks_on_its_threads = True  # on one, at the end of a collective

    def start(self, env: WorldEnv, device: torch.device, timeout_s: float, store: Any = None) -> None:
        from frog.comm.process_group import register  # the classes of torch that it extends take their time

        register()
        super().start(env, device, timeout_s, store)

    def owns(self, error: Exception) -> bool:
        return isinstance(error, CollectiveError) or super().owns(error)

    def cause_of(self, error: Exception) -> Cause | None:
        return error.cause if isinstance(error, CollectiveError) else super().cause_of(error)


BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (Gloo(), NCCL(), Frog())}


def choose_backend(requested: str, device: torch.device) -> Backend:
    """The backend that a run file asks for by name; for "auto", the first that moves tensors of `device`.

    The environment's FROG_BACKEND goes before the others there.

    Raises:  UsageError if the one that is named cannot, or if there is none of that name.
    """
    if requested == "auto":  # a device that none serves, such as MPS, is alone in its world: nothing is moved there
        first = preferred_backend()
        if first not in (None, *BACKENDS):
            raise UsageError(f"FROG_BACKEND={first}: there are {', '.join(BACKENDS)}", "unset FROG_BACKEND")
        by_preference = sorted(BACKENDS.values(), key=lambda backend: backend.name != first)
        return next((found for found in by_preference if device.type in found.devices), BACKENDS["gloo"])
    backend = BACKENDS[requested]
    if device.type not in backend.devices:
        raise UsageError(
            f"comm.backend={requested} is for {', '.join(backend.devices)}, and this rank computes on {device.type}",
            "--set comm.backend=auto takes what fits the device; train.device chooses that",
        )
    return backend
