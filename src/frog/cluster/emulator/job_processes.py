"""Processes of jobs: the variables that Slurm sets for them, the mark that finds them, the signals that end them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from frog.cluster.emulator.emulated_job import EmulatedJob, JobRequest, StepAllocation
from frog.cluster.emulator.notation import compress_counts, compress_hosts

MARK = "FROG_EMULATOR_MARK"
"""Variable with the value cluster/job.start/ in a batch script, cluster/job.start/step/ in a task and cluster/daemon/
in the daemon, so a prefix finds all processes of a step, a job or a cluster."""

_END_S = 10.0

HIDDEN_WITHOUT_GPUS = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE")


# ---- variables -------------------------------------------------------------------------------------------------------


def batch_variables(job: EmulatedJob, cluster: str) -> dict[str, str]:
    """Return the variables of the batch script that extend its submission environment."""
    request, first = job.request, job.allocations[0]
    variables = {
        **job_variables(job, cluster),
        "ENVIRONMENT": "BATCH",
        "HOSTNAME": first.node,
        "SLURM_GTIDS": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": str(len(job.allocations)),
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_TASKS_PER_NODE": compress_counts([allocation.tasks for allocation in job.allocations]),
        MARK: mark_of(job, cluster),
        **node_variables(first.node, first.cpus),
        **gpu_variables(first.gpus),
    }
    if request.gpus_per_task is not None:
        variables["SLURM_GPUS_PER_TASK"] = str(request.gpus_per_task)
    if request.export is not None:
        variables["SLURM_EXPORT_ENV"] = request.export
        if request.export != "ALL":
            variables["SLURM_GET_USER_ENV"] = "1"
    if job.array_task is not None:
        variables |= _array_variables(job)
    return variables


def submitted_environment(request: JobRequest) -> dict[str, str]:
    """Return the submission environment of a batch script, without another job's variables for GPUs and CPUs."""
    hidden = {*HIDDEN_WITHOUT_GPUS, "SLURM_JOB_GPUS"}
    environment = {name: value for name, value in request.environment.items() if name not in hidden}
    if "SLURM_CPUS_PER_TASK" in environment:
        environment["SLURM_CPUS_PER_TASK"] = str(request.cpus_of_task)
    return environment


def job_variables(job: EmulatedJob, cluster: str) -> dict[str, str]:
    """Return the variables that describe the job, equal on all its nodes."""
    request, hosts = job.request, compress_hosts(job.node_names)
    variables = {
        "SLURM_CLUSTER_NAME": cluster,
        "SLURM_JOBID": str(job.number),
        "SLURM_JOB_CPUS_PER_NODE": compress_counts([allocation.cpus for allocation in job.allocations]),
        "SLURM_JOB_GID": str(os.getgid()),
        "SLURM_JOB_ID": str(job.number),
        "SLURM_JOB_NAME": request.name,
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_JOB_NUM_NODES": str(len(job.allocations)),
        "SLURM_JOB_PARTITION": request.partition,
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_USER": request.user,
        "SLURM_NODELIST": hosts,
        "SLURM_NODE_ALIASES": "(null)",
        "SLURM_PRIO_PROCESS": "0",
        "SLURM_SUBMIT_DIR": request.submit_dir,
        "SLURM_SUBMIT_HOST": request.submit_host,
    }
    ntasks = request.ntasks
    if ntasks is None and request.ntasks_per_node is not None:
        ntasks = request.ntasks_per_node * len(job.allocations)
    optional: dict[str, object] = {
        "SLURM_CPUS_PER_TASK": request.cpus_per_task,
        "SLURM_GPUS_PER_NODE": request.gpus_per_node_option or None,
        "SLURM_JOB_ACCOUNT": request.account,
        "SLURM_JOB_DEPENDENCY": request.dependency_text,
        "SLURM_GPUS": request.gpus_option,
        "SLURM_MEM_PER_CPU": request.mem_per_cpu_mb,
        "SLURM_MEM_PER_GPU": request.mem_per_gpu_mb,
        "SLURM_MEM_PER_NODE": request.mem_mb,
        "SLURM_NPROCS": ntasks,
        "SLURM_NTASKS": ntasks,
        "SLURM_NTASKS_PER_NODE": request.ntasks_per_node,
        "SLURM_RESTART_COUNT": job.restarts or None,
        "SLURM_JOB_GPUS": ",".join(map(str, job.allocations[0].gpus)) or None,
    }
    return variables | {name: str(value) for name, value in optional.items() if value is not None}


def node_variables(node: str, cpus: int) -> dict[str, str]:
    return {
        "FROG_NODE_NAME": node,
        "SLURMD_NODENAME": node,
        "SLURM_CPUS_ON_NODE": str(cpus),
        "SLURM_TOPOLOGY_ADDR": node,
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
    }


def gpu_variables(gpus: Sequence[int]) -> dict[str, str]:
    """Return the variables that list the job's GPUs on a node, one per vendor."""
    if not gpus:
        return {}
    numbers = ",".join(map(str, gpus))
    names = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES")
    return {"SLURM_GPUS_ON_NODE": str(len(gpus)), **dict.fromkeys(names, numbers)}


def _array_variables(job: EmulatedJob) -> dict[str, str]:
    assert job.request.array is not None
    tasks, step, _ = job.request.array
    return {
        "SLURM_ARRAY_JOB_ID": str(job.array_job),
        "SLURM_ARRAY_TASK_ID": str(job.array_task),
        "SLURM_ARRAY_TASK_COUNT": str(len(tasks)),
        "SLURM_ARRAY_TASK_MIN": str(tasks[0]),
        "SLURM_ARRAY_TASK_MAX": str(tasks[-1]),
        "SLURM_ARRAY_TASK_STEP": str(step),
    }


def step_variables(
    job: EmulatedJob,
    cluster: str,
    step: int,
    parts: Sequence[StepAllocation],
    *,
    label: bool,
    cpus_per_task: int | None,
) -> dict[str, str]:
    """Return the variables that all tasks of a step share."""
    ntasks, nodes = sum(part.tasks for part in parts), len(parts)
    tasks = compress_counts([part.tasks for part in parts])
    whole = compress_counts([allocation.cpus for allocation in job.allocations])
    variables = {
        "SLURM_DISTRIBUTION": "cyclic" if ntasks <= nodes else "block",
        "SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0": whole,
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_NNODES": str(nodes),
        "SLURM_NPROCS": str(ntasks),
        "SLURM_NTASKS": str(ntasks),
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
        "SLURM_STEPID": str(step),
        "SLURM_STEP_ID": str(step),
        "SLURM_STEP_NODELIST": compress_hosts([part.node for part in parts]),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_TASKS": str(ntasks),
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_TASKS_PER_NODE": tasks,
        "SLURM_UMASK": f"{job.request.umask:04o}",
        MARK: f"{mark_of(job, cluster)}{step}/",
    }
    if label:
        variables["SLURM_LABELIO"] = "1"
    if cpus_per_task is not None:
        variables["SLURM_CPUS_PER_TASK"] = str(cpus_per_task)
    return variables


def task_variables(part: StepAllocation, node_rank: int, local_rank: int, first_rank: int) -> dict[str, str]:
    """Return the variables of one task."""
    ranks = range(first_rank, first_rank + part.tasks)
    return {
        **node_variables(part.node, part.cpus),
        "SLURM_GTIDS": ",".join(map(str, ranks)),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": str(node_rank),
        "SLURM_PROCID": str(first_rank + local_rank),
    }


def task_gpu_variables(gpus: Sequence[int], per_task: int, local_rank: int, tasks: int) -> dict[str, str]:
    """Return the GPUs that a task sees: all GPUs of its step on the node, or its share with --gpus-per-task."""
    if not gpus:
        return {}
    shared = bool(per_task) and tasks > 1
    own = gpus[local_rank * per_task : (local_rank + 1) * per_task] if shared else gpus
    variables = {**gpu_variables(own), "SLURM_GPUS_ON_NODE": str(len(gpus)), "SLURM_STEP_GPUS": ",".join(map(str, own))}
    return variables | ({"SLURMD_TRES_BIND": f"gpu:per_task:{per_task}"} if shared else {})


def task_environment(base: Mapping[str, str], *changes: Mapping[str, str], with_gpus: bool) -> dict[str, str]:
    """Return a task's environment: srun's, without the variables of the batch script, and with the changes."""
    hidden = () if with_gpus else HIDDEN_WITHOUT_GPUS
    environment = {name: value for name, value in base.items() if name not in hidden}
    for change in changes:
        environment |= change
    return environment


# ---- marks and signals -----------------------------------------------------------------------------------------------


def mark_of(job: EmulatedJob, cluster: str) -> str:
    return f"{cluster}/{job.number}.{job.restarts}/"


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; return False if it no longer exists."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS raises PermissionError for a group of zombies
        return False
    return True


def find_marked(prefix: str) -> list[int]:
    """Return the live processes whose mark begins with `prefix`, including those that left their group."""
    marks = _marks_of_proc() if Path("/proc/self/environ").exists() else _marks_of_ps()
    return [pid for pid, mark in marks if mark.startswith(prefix) and pid != os.getpid()]


def _marks_of_proc() -> list[tuple[int, str]]:
    name = f"{MARK}=".encode()
    marks = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it has just ended, or belongs to another user
            continue
        marks += [(int(entry.name), item.removeprefix(name).decode()) for item in variables if item.startswith(name)]
    return marks


def _marks_of_ps() -> list[tuple[int, str]]:
    """Read marks without /proc: ps prints the environment of the user's own processes after their command."""
    words = ["ps", "-A", "-E", "-ww"] if sys.platform == "darwin" else ["ps", "axeww"]
    done = subprocess.run([*words, "-o", "pid=,command="], capture_output=True, text=True, timeout=20)
    return parse_ps(done.stdout)


def parse_ps(text: str) -> list[tuple[int, str]]:
    """Return pid and mark of each line of ps that has a mark."""
    marked = re.findall(rf"^\s*(\d+)\s.*?\b{MARK}=(\S+)", text, re.MULTILINE)
    return [(int(pid), mark) for pid, mark in marked]


def enter(folder: Path) -> tuple[Path, str]:
    """Return the working folder of a job's process, and Slurm's message on stderr if it is not the requested one."""
    if folder.is_dir():
        return folder, ""
    why = os.strerror(errno.ENOTDIR if folder.exists() else errno.ENOENT)
    return Path("/tmp"), f"slurmstepd: error: couldn't chdir to `{folder}': {why}: going to /tmp instead\n"


def kill_marked(prefix: str, groups: Sequence[int] = ()) -> list[int]:
    """Send SIGKILL to all processes with a mark until none remains; return those that still exist at the deadline."""
    deadline = time.monotonic() + _END_S
    for group in groups:
        signal_group(group, signal.SIGKILL)
    while (left := find_marked(prefix)) and time.monotonic() < deadline:
        for pid in left:
            signal_one(pid, signal.SIGKILL)
        time.sleep(0.02)
    return left


def signal_one(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def signal_marked(prefix: str, number: int, *, leaders: Sequence[int] = (), but: Sequence[int] = ()) -> None:
    """Send a signal once to the leaders of a mark's groups, then to each of its other processes, except `but`.

    A leader that ends on the signal must not see its child end first.
    """
    for pid in dict.fromkeys([*leaders, *find_marked(prefix)]):
        if pid not in but:
            signal_one(pid, number)
