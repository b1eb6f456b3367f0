"""This process's place in the world, from its environment, and whether it writes to the folder of its rank."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import rank_files

_FIRST_SPECIAL_STEP = 0xFFFF_FFF0
"""Slurm numbers steps without `srun` (batch scripts, salloc's shells) from here on."""

_LAUNCHERS = frozenset(
    [
        *("torchrun", "accelerate", "deepspeed", "frog", "mpirun", "mpiexec"),
        *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
        *("deepspeed.launcher.launch", "deepspeed.launcher.runner", "frog.launch.torchrun.agent", "frog.cli"),
    ]
)
"""Python programs that start ranks. srun or a Kubernetes operator may start one with the variables of a rank."""

_IDENTITY = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "FROG_ATTEMPT")
"""Variables that differ between a rank and the ranks that it starts as a launcher."""


class Place(NamedTuple):
    """A rank, and the folder for its rank_files."""

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    attempt: int
    host: str
    folder: str
    """`observed/attempt_A/rank_N` in the run folder."""
    requests: str
    """The file with the last request to all ranks."""
    start: str
    """The start of its container and job: their restarts begin at attempt 0 again, in the same run folder."""
    mark: str
    """Value of FROG_OBSERVED_PID for this process's children: its pid and its identity as a rank."""


def find_place(environ: Mapping[str, str], pid: int, words: list[str] | None = None) -> Place | None:
    """Return the place of this process if it is a rank to observe, else None.

    words: the command of this process. Children of a rank inherit its variables, but are not observed.
    """
    run_dir = environ.get("FROG_RUN_DIR")
    variables = _rank_variables(environ, pid)
    if not run_dir or variables is None or _is_launcher(_command() if words is None else words):
        return None
    rank, local_rank, node_rank, world_size = variables
    identity = "/".join(environ.get(name, "") for name in _IDENTITY)
    parent, _, observed = environ.get("FROG_OBSERVED_PID", "").partition(":")
    if parent and parent != str(pid) and observed == identity:
        return None
    attempt = _number(environ, "FROG_ATTEMPT", _number(environ, "TORCHELASTIC_RESTART_COUNT", 0))
    base = os.path.join(os.path.abspath(run_dir), "observed")
    folder = os.path.join(base, f"attempt_{attempt}", f"rank_{rank}")
    requests = os.path.join(base, "request.json")
    host = environ.get("FROG_NODE_NAME") or os.uname().nodename
    start = f"{_first_process_start()}/{environ.get('SLURM_RESTART_COUNT', 0)}/{attempt}"
    return Place(rank, local_rank, node_rank, world_size, attempt, host, folder, requests, start, f"{pid}:{identity}")


def after_earlier_starts(place: Place) -> Place:
    """Return the place in the first attempt that has no files of this rank from an earlier start."""
    while True:
        status = rank_files.read_json(os.path.join(place.folder, "status.json"))
        before = status.get("start") if isinstance(status, dict) else None
        if before in (None, place.start):
            return place
        base = os.path.dirname(os.path.dirname(place.folder))
        folder = os.path.join(base, f"attempt_{place.attempt + 1}", f"rank_{place.rank}")
        place = place._replace(attempt=place.attempt + 1, folder=folder)


def _first_process_start() -> str:
    """Return when process 1 began, which is the container's own in a pod; empty if unknown."""
    try:
        with open("/proc/1/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _rank_variables(environ: Mapping[str, str], pid: int) -> tuple[int, int, int, int] | None:
    """Return rank, local rank, node rank and world size, as torchrun, mpirun or srun sets them."""
    if _is_whole(environ.get("RANK", "")):
        rank = int(environ["RANK"])
        node_rank = _number(environ, "GROUP_RANK", _number(environ, "NODE_RANK", 0))
        return rank, _number(environ, "LOCAL_RANK", rank), node_rank, _number(environ, "WORLD_SIZE", rank + 1)
    for names in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    ):
        if all(_is_whole(environ.get(name, "")) for name in names):
            rank, local_rank, size = (int(environ[name]) for name in names)
            return rank, local_rank, 0, size
    if _is_task(environ, pid):
        local_rank, node_rank = _number(environ, "SLURM_LOCALID", 0), _number(environ, "SLURM_NODEID", 0)
        return int(environ["SLURM_PROCID"]), local_rank, node_rank, int(environ["SLURM_STEP_NUM_TASKS"])
    return None


def _is_task(environ: Mapping[str, str], pid: int) -> bool:
    """True for a task of a step of several; False for a batch script or a shell."""
    names = ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    if not all(_is_whole(environ.get(name, "")) for name in names):
        return False
    step, tasks = int(environ["SLURM_STEP_ID"]), int(environ["SLURM_STEP_NUM_TASKS"])
    own = "SLURM_PTY_PORT" not in environ or environ.get("SLURM_TASK_PID") == str(pid)
    return step < _FIRST_SPECIAL_STEP and tasks > 1 and own


def _command() -> list[str]:
    words = getattr(sys, "orig_argv", None)  # Python 3.10
    if words is None:
        try:
            with open("/proc/self/cmdline", "rb") as file:
                words = os.fsdecode(file.read()).split("\0")
        except OSError:
            words = []
    return list(words)


def _is_launcher(words: list[str]) -> bool:
    """True if a Python command starts ranks: `python -m torch.distributed.run`, `python …/bin/torchrun`."""
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            return next(rest, "") in _LAUNCHERS
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            next(rest, "")
        elif word == "-c":
            return False
        elif word.startswith("-m") and not word.startswith("--"):
            return word[2:] in _LAUNCHERS
        elif not word.startswith("-"):
            return os.path.basename(word) in _LAUNCHERS
    return False


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    return int(text) if _is_whole(text) else default


def _is_whole(text: str) -> bool:
    """True for a number of at most 18 digits: `int` fails above 4,300."""
    return text.isdecimal() and len(text) <= 18


# ---- which process of a rank writes to the rank's folder -------------------------------------------------------------

_FRESH_NS = 5_000_000_000
_EVIDENCE = ("collectives.json", "stacks.json", "error.json", "crash.txt", "status.json")


class Owner:
    """This process's claim to the folder: a shell script may run several processes, in turn or at the same time.

    The process that has imported torch comes before one that has not, even after its end: a script's last command must
    not hide what happened before. Among equals, a running process keeps the folder. The files of a process that has
    ended move to `earlier/` when another takes over.
    """

    def __init__(self, place: Place, pid: int) -> None:
        self._place, self._pid = place, pid

    def may_write(self, has_torch: bool) -> bool:
        """True if the folder is this process's, possibly from now on."""
        status = rank_files.read_json(os.path.join(self._place.folder, "status.json"))
        if not isinstance(status, dict) or status.get("pid") == self._pid:
            return True
        had_torch = bool(status.get("torch"))
        if had_torch and not has_torch:
            return False
        if had_torch == has_torch and self._is_running(status):
            return False
        self._move_aside()
        return True

    def _is_running(self, status: dict[str, Any]) -> bool:
        written_ns, pid = status.get("unix_ns"), status.get("pid")
        if status.get("state") != "running" or not isinstance(written_ns, int) or not isinstance(pid, int):
            return False
        if status.get("host") == self._place.host:
            with contextlib.suppress(OSError):
                os.kill(pid, 0)
                return pid > 0
            return False
        return time.time_ns() - written_ns < _FRESH_NS

    def _move_aside(self) -> None:
        aside = os.path.join(self._place.folder, "earlier")
        with contextlib.suppress(OSError):
            os.makedirs(aside, exist_ok=True)
        for name in _EVIDENCE:
            with contextlib.suppress(OSError):
                os.replace(os.path.join(self._place.folder, name), os.path.join(aside, name))
