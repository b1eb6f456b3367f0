"""A real Slurm on this machine: slurmctld and one slurmd per simulated node, in a separate folder."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from frog.cluster.node_names import provide_names
from frog.cluster.simulated_cluster import (
    CLUSTER_FILE,
    COMMANDS,
    LOCK_FILE,
    ClusterKind,
    Shape,
    ShapeFields,
    SiteNames,
    SlurmFile,
    format_table,
    locked,
    read_cluster_file,
    remove_commands,
    shell_path,
)
from frog.cluster.slurm.configuration import Site, choose_host, own_name, write_configuration
from frog.cluster.slurm.slurm_programs import (
    end_processes,
    find_processes,
    find_program,
    need_programs,
    path_without_emulators,
    start_daemon,
)
from frog.core.env import child_env, variable
from frog.core.errors import LaunchError, UsageError
from frog.core.machine import free_port
from frog.core.schema import shortened, write_typed

_NO_NAMES = SiteNames()
KIND: Literal["slurm"] = "slurm"
_UP_S = 60.0
_JOBS_S = 40.0
"""Seconds for jobs to save and end: Slurm itself kills them 30 s after SIGTERM."""
_DAEMONS_S = 10.0
_LOG_NAMES = re.compile(r"(munged|slurmctld|slurmd-node\d+)\.(out|log)|jobs\.txt")
_ATTEMPTS = 3
"""Attempts to start: another process may take a port between our check and the daemon's start."""


def _silent(text: str) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Cluster:
    """A started cluster, as its folder records it."""

    site: Site
    shape: Shape

    @property
    def env(self) -> dict[str, str]:
        return environment(self.site.folder)

    def ask(self, *command: str, timeout_s: float = 15.0) -> str:
        """Return the output of one of Slurm's commands; "" if it fails."""
        try:
            done = subprocess.run(
                [find_program(command[0]), *command[1:]],
                env=child_env(**self.env),
                capture_output=True,
                text=True,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            return ""
        return done.stdout if done.returncode == 0 else ""


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variables with which a shell's Slurm commands find the cluster."""
    path = os.pathsep.join(shell_path(folder, *path_without_emulators().split(os.pathsep)))
    # The simulated nodes claim more CPUs than exist: that many threads would only compete.
    variables = {"SLURM_CONF": str(folder.resolve() / "slurm.conf"), "OMP_NUM_THREADS": "1"}
    return variables if path == variable("PATH") else {**variables, "PATH": path}


def up(
    folder: Path,
    nodes: int,
    gpus_per_node: int,
    cpus_per_node: int,
    *,
    site: SiteNames = _NO_NAMES,
    report: Callable[[str], None] = _silent,
) -> Cluster:
    """Start a cluster and wait until every node is idle.

    Raises:  UsageError if one is running there or the folder has other files; LaunchError, with the end of the logs,
             if it does not start.
    """
    shape = Shape(nodes, gpus_per_node, cpus_per_node)
    need_programs()
    folder = folder.resolve()
    with locked(folder):
        _make_room(folder, report)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return _start(folder, shape, site, report)
            except LaunchError as error:
                if attempt == _ATTEMPTS or "Address already in use" not in str(error):
                    raise
    raise AssertionError("the last attempt returns or raises")


def down(folder: Path, *, keep_logs: bool = False) -> None:
    """End the jobs and the daemons of a cluster and remove its files, whatever its state."""
    cluster = read_cluster(folder)
    with locked(folder.resolve()):
        if is_answering(cluster):
            cluster.ask("scancel", "--me")
            deadline = time.monotonic() + _JOBS_S
            while time.monotonic() < deadline and cluster.ask("squeue", "--noheader"):
                time.sleep(0.1)
        _clear(cluster.site, keep_logs=keep_logs)


def read_cluster(folder: Path) -> Cluster:
    """Return the cluster of a folder. Raises UsageError if there is none."""
    try:
        kind = read_cluster_file(folder, ClusterKind).kind
        if kind != KIND:
            raise UsageError(f"{folder}: contains a cluster of another kind ({kind})", "frog slurm down ends it")
        known = read_cluster_file(folder, SlurmFile)
        if len(known.site.ports) != known.shape.nodes + 1:
            raise UsageError(
                f"{folder}: $.site.ports: found {len(known.site.ports)}, expected one for slurmctld and each node of "
                f"$.shape, {known.shape.nodes + 1}",
                "frog slurm down ends it",
            )
        if known.site.folder != str(folder.resolve()):
            raise UsageError(
                f"{folder}: $.site.folder: found {shortened(known.site.folder)}, which is another folder",
                f"name that one, or move this one back: frog slurm down --folder {shortened(known.site.folder)}",
            )
    except FileNotFoundError:
        raise UsageError(f"{folder}: no cluster found", "frog slurm up, or name its --folder") from None
    return Cluster(Site.of(known.site), Shape(**msgspec.structs.asdict(known.shape)))


def daemons(cluster: Cluster) -> dict[str, int | None]:
    """Return the pid of each daemon by name; None for a daemon that does not run."""
    running: dict[str, int] = {}
    for process in find_processes(cluster.site.name):
        running.setdefault(_daemon_name(process.command), process.pid)  # its forks have later entries
    names = ["munged", "slurmctld", *(f"slurmd {name}" for name in cluster.shape.node_names)]
    return {name: running.get(name) for name in names}


def is_answering(cluster: Cluster) -> bool:
    """True if slurmctld runs and answers."""
    running = daemons(cluster)
    return None not in (running["munged"], running["slurmctld"]) and bool(
        cluster.ask("sinfo", "--noheader", "--format=%N")
    )


def _daemon_name(command: str) -> str:
    words = command.split() or [""]
    program = Path(words[0]).name
    return f"slurmd {words[-1]}" if program == "slurmd" else program


def _make_room(folder: Path, report: Callable[[str], None]) -> None:
    """Refuse a live cluster, clear a dead one, refuse a folder with other files."""
    if not (folder / CLUSTER_FILE).exists():
        remove_commands(folder / COMMANDS)
        logs = folder / "logs"
        own = {folder / LOCK_FILE} | ({logs} if logs.is_dir() else set())
        foreign = [entry.name for entry in _entries(folder) if entry not in own]
        foreign += [f"logs/{entry.name}" for entry in _entries(logs) if not _is_log(entry)]
        if foreign:
            raise UsageError(f"{folder}: the folder has other files ({', '.join(sorted(foreign)[:3])})", "--folder NEW")
        return
    cluster = read_cluster(folder)
    dead = [name for name, pid in daemons(cluster).items() if pid is None]
    if not dead:
        raise UsageError(
            f"{folder}: a cluster of {cluster.shape.nodes} nodes is already running",
            "frog slurm status shows it; frog slurm down ends it",
        )
    report(f"removed the remains of a cluster whose {', '.join(dead)} had died")
    _clear(cluster.site, keep_logs=False)


def _start(folder: Path, shape: Shape, foreign: SiteNames, report: Callable[[str], None]) -> Cluster:
    cluster = Cluster(_choose_site(folder, shape), shape)
    site = cluster.site
    try:
        own = SlurmFile(kind=KIND, site=site.fields(), shape=ShapeFields(**shape.as_dict()))
        write_typed(folder / CLUSTER_FILE, own)
        _remove_logs(site.logs)
        site.logs.mkdir(exist_ok=True)
        write_configuration(site, shape, foreign)
        foreign.write_commands(folder / COMMANDS)
        names, problem = provide_names(
            site.scratch / "hosts", dict.fromkeys(shape.node_names, site.address), rename=False
        )
        if problem is not None:
            report(problem)
        site.munge_key.write_bytes(secrets.token_bytes(128))
        site.munge_key.chmod(0o400)
        started: dict[str, subprocess.Popen[bytes]] = {}
        for name, command in _commands(site, shape).items():
            log = site.logs / f"{name}.out"
            of_node = names if name.startswith("slurmd-") else None
            started[name] = start_daemon(command, site.name, log, cluster.env, site.host, of_node)
            if name == "munged":
                _wait(site, started, site.munge_socket.exists, "munged listens")
        _wait(site, started, lambda: _all_idle(cluster), "every node is idle")
    except BaseException:
        _clear(site, keep_logs=True)
        raise
    for process in started.values():
        process.returncode = 0  # they keep running; this process does not wait for them
    return cluster


def _choose_site(folder: Path, shape: Shape) -> Site:
    user = own_name()
    host, address = choose_host()
    ports = _free_ports(address, shape.nodes + 1)
    scratch = Path(tempfile.mkdtemp(prefix="frog-slurm-"))
    scratch.chmod(0o755)  # munged requires a socket that every user can reach
    return Site(
        name=f"frog-{secrets.token_hex(4)}",
        folder=folder,
        scratch=scratch,
        host=host,
        address=address,
        user=user,
        ports=ports,
        # Job files derive ports and names from the job id, so two clusters of one machine need different ids.
        first_job=100_000 + secrets.randbelow(800_000),
    )


def _free_ports(address: str, count: int) -> tuple[int, ...]:
    """Return the free ports, all different: above those of runs, below the ephemeral range."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port(address, range(30_000, 32_700)))
    return tuple(ports)


def _commands(site: Site, shape: Shape) -> dict[str, list[str]]:
    """Return the command line of each daemon, in starting order."""
    munged = [find_program("munged"), "--foreground", "--socket", str(site.munge_socket)]
    munged += ["--key-file", str(site.munge_key), "--pid-file", str(site.scratch / "munged.pid")]
    munged += ["--log-file", str(site.folder / "logs" / "munged.log"), "--seed-file", str(site.scratch / "seed")]
    commands = {"munged": munged, "slurmctld": [find_program("slurmctld"), "-D"]}
    for name in shape.node_names:
        commands[f"slurmd-{name}"] = [find_program("slurmd"), "-D", "-N", name]
    return commands


def _wait(site: Site, started: dict[str, subprocess.Popen[bytes]], true: Callable[[], bool], what: str) -> None:
    """Wait until a condition is true; LaunchError at the deadline, or as soon as a daemon dies."""
    deadline = time.monotonic() + _UP_S
    while not true():
        dead = [name for name, process in started.items() if process.poll() is not None]
        if dead or time.monotonic() > deadline:
            happened = f"{' and '.join(dead)} ended" if dead else f"not within {_UP_S:.0f} s: {what}"
            raise LaunchError(f"the cluster did not start: {happened}\n{_tails(site)}", f"see {site.logs}/")
        time.sleep(0.05)


def _all_idle(cluster: Cluster) -> bool:
    lines = cluster.ask("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
    return len(lines) == cluster.shape.nodes and all(line.split()[1:] == ["idle"] for line in lines)


def _tails(site: Site, num_lines: int = 4) -> str:
    """Return the end of each daemon's log."""
    tails = []
    for log in sorted(site.logs.glob("*.out")):
        lines = log.read_text(errors="replace").splitlines()[-num_lines:]
        tails += [f"  {log.name}:", *(f"    {line}" for line in lines)] if lines else []
    return "\n".join(tails)


def _clear(site: Site, *, keep_logs: bool) -> None:
    """End the processes of a cluster and remove its files.

    Raises:  LaunchError if a process does not end.
    """
    left = end_processes(site.name, _DAEMONS_S)
    if left:
        names = ", ".join(f"{process.command} (pid {process.pid})" for process in left)
        raise LaunchError(f"processes of the cluster did not end: {names}", f"kill them, then remove {site.folder}")
    if site.owns_scratch:
        shutil.rmtree(site.scratch, ignore_errors=True)
    for name in ("slurm.conf", "gres.conf", CLUSTER_FILE):
        (site.folder / name).unlink(missing_ok=True)
    remove_commands(site.folder / COMMANDS)
    if not keep_logs:
        _remove_logs(site.logs)


def _remove_logs(folder: Path) -> None:
    """Remove only the files that daemons wrote there."""
    for entry in _entries(folder):
        if _is_log(entry):
            entry.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _is_log(entry: Path) -> bool:
    return entry.is_file() and _LOG_NAMES.fullmatch(entry.name) is not None


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def status_text(folder: Path) -> str:
    """Return the state of a cluster, as tables. Raises UsageError if there is none."""
    cluster = read_cluster(folder)
    tables = [_daemons(cluster)]
    if is_answering(cluster):
        tables += [_nodes(cluster), _jobs(cluster)]
    else:
        tables.append("slurmctld does not answer: `frog slurm down` removes its remains")
    return "\n\n".join(tables)


def _daemons(cluster: Cluster) -> str:
    site, running = cluster.site, daemons(cluster)
    places = [str(site.munge_socket), *(f"{site.address}:{port}" for port in site.ports)]
    rows = [["DAEMON", "PID", "LISTENS AT", "STATE"]]
    for (name, pid), place in zip(running.items(), places, strict=True):
        rows.append([name, str(pid or "-"), place, "runs" if pid else "dead"])
    return format_table(rows)


def _nodes(cluster: Cluster) -> str:
    columns = "NodeList:|,StateLong:|,Gres:|,GresUsed:|,CPUsState:|"
    lines = cluster.ask("sinfo", "--noheader", "--Node", f"--Format={columns}").splitlines()
    rows = [["NODE", "STATE", "GPUS USED", "CPUS USED"]]
    for line in lines:
        name, state, gres, used, cpus, _ = line.split("|")
        allocated, _, _, total = cpus.split("/")
        rows.append([name, state, f"{_count(used)} of {_count(gres)}", f"{allocated} of {total}"])
    return format_table(rows)


def _count(gres: str) -> int:
    """Return the number in gpu:4, gpu:(null):2(IDX:0-1) or (null)."""
    for part in gres.replace("(", ":").split(":"):
        if part.isdigit():
            return int(part)
    return 0


def _jobs(cluster: Cluster) -> str:
    lines = cluster.ask("squeue", "--noheader", "--format=%i|%T|%M|%l|%D|%R|%j").splitlines()
    if not lines:
        return "no jobs"
    rows = [["JOB", "NAME", "STATE", "TIME", "LIMIT", "NODES", "WHERE OR WHY"]]
    for line in lines:
        number, *rest, name = line.split("|", 6)  # the name comes last because it may contain anything
        rows.append([number, name, *rest])
    return format_table(rows)
