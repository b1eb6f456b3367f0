"""Translation of the variables of other launchers, which describe a process's place in the world, to torchrun's.

| launcher      | variable with the rank   | address of rank 0, if MASTER_ADDR and MASTER_PORT are not set           |
|---------------|--------------------------|-------------------------------------------------------------------------|
| Open MPI      | OMPI_COMM_WORLD_RANK     | one node: 127.0.0.1, a port derived from the job name; else an error    |
| MPICH, Intel  | PMI_RANK                 | one node: 127.0.0.1; the job has no name: the port must be set          |
| srun          | SLURM_PROCID of a step   | the step's first node, a port derived from the job and step ids         |
| DeepSpeed     | RANK, with LOCAL_SIZE    | always set                                                              |

torchrun's own RANK and WORLD_SIZE take precedence: srun or mpirun may have started torchrun itself.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

from frog.core.errors import UsageError
from frog.core.units import parse_whole

_LOOPBACK = "127.0.0.1"
_EXAMPLES = {"MASTER_ADDR": "HOST_OF_RANK_0", "MASTER_PORT": "29500"}
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000
"""Ports below the ephemeral ports that systems assign."""

_FIRST_SPECIAL_STEP = 0xFFFF_FFF0
"""Slurm numbers batch scripts, salloc's shells and other steps without an `srun` from here on."""


def in_torchrun_words(environ: Mapping[str, str], pid: int) -> dict[str, str]:
    """Translate another launcher's variables to RANK, WORLD_SIZE and so on, except those already set.

    The result is empty for a process started without a launcher, or alone. `pid` is this process.

    Raises:  UsageError if the launcher does not specify the address of rank 0.
    """
    if environ.get("RANK") or environ.get("WORLD_SIZE"):
        variables = _deepspeed(environ)
    elif _count(environ, "OMPI_COMM_WORLD_SIZE") > 1:
        variables = _open_mpi(environ)
    elif is_mpich(environ):
        variables = _mpich(environ)
    elif _count(environ, "SLURM_STEP_NUM_TASKS") > 1 and _is_task(environ, pid):
        variables = _srun(environ)
    else:
        variables = {}
        _refuse_lone_accelerate(environ)
    return {name: value for name, value in variables.items() if not environ.get(name)}


def is_mpich(environ: Mapping[str, str]) -> bool:
    """True if mpiexec of MPICH, or a related implementation, started this process."""
    return _count(environ, "PMI_SIZE") > 1 and "MPI_LOCALRANKID" in environ


def _deepspeed(environ: Mapping[str, str]) -> dict[str, str]:
    """Translate DeepSpeed's own variables, which it sets in addition to torchrun's."""
    names = {"LOCAL_WORLD_SIZE": "LOCAL_SIZE", "NODE_RANK": "CROSS_RANK"}
    if not all(environ.get(name) for name in names.values()):
        return {}
    return {ours: environ[theirs] for ours, theirs in names.items()}


def _open_mpi(environ: Mapping[str, str]) -> dict[str, str]:
    place = [environ.get(f"OMPI_COMM_WORLD_{name}", "") for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid")
    return _placed(environ, place, _port_of(job) if job else None, "mpirun -x {0}={1}")


def _mpich(environ: Mapping[str, str]) -> dict[str, str]:
    place = [environ.get(name, "") for name in ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")]
    return _placed(environ, place, None, "mpiexec -genv {0} {1}")


def _placed(environ: Mapping[str, str], place: list[str], port: int | None, how_to_set: str) -> dict[str, str]:
    """Build the variables for an MPI launcher; on a single node rank 0 listens on the loopback interface."""
    variables = dict(zip(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), place, strict=True))
    if variables["WORLD_SIZE"] == variables["LOCAL_WORLD_SIZE"]:
        variables["NODE_RANK"], variables["MASTER_ADDR"] = "0", _LOOPBACK
        if port is not None:
            variables["MASTER_PORT"] = str(port)
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name) and name not in variables]
    if missing:
        launcher, _, flag = how_to_set.partition(" ")
        raise UsageError(
            f"{launcher} started rank {variables['RANK']} of {variables['WORLD_SIZE']} without the address of rank 0: "
            f"{' and '.join(missing)} not set",
            " ".join([launcher, *(flag.format(name, _EXAMPLES[name]) for name in missing), "..."]),
        )
    return variables


def _srun(environ: Mapping[str, str]) -> dict[str, str]:
    several = _count(environ, "SLURM_STEP_NUM_NODES") > 1
    node_rank = environ.get("SLURM_NODEID", "0")
    job, step = environ.get("SLURM_JOB_ID", ""), environ["SLURM_STEP_ID"]
    variables = {
        "RANK": environ["SLURM_PROCID"],
        "WORLD_SIZE": environ["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environ.get("SLURM_LOCALID", ""),
        "LOCAL_WORLD_SIZE": _tasks_on(environ.get("SLURM_STEP_TASKS_PER_NODE", ""), node_rank),
        "NODE_RANK": node_rank,
        "MASTER_ADDR": first_host(environ.get("SLURM_STEP_NODELIST", "")) if several else _LOOPBACK,
        "MASTER_PORT": str(_port_of(f"{job}.{step}")),
    }
    return {name: value for name, value in variables.items() if value}


def _refuse_lone_accelerate(environ: Mapping[str, str]) -> None:
    """Reject accelerate's MULTI_CPU without mpirun, which sets up a rendezvous but starts only one process."""
    if all(environ.get(name) for name in ("ACCELERATE_MIXED_PRECISION", "MASTER_ADDR", "MASTER_PORT")):
        raise UsageError(
            "accelerate launch started one process and set MASTER_ADDR for several ranks, but no RANK: "
            "its MULTI_CPU starts ranks only through mpirun",
            "use distributed_type: MULTI_GPU (also on CPUs) or an mpirun_config, as in config/accelerate_cpu.yaml; "
            "to train with one process: unset MASTER_ADDR",
        )


def _is_task(environ: Mapping[str, str], pid: int) -> bool:
    """True for a task that `srun` started; False for a batch script, a shell, or a process started from one.

    A batch script and a shell of `salloc` also have SLURM_PROCID, but do not belong to a step with several tasks. The
    shell
    of `srun --ntasks=4 --pty bash` is the first task of such a step, but its commands are other processes.
    """
    step = parse_whole(environ.get("SLURM_STEP_ID", ""))
    if step is None or step >= _FIRST_SPECIAL_STEP or "SLURM_PROCID" not in environ:
        return False
    return "SLURM_PTY_PORT" not in environ or environ.get("SLURM_TASK_PID") == str(pid)


def _tasks_on(tasks_per_node: str, node_rank: str) -> str:
    """Return the number of tasks of a node, from Slurm's "2(x3),1": three nodes with two, then one with one."""
    number, first = parse_whole(node_rank), 0
    if number is None:
        return ""
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks_per_node):
        first += parse_whole(times or "1") or number + 1  # a number of thousands of digits is enough
        if number < first:
            return str(count)
    return ""


def first_host(hosts: str) -> str:
    """Return the first host name of Slurm's "node[003-005,9],login": node003."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0]) if first else ""


def _port_of(name: str) -> int:
    """Derive a port from the name of the job: the same on all ranks."""
    return _FIRST_PORT + zlib.crc32(name.encode()) % _NUM_PORTS


def _count(environ: Mapping[str, str], name: str) -> int:
    """Return a variable as a number; 0 if it is not a number."""
    return parse_whole(environ.get(name, "")) or 0
