"""The environment: the only file that reads `os.environ`."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from frog.core.errors import UsageError
from frog.core.launchers import in_torchrun_words, is_mpich
from frog.core.schema import shortened
from frog.core.units import parse_integer

SURVIVES = "survives"
"""Name of a marker file in the launcher's folder: the other ranks continue after the loss of a rank."""
MAY_MEET = "may-meet"
"""Name of a marker file in the launcher's folder: the agents of its nodes may start the rendezvous."""


@dataclass(frozen=True)
class WorldEnv:
    """This process's place in the world, as set by the launcher (torchrun, Slurm through torchrun, or a person)."""

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
        return parse_integer(text)
    except ValueError:
        raise UsageError(
            f"environment variable {name}={shortened(text)!r} is not a number", f"unset {name}, or set it"
        ) from None


def _all_or_none(*names: str) -> bool:
    """True if all of these variables are set, False if none is; UsageError if only some are."""
    there = [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]
    missing = [name for name in names if not os.environ.get(name)]
    if there and missing:
        raise UsageError(
            f"{' '.join(there)} set, but not {' and '.join(missing)}: a launcher sets all of {', '.join(names)}",
            f"set the missing variables; or `unset {' '.join(names)}` to train with one process",
        )
    return not missing


def world_env() -> WorldEnv:
    """Read RANK, WORLD_SIZE, LOCAL_RANK and related variables.

    The variables of mpirun and srun are first copied to these names, where torch also looks for them.

    Raises:  UsageError if one is not a number, or missing while others are set, or if the rank is outside the world.
    """
    os.environ.update(in_torchrun_words(os.environ, os.getpid()))
    launched = _all_or_none("RANK", "WORLD_SIZE")
    world_size, rank = _integer("WORLD_SIZE", 1), _integer("RANK", 0)
    if not 0 <= rank < world_size:
        raise UsageError(f"RANK={rank} is outside the world of WORLD_SIZE={world_size}", "use ranks 0 to world - 1")
    if world_size > 1:
        _all_or_none("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
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
    """Return the name of this node; simulated nodes set FROG_NODE_NAME."""
    return os.environ.get("FROG_NODE_NAME") or socket.gethostname()


def machine() -> str:
    """Return a name that two processes share if and only if they can share memory."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{socket.gethostname()} {file.read().strip()}"
    except OSError:
        return f"{socket.gethostname()} {os.getuid()}"


def launcher_pid() -> int | None:
    """Return the pid of the `frog run` that started this rank, if any. A rank ends itself when that process ends."""
    return _integer("FROG_LAUNCHER_PID", 0) or None


def under_mpich() -> bool:
    """True if this process is one of several that MPICH's mpiexec started."""
    return is_mpich(os.environ)


def launch_dir() -> Path | None:
    """Return the scratch folder that a launcher shares with its ranks, if one started this process
    (frog.launch.world)."""
    text = os.environ.get("FROG_LAUNCH_DIR")
    return Path(text) if text else None


def run_dir() -> Path | None:
    """Return the run folder to which the ranks of any program write their evidence, if there is one (frog.observe)."""
    text = os.environ.get("FROG_RUN_DIR")
    return Path(text) if text else None


def survives_losses() -> bool:
    """True if the run of this launcher's ranks continues when some of them are lost."""
    folder = launch_dir()
    return folder is not None and (folder / SURVIVES).exists()


def most_replaced() -> int:
    """Return how many lost ranks this launch may replace."""
    return _integer("FROG_REPLACE", 0)


def observer_name() -> str | None:
    """Return the observer of this rank, MODULE:ARGUMENT, if it has one (frog.core.runs.observer)."""
    return os.environ.get("FROG_OBSERVER") or None


def attempt_number() -> int:
    """Return how often this world was restarted, as counted by its agent: Frog's launcher or plain torchrun."""
    return _integer("FROG_ATTEMPT", _integer("TORCHELASTIC_RESTART_COUNT", 0))


def set_attempt(number: int) -> None:
    """Set the attempt of the ranks that this agent starts from now on."""
    os.environ["FROG_ATTEMPT"] = str(number)


def replace_env(env: Mapping[str, str]) -> None:
    """Replace this process's environment with `env`, after a fork that turns it into another program."""
    os.environ.clear()
    os.environ.update(env)


def start_method() -> str | None:
    """Return how to start ranks, "fork" or "spawn"; None: the default for the program
    (frog.launch.torchrun.forkserver)."""
    return variable("FROG_START")


def preferred_backend() -> str | None:
    """Return the backend that `comm.backend = "auto"` should use if it supports the device; None: gloo or NCCL."""
    return variable("FROG_BACKEND")


def check_start_method() -> None:
    """Raise UsageError for an unknown start method."""
    if start_method() not in (None, "fork", "spawn"):
        raise UsageError(f"FROG_START={start_method()}: expected fork or spawn", "unset FROG_START")


def variable(name: str) -> str | None:
    """Return an environment variable, or None if it is unset or empty."""
    return os.environ.get(name) or None


def visible_gpus() -> list[str]:
    """Return the ids of the NVIDIA GPUs that CUDA may use, as CUDA_VISIBLE_DEVICES lists them."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [gpu.strip() for gpu in listed.split(",") if gpu.strip()]
    return [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def child_env(**changes: str) -> dict[str, str]:
    """Return the environment for a process that Frog starts: this process's, with `changes`."""
    return {**os.environ, **changes}


_OF_LIBRARIES = re.compile(
    r"(NCCL|GLOO|TORCH|TORCHELASTIC|PYTORCH|CUDA|HIP|ROCR|OMP|MKL|GOMP|KMP|SLURM|SLURMD|OMPI|PMI|PMIX|PET|KUBERNETES"
    r"|UCX|FI|HF|TRANSFORMERS|ACCELERATE|DS|FROG|VIRTUAL|CONDA|PYTHON)_\w+"
    r"|PYTHON\w+|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|MASTER_ADDR|MASTER_PORT|LD_PRELOAD"
)
_INTERNAL = re.compile(r"FROG_(LAUNCH\w*|REPLACE|RUN_DIR|HOOKS|OBSERVED\w*)")
_SECRET = re.compile("TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH|COOKIE")


def launch_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of launchers and libraries in an environment, without any that may hold a secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if _OF_LIBRARIES.fullmatch(name) and not _SECRET.search(name) and not _INTERNAL.fullmatch(name)
    }


_NEEDED = frozenset(
    [
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TEMP", "TMP", "LANG", "LANGUAGE", "TZ"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "SLURM_CONF", "FROG_START", "FROG_CACHE_DIR"),
    ]
)
"""Variables with the locations of programs, libraries and files, and the text encoding."""


def neutral_env(**changes: str) -> dict[str, str]:
    """Return an environment for code that must behave the same in every shell: only essentials, with `changes`.

    Settings of libraries (OMP_*, NCCL_*, GLOO_*, TORCH_*, PYTHON* ...) are dropped. PYTHONPATH keeps all entries except
    the current folder.
    """
    kept = {name: value for name, value in os.environ.items() if name in _NEEDED or name.startswith("LC_")}
    entries = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    if others := [entry for entry in entries if os.path.realpath(entry) != os.path.realpath(os.curdir)]:
        kept["PYTHONPATH"] = os.pathsep.join(others)
    return {**kept, **changes}


def bind_loopback(master_addr: str) -> None:
    """Make gloo use the loopback interface if the whole world is on this machine.

    Otherwise gloo resolves this machine's name, which fails on many laptops.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ or not (master_addr == "localhost" or master_addr.startswith("127.")):
        return
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if names:
        os.environ["GLOO_SOCKET_IFNAME"] = names[0]


def prepare_deepspeed(local_rank: int, *, on_cpu: bool) -> None:
    """Set the variables that DeepSpeed would otherwise detect on import: the device, and this process's rank."""
    os.environ.setdefault("LOCAL_RANK", str(local_rank))
    if on_cpu:
        os.environ["DS_ACCELERATOR"] = "cpu"


def wait_passively() -> None:
    """Make waiting OpenMP threads sleep, unless the user has chosen otherwise. Call this before torch loads.

    By default they spin: if other programs also need the cores, a spinning thread can occupy the core of the thread
    that it waits for (benchmarks/threads.py).
    """
    if not any(os.environ.get(name) for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")):
        os.environ["OMP_WAIT_POLICY"] = "passive"


def quiet_profiler() -> None:
    """Limit torch.profiler's own log to errors, which are level 6 and above. Call this before its first run."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")


def cache_dir() -> Path:
    """Return the folder for measurements of this machine: FROG_CACHE_DIR, or `frog` in the user's cache."""
    own = os.environ.get("FROG_CACHE_DIR")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "frog"
