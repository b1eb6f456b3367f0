"""Slurm's programs on this machine, and the processes of a cluster: find them, start daemons, end them all.

A daemon has a mark in its environment, which its children inherit, and Slurm gives each process of a job the cluster's
name. So all processes of a cluster are found, including those of a killed daemon, without trusting a recorded pid.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frog.cluster.node_names import NodeNames
from frog.cluster.simulated_cluster import ClusterKind, read_cluster_file
from frog.core.env import child_env, variable
from frog.core.errors import UsageError
from frog.core.namespaces import HOST_NAME, unshare_as_same_user

SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")
"""Folders of daemons that an ordinary user's PATH does not include."""

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")

_MARK = "FROG_SLURM_CLUSTER"
_OWN_GRACE_S = 3.0
_KILL_S = 10.0


def find_program(name: str) -> str:
    """Return the path of one of Slurm's programs, never of an emulator's; the bare name if it is not installed."""
    path = os.pathsep.join([path_without_emulators(), *SYSTEM_FOLDERS])
    return shutil.which(name, path=path) or name


def path_without_emulators() -> str:
    """Return PATH without the emulator's commands, which `frog slurm env` puts first."""
    parts = (variable("PATH") or os.defpath).split(os.pathsep)
    return os.pathsep.join(part for part in parts if not _is_emulators(Path(part)))


def _is_emulators(folder: Path) -> bool:
    if folder.name != "bin":
        return False
    try:
        return read_cluster_file(folder.parent, ClusterKind).kind == "emulator"
    except (FileNotFoundError, UsageError):
        return False


def missing_programs() -> list[str]:
    """Return the programs that a cluster needs and that are not installed."""
    return [name for name in NEEDED if not os.path.isabs(find_program(name))]


def need_programs() -> None:
    """Raise UsageError if Slurm is not installed."""
    missing = missing_programs()
    if missing:
        raise UsageError(
            f"Slurm is not installed on this machine: {', '.join(missing)} not found",
            "apt-get install slurm-wlm (Debian, Ubuntu); or, without it, the emulator: frog slurm up --emulator",
        )


@dataclass(frozen=True)
class ClusterProcess:
    """A live process of a cluster."""

    pid: int
    command: str
    """Its arguments, or the title that it set."""
    of_job: bool
    """True if it belongs to a job, False if it belongs to Slurm."""


def start_daemon(
    command: Sequence[str],
    cluster: str,
    log: Path,
    env: dict[str, str],
    host: str,
    names: NodeNames | None = None,
) -> subprocess.Popen[bytes]:
    """Start a daemon, which may outlive this process. Its output goes to `log`.

    If `host` is not this machine's name, the daemon runs in a namespace where it is. With `names`, it and the jobs that
    it starts resolve the nodes' names.
    """
    new_name = None if host == socket.gethostname() else host
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            env=child_env(**env, **{_MARK: cluster}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
            preexec_fn=None if new_name is None and names is None else lambda: _prepare(new_name, names),
        )


def _prepare(host: str | None, names: NodeNames | None) -> None:
    if names is not None:
        names.enter(host)
    elif host is not None:
        go_by_name(host)


def go_by_name(host: str) -> None:
    """Give this machine the name `host` for this process and its children.

    Raises:  OSError if the system allows this neither to root nor in a user namespace.
    """
    unshare_as_same_user(HOST_NAME)
    socket.sethostname(host)


def find_processes(cluster: str) -> list[ClusterProcess]:
    """Return all live processes of a cluster, except this process and its ancestors."""
    wanted = f"{_MARK}={cluster}".encode(), f"SLURM_CLUSTER_NAME={cluster}".encode()
    own = _ancestors()
    processes = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (OSError, ValueError):  # it has just ended, or belongs to another user
            continue
        of_job = wanted[1] in variables and any(variable.startswith(b"SLURM_JOB_ID=") for variable in variables)
        if of_job or wanted[0] in variables:
            processes.append(ClusterProcess(int(entry.name), command, of_job))
    return sorted(processes, key=lambda process: process.pid)


def end_processes(cluster: str, grace_s: float) -> list[ClusterProcess]:
    """Send SIGTERM, then SIGKILL, to all processes of a cluster; return those that still exist.

    Processes of a job get `grace_s`, Slurm's own less, because some of those never end without a controller.
    """
    for process in find_processes(cluster):
        _send(process.pid, signal.SIGTERM)
    start = time.monotonic()
    while left := find_processes(cluster):
        if time.monotonic() > start + (grace_s if any(process.of_job for process in left) else _OWN_GRACE_S):
            break
        time.sleep(0.05)
    deadline = time.monotonic() + _KILL_S
    while left and time.monotonic() < deadline:
        for process in left:
            _send(process.pid, signal.SIGKILL)
        time.sleep(0.05)
        left = find_processes(cluster)
    return left


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _ancestors() -> set[int]:
    """Return this process and its ancestors."""
    pids, pid = set(), os.getpid()
    while pid > 0:
        pids.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            break
    return pids
