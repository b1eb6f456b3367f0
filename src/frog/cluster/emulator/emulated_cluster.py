"""Start and end the Slurm emulator: a daemon, and a folder of commands to put first in PATH."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from frog.cluster.emulator import SlurmRefusal
from frog.cluster.emulator.command import NAMES
from frog.cluster.emulator.job_processes import MARK, find_marked, kill_marked, signal_one
from frog.cluster.emulator.wire import read_client
from frog.cluster.node_names import loopback_addresses, provide_names
from frog.cluster.simulated_cluster import (
    CLUSTER_FILE,
    COMMANDS,
    LOCK_FILE,
    ClusterKind,
    EmulatorFile,
    Shape,
    SiteNames,
    format_table,
    locked,
    read_cluster_file,
    remove_commands,
    shell_path,
)
from frog.core.env import child_env, variable
from frog.core.errors import LaunchError, UsageError
from frog.core.processes import is_alive

KILL_WAIT_S, LOOK_S = 30.0, 30.0
"""Seconds from SIGTERM to SIGKILL, and between checks of the time limits: as in the Slurm of `frog slurm up`."""
_DOWN_S = KILL_WAIT_S + 30.0
_NO_NAMES = SiteNames()
_LOG, _HOSTS = "daemon.log", "hosts"


def up(
    folder: Path,
    nodes: int,
    gpus_per_node: int,
    cpus_per_node: int,
    *,
    kill_wait_s: float = KILL_WAIT_S,
    look_s: float = LOOK_S,
    site: SiteNames = _NO_NAMES,
) -> str | None:
    """Start the daemon, which checks time limits every `look_s` seconds, and write the commands.

    Return what its user should know: why the nodes' names do not resolve, if they do not.
    Raises:  UsageError if the folder has a running cluster or other files; LaunchError if the daemon does not start.
    """
    shape = Shape(nodes, gpus_per_node, cpus_per_node)
    folder = folder.resolve()
    with locked(folder, mode=0o700):
        _make_room(folder)
        cluster = f"frog{secrets.token_hex(4)}"
        try:
            names, problem = provide_names(folder / _HOSTS, loopback_addresses(shape.node_names), rename=True)
            hosts = None if names is None else str(names.hosts)
            site.write_commands(folder / COMMANDS)
            own = {"cluster": cluster, "hosts": hosts, "partitions": site.partitions, "features": site.features}
            _start(folder, {**shape.as_dict(), "kill_wait_s": kill_wait_s, "look_s": look_s, **own})
        except BaseException:
            kill_marked(f"{cluster}/")
            _remove_files(folder)
            raise
    return problem


def _start(folder: Path, shape: dict[str, Any]) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    for name in NAMES:
        _write_shim(folder, name)
    with open(folder / _LOG, "ab") as log:
        started = subprocess.run(
            [sys.executable, "-P", "-m", "frog.cluster.emulator.daemon", str(folder), json.dumps(shape)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=child_env(**{MARK: f"{shape['cluster']}/daemon/"}),
            cwd="/",
        )
    if started.returncode != 0:
        said = (folder / _LOG).read_text(errors="replace")[-2000:]
        raise LaunchError(f"the Slurm emulator did not start in {folder}\n{said}".rstrip())
    (folder / CLUSTER_FILE).chmod(0o600)


def _make_room(folder: Path) -> None:
    cluster = _read(folder)
    if cluster is not None and _look(folder) is not None:
        raise UsageError(f"{folder}/: a Slurm emulator is already running", "frog slurm down")
    if cluster is not None:
        _clear(folder, cluster)
    remove_commands(folder / COMMANDS)
    own = {LOCK_FILE, _LOG, _HOSTS, "bin", *(f"bin/{name}" for name in NAMES)}  # remains of a killed `frog slurm up`
    if any(str(entry.relative_to(folder)) not in own for entry in folder.rglob("*")):
        raise UsageError(f"{folder}/ has other files", "another --folder")


def _write_shim(folder: Path, name: str) -> None:
    words = [sys.executable, "-P", "-m", "frog.cluster.emulator.command", str(folder), name]
    shim = folder / "bin" / name
    shim.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    shim.chmod(0o755)


def down(folder: Path) -> None:
    """End all jobs and the daemon, and remove their files. Raises UsageError if the folder has none."""
    folder = folder.resolve()
    cluster = _read(folder)
    if cluster is None:
        raise UsageError(f"{folder}: no Slurm emulator found", "frog slurm up --emulator")
    with locked(folder):
        _clear(folder, cluster)


def _clear(folder: Path, own: EmulatorFile) -> None:
    """Ask the daemon to end; kill its remaining processes and its jobs', if it was killed or does not answer."""
    pid = own.pid
    if _look(folder) is not None and pid in find_marked(f"{own.cluster}/daemon/"):
        signal_one(pid, signal.SIGTERM)
        deadline = time.monotonic() + _DOWN_S
        while is_alive(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
    left = kill_marked(f"{own.cluster}/")
    _remove_files(folder)
    if left:
        raise LaunchError(f"processes of the emulator's jobs cannot be killed: {', '.join(map(str, left))}")


def _remove_files(folder: Path) -> None:
    """Remove the files of `up`, the daemon and its jobs, and no others."""
    for name in (*(f"bin/{name}" for name in NAMES), CLUSTER_FILE, _LOG, _HOSTS):
        (folder / name).unlink(missing_ok=True)
    remove_commands(folder / COMMANDS)
    for job in (folder / "spool").glob("job*"):
        shutil.rmtree(job, ignore_errors=True)
    for name in ("bin", "spool"):
        with contextlib.suppress(OSError):
            (folder / name).rmdir()


def _look(folder: Path) -> dict[str, Any] | None:
    """Return the daemon's view of the cluster, or None if it does not answer: another process may have its pid now."""
    try:
        return read_client(folder).ask("look")
    except (SlurmRefusal, ValueError, OSError):
        return None


def _read(folder: Path) -> EmulatorFile | None:
    """Return the emulator of a folder, or None if it has none. Raises UsageError if it has another cluster."""
    try:
        if read_cluster_file(folder, ClusterKind).kind != "emulator":
            raise UsageError(f"{folder}/: the folder belongs to another cluster", "frog slurm down")
        return read_cluster_file(folder, EmulatorFile)
    except FileNotFoundError:
        return None


def environment(folder: Path) -> dict[str, str]:
    """Return the variables with which a shell finds the emulator's commands first."""
    bin_folder = str(folder.resolve() / "bin")
    path = [part for part in (variable("PATH") or os.defpath).split(os.pathsep) if part != bin_folder]
    path = shell_path(folder, *path)
    # The simulated nodes claim more CPUs than exist: that many threads would only compete.
    return {"PATH": os.pathsep.join([bin_folder, *path]), "OMP_NUM_THREADS": "1"}


def status_text(folder: Path) -> str:
    """Format daemon, nodes and jobs as tables. Raises UsageError if the folder has none."""
    own = _read(folder)
    if own is None:
        raise UsageError(f"{folder}: no Slurm emulator found", "frog slurm up --emulator")
    place = f"127.0.0.1:{own.port}"
    state = _look(folder)
    if state is None:
        dead = format_table([["DAEMON", "PID", "LISTENS AT", "STATE"], ["emulator", "-", place, "dead"]])
        return f"{dead}\n\nthe emulator does not answer: `frog slurm down` removes its remains"
    daemon = [["DAEMON", "PID", "LISTENS AT", "STATE"], ["emulator", str(own.pid), place, "runs"]]
    nodes = [["NODE", "STATE", "GPUS USED", "CPUS USED"]]
    for node in state["nodes"]:
        used = [f"{node[kind + '_used']} of {node[kind]}" for kind in ("gpus", "cpus")]
        nodes.append([node["name"], node["state"], *used])
    jobs = [["JOB", "NAME", "STATE", "NODES", "WHERE OR WHY"]]
    for job in state["jobs"]:
        if job["state"] in ("PENDING", "RUNNING", "COMPLETING"):
            where = f"({job['reason']})" if job["state"] == "PENDING" else job["hosts"]
            jobs.append([job["label"], job["name"], job["state"], str(job["num_nodes"]), where])
    tables = [format_table(daemon), format_table(nodes), format_table(jobs) if len(jobs) > 1 else "no jobs"]
    return "\n\n".join(tables)
