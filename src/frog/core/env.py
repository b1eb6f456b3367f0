"""The environment: the only file that reads `os.environ`."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from frog.core.errors import UsageError


@dataclass(frozen=True)
class WorldEnv:
    """Who this process is, as the launcher (torchrun, Slurm through torchrun, a person) told it."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    master_addr: str
    master_port: int | None
    launched: bool
    """True if a launcher set RANK; False for a plain `python`."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def _integer(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"environment variable {name}={text!r} is not a number", f"unset {name}, or set it") from None


def world_env() -> WorldEnv:
    """Read RANK, WORLD_SIZE, LOCAL_RANK and their kin.

    Raises:  UsageError if one is not a number, or if the rank lies outside the world.
    """
    launched = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    world_size = _integer("WORLD_SIZE", 1) if launched else 1
    rank = _integer("RANK", 0) if launched else 0
    if not 0 <= rank < world_size:
        raise UsageError(f"RANK={rank} lies outside the world of WORLD_SIZE={world_size}", "use ranks 0 to world - 1")
    local_world_size = _integer("LOCAL_WORLD_SIZE", world_size)
    return WorldEnv(
        rank=rank,
        world_size=world_size,
        local_rank=_integer("LOCAL_RANK", rank % max(local_world_size, 1)),
        local_world_size=local_world_size,
        node_rank=_integer("GROUP_RANK", _integer("NODE_RANK", 0)),
        num_nodes=max(1, world_size // max(local_world_size, 1)),
        master_addr=os.environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=_integer("MASTER_PORT", 0) or None,
        launched=launched,
    )


def host_name() -> str:
    """The name this node goes by; pretended nodes set FROG_NODE_NAME."""
    return os.environ.get("FROG_NODE_NAME") or socket.gethostname()


def launcher_pid() -> int | None:
    """Pid of the `frog run` that started this rank, if one did. A rank ends itself when that is gone."""
    return _integer("FROG_LAUNCHER_PID", 0) or None


def variable(name: str) -> str | None:
    """One environment variable, or None when it is unset or empty."""
    return os.environ.get(name) or None


def child_env(**changes: str) -> dict[str, str]:
    """The environment for a process that Frog starts: this one's, with `changes`."""
    return {**os.environ, **changes}


def bind_loopback(master_addr: str) -> None:
    """Make gloo use the loopback interface when the world is on this machine alone.

    Without it gloo looks this machine's name up, which on many laptops does not resolve.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ or not (master_addr == "localhost" or master_addr.startswith("127.")):
        return
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if names:
        os.environ["GLOO_SOCKET_IFNAME"] = names[0]


def prepare_deepspeed(local_rank: int, *, on_cpu: bool) -> None:
    """Tell DeepSpeed, before it is imported, what it would otherwise look for: the device, and which rank this is."""
    os.environ.setdefault("LOCAL_RANK", str(local_rank))
    if on_cpu:
        os.environ["DS_ACCELERATOR"] = "cpu"


def quiet_profiler() -> None:
    """Before torch.profiler first runs: keep its own log to errors, which are level 6 and above."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
