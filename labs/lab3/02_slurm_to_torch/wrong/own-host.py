"""Translate Slurm's description of a task into the variables that torch.distributed reads."""

import re
from collections.abc import Mapping


def tasks_of_nodes(text: str) -> list[int]:
    """Return the number of tasks on each node: "2(x2),1" is [2, 2, 1]."""
    runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, times in runs for _ in range(int(times or 1))]


def port_of_job(job_id: str) -> int:
    """Return a port that all tasks of a job compute without communicating, and that consecutive jobs do not share."""
    return 20_000 + int(job_id) % 20_000


def first_host(nodelist: str) -> str:
    """Return the first host of Slurm's node list: "gpu[007-009,12],big1" gives gpu007, "big1,gpu3" gives big1."""
    prefix, bracket, inside = nodelist.split(",")[0].partition("[")
    return prefix + re.split(r"[-\]]", inside)[0] if bracket else prefix


def torch_variables(slurm: Mapping[str, str]) -> dict[str, str]:
    """Return RANK, LOCAL_RANK, NODE_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT of a task.

    slurm contains the variables in the README. LOCAL_WORLD_SIZE is the number of tasks on this task's node. The values
    are text, ready for os.environ.update.
    """
    node = int(slurm["SLURM_NODEID"])
    return {
        "RANK": slurm["SLURM_PROCID"],
        "LOCAL_RANK": slurm["SLURM_LOCALID"],
        "NODE_RANK": slurm["SLURM_NODEID"],
        "WORLD_SIZE": slurm["SLURM_NTASKS"],
        "LOCAL_WORLD_SIZE": str(tasks_of_nodes(slurm["SLURM_STEP_TASKS_PER_NODE"])[node]),
        "MASTER_ADDR": slurm["SLURMD_NODENAME"],
        "MASTER_PORT": str(port_of_job(slurm["SLURM_JOB_ID"])),
    }
