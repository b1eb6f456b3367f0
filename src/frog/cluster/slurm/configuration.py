"""Configuration of Slurm's daemons on one machine: slurm.conf, gres.conf and the files they name; host and user."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from frog.cluster.node_names import resolve
from frog.cluster.simulated_cluster import MEMORY_MB, Shape, SiteFields, SiteNames
from frog.core.errors import LaunchError
from frog.core.files import write_atomic

_NO_NAMES = SiteNames()


@dataclass(frozen=True)
class Site:
    """Paths, addresses and user of a cluster."""

    name: str
    """Unique mark of the cluster on this machine. Daemons and jobs carry it in their environment."""
    folder: Path
    """Files for the user: slurm.conf, logs."""
    scratch: Path
    """Sockets, spool and state: a short path, because a socket's path holds 107 bytes and Slurm's no blanks."""
    host: str
    address: str
    user: str
    ports: tuple[int, ...]
    """Ports of slurmctld, then of each node's slurmd."""
    first_job: int

    @property
    def slurm_conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def munge_socket(self) -> Path:
        return self.scratch / "munge.socket"

    @property
    def munge_key(self) -> Path:
        return self.scratch / "munge.key"

    @property
    def home(self) -> Path:
        """A link in the scratch folder to the cluster's folder."""
        return self.scratch / "folder"

    @property
    def owns_scratch(self) -> bool:
        """True if the scratch folder was made for this cluster; only then may it be removed."""
        return self.home.is_symlink() and self.home.readlink() == self.folder

    def fields(self) -> SiteFields:
        """Return the fields in cluster.json."""
        paths = {"folder": str(self.folder), "scratch": str(self.scratch)}
        return SiteFields(**{**asdict(self), **paths, "ports": list(self.ports)})

    @classmethod
    def of(cls, fields: SiteFields) -> Site:
        """Return the inverse of `fields`."""
        paths = {"folder": Path(fields.folder), "scratch": Path(fields.scratch)}
        return cls(**{**msgspec.structs.asdict(fields), **paths, "ports": tuple(fields.ports)})


def write_configuration(site: Site, shape: Shape, foreign: SiteNames = _NO_NAMES) -> None:
    """Write the files of the daemons."""
    home = site.home
    home.symlink_to(site.folder)
    for name in shape.node_names:
        (site.scratch / "spool" / name).mkdir(parents=True)
    (site.scratch / "state").mkdir()
    for number in range(shape.gpus_per_node):
        # Slurm reads a GPU's number from the end of its device's name, and the device must exist.
        (site.scratch / f"gpu{number}").symlink_to("/dev/null")
    prolog = site.scratch / "task_prolog"
    prolog.write_text(_TASK_PROLOG)
    prolog.chmod(0o755)
    write_atomic(site.folder / "gres.conf", _gres_conf(site, shape))
    write_atomic(site.slurm_conf, _slurm_conf(site, shape, foreign, home))


_TASK_PROLOG = """#!/bin/sh
# slurmd adds each printed "export NAME=value" to the task's environment. All nodes share this machine's host name, so
# Frog's logs use this name instead.
echo "export FROG_NODE_NAME=$SLURMD_NODENAME"
"""


def _gres_conf(site: Site, shape: Shape) -> str:
    if shape.gpus_per_node == 0:
        return "# no GPUs\n"
    return (
        "# Simulated GPUs, on every node: links to /dev/null. Slurm counts and allocates them and sets\n"
        f"# CUDA_VISIBLE_DEVICES; no program can compute on them.\nName=gpu File={site.scratch}/gpu[0-"
        f"{shape.gpus_per_node - 1}]\n"
    )


def _slurm_conf(site: Site, shape: Shape, foreign: SiteNames, home: Path) -> str:
    gpus = f" Gres=gpu:{shape.gpus_per_node}" if shape.gpus_per_node else ""
    features = f" Features={','.join(foreign.features)}" if foreign.features else ""
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={site.host} NodeAddr={site.address} Port={port} CPUs={shape.cpus_per_node}"
        f" RealMemory={MEMORY_MB}{gpus}{features} State=UNKNOWN"
        for name, port in zip(shape.node_names, site.ports[1:], strict=True)
    )
    partitions = "\n".join(
        f"PartitionName={name} Nodes={','.join(shape.node_names)} Default={'YES' if name == 'main' else 'NO'}"
        " MaxTime=INFINITE State=UP"
        for name in foreign.all_partitions
    )
    return f"""# A cluster simulated on one machine. `frog slurm up` wrote this file; `frog slurm down` removes it.
ClusterName={site.name}
SlurmctldHost={site.host}({site.address})
SlurmctldPort={site.ports[0]}
SlurmUser={site.user}
SlurmdUser={site.user}

# Any process that can reach this cluster's munged is trusted. A requeued job waits until its credential expires, here
# after 5 s instead of 2 min.
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={site.munge_socket},cred_expire=5
# Listen at this machine's own address only.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny

StateSaveLocation={site.scratch}/state
SlurmdSpoolDir={site.scratch}/spool/%n
SlurmctldPidFile={site.scratch}/slurmctld.pid
SlurmdPidFile={site.scratch}/slurmd-%n.pid
SlurmctldLogFile={home}/logs/slurmctld.log
SlurmdLogFile={home}/logs/slurmd-%n.log
JobCompType=jobcomp/filetxt
JobCompLoc={home}/logs/jobs.txt
MailProg=/bin/true

# No cgroups, no systemd: Slurm tracks processes by their parents and trusts the CPUs and memory below, whatever the
# machine has.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={site.scratch}/task_prolog
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MpiDefault=none
SwitchType=switch/none

# A stopped job has 30 s from SIGTERM to SIGKILL. A node without contact for a minute is down, and Slurm requeues its
# jobs. Slurm checks the queue every 2 s.
KillWait=30
SlurmdTimeout=60
ReturnToService=2
SchedulerParameters=sched_interval=2,bf_interval=2
FirstJobId={site.first_job}

{nodes}
{partitions}
"""


def choose_host() -> tuple[str, str]:
    """Return a host name and its loopback address.

    A daemon, and srun too, listens only at the address that its machine's name resolves to (NoInAddrAny). If that is
    not the loopback interface, the daemons use another name that is: localhost.

    Raises:  LaunchError if the name does not resolve, or if this system allows no other name.
    """
    name = socket.gethostname()
    address = resolve(name)
    hint = f"add the line `127.0.1.1 {name}` to /etc/hosts; or the emulator: frog slurm up --emulator"
    if address is None:
        raise LaunchError(f"this machine's name, {name}, does not resolve, so Slurm cannot listen", hint)
    if address.startswith("127."):
        return name, address
    code = "import sys; from frog.cluster.slurm.slurm_programs import go_by_name; go_by_name(sys.argv[1])"
    tried = subprocess.run([sys.executable, "-P", "-c", code, "localhost"], capture_output=True, text=True, timeout=60)
    if tried.returncode != 0:
        raise LaunchError(
            f"this machine's name, {name}, resolves to {address}, and this system does not let a process use another "
            "name: Slurm's daemons would not listen only on the loopback interface",
            hint,
        )
    return "localhost", resolve("localhost") or "127.0.0.1"


def own_name() -> str:
    """Return the name of the current user. Raises LaunchError if there is none: Slurm identifies users by name."""
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise LaunchError(
            f"user {uid} has no name on this machine, but Slurm identifies users by name",
            "add a line for it to /etc/passwd; or the emulator: frog slurm up --emulator",
        ) from None
