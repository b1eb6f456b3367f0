"""The daemon's answers to the commands: jobs and nodes as plain tables, and a step's resources with its variables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from frog.cluster.emulator.batch import error_path, input_path, output_path
from frog.cluster.emulator.emulated_job import EmulatedJob, JobStep
from frog.cluster.emulator.layout import StepAllocation, free_resources
from frog.cluster.emulator.notation import compress_hosts
from frog.cluster.emulator.processes import MARK
from frog.cluster.emulator.queue import dependency_text
from frog.cluster.emulator.variables import (
    job_variables,
    mark_of,
    step_variables,
    task_gpu_variables,
    task_variables,
)

if TYPE_CHECKING:
    from frog.cluster.emulator.controller import SlurmController


def snapshot(controller: SlurmController) -> dict[str, Any]:
    """Return the jobs in order of submission, and the nodes."""
    return {
        "cluster": controller.cluster,
        "partitions": controller.site.all_partitions,
        "jobs": [_job(job, controller.jobs) for job in controller.jobs],
        "nodes": _nodes(controller),
    }


def _job(job: EmulatedJob, jobs: Sequence[EmulatedJob]) -> dict[str, Any]:
    request = job.request
    now = time.time()
    began = job.started_s
    table = {
        "id": job.number,
        "own_id": job.job_id,
        "array_job": job.array_job,
        "array_task": job.array_task,
        "at_once": request.array[2] if request.array else None,
        "label": job.label,
        "name": request.name,
        "user": request.user,
        "state": job.state,
        "reason": job.reason,
        "dependency": dependency_text(job, jobs),
        "requeue": request.requeue and request.script is not None,
        "restarts": job.restarts,
        "is_batch": request.script is not None,
        "exit": f"{job.exit_code}:{job.exit_signal}",
        "elapsed_s": 0 if began is None else (job.ended_s or now) - began,
        "limit_min": job.limit_min,
        "submitted_s": job.submitted_s,
        "started_s": began,
        "ended_s": job.ended_s or job.limit_s,
        "partition": request.partition,
        "account": request.account,
        "comment": request.comment,
        "hosts": compress_hosts(job.node_names),
        "first_host": job.node_names[0] if job.allocations else None,
        "num_nodes": len(job.allocations) or _nodes_asked(job),
        "num_cpus": sum(allocation.cpus for allocation in job.allocations)
        or (request.ntasks or 1) * request.cpus_of_task,
        "num_tasks": request.ntasks or sum(allocation.tasks for allocation in job.allocations) or 1,
        "cpus_per_task": request.cpus_of_task,
        "command": request.command,
        "work_dir": request.work_dir,
        "steps": [{"number": step.number, "groups": step.groups, "ended": step.ended} for step in job.steps],
    }
    return table | _files(job)


def _nodes_asked(job: EmulatedJob) -> int:
    request = job.request
    per_node = request.ntasks_per_node
    return request.nodes or (-(-request.ntasks // per_node) if request.ntasks and per_node else 1)


def _files(job: EmulatedJob) -> dict[str, str]:
    if job.request.script is None:
        return {}
    paths = {"stderr": error_path(job), "stdin": input_path(job), "stdout": output_path(job)}
    return {name: str(path) for name, path in paths.items()}


def _nodes(controller: SlurmController) -> list[dict[str, Any]]:
    found = []
    for part in free_resources(controller.nodes, controller.jobs):
        busy = [job for job in controller.jobs if job.is_active and part.node.name in job.node_names]
        state = "idle"
        if busy:
            state = "allocated" if part.cpus == 0 else "mixed"
            if all(job.state == "COMPLETING" for job in busy):
                state = "completing"
        found.append(
            {
                "name": part.node.name,
                "state": state,
                "cpus": part.node.cpus,
                "cpus_used": part.node.cpus - part.cpus,
                "gpus": part.node.gpus,
                "gpus_used": part.node.gpus - len(part.gpus),
            }
        )
    return found


def allocation_variables(controller: SlurmController, job: EmulatedJob) -> dict[str, str]:
    """Return the variables that let an srun outside a job act as if inside one."""
    return {**job_variables(job, controller.cluster), MARK: mark_of(job, controller.cluster)}


def step_answer(
    controller: SlurmController,
    job: EmulatedJob,
    step: JobStep,
    parts: Sequence[StepAllocation],
    gpus_per_task: int | None,
    *,
    label: bool,
    cpus: int | None,
) -> dict[str, Any]:
    """Return the node and the variables of each task of a step."""
    with_gpus = bool(job.request.gpus_per_node or job.request.gpus_per_task or gpus_per_task)
    tasks, rank = [], 0
    for node_rank, part in enumerate(parts):
        for local_rank in range(part.tasks):
            variables = task_variables(part, node_rank, local_rank, rank)
            if with_gpus:
                variables |= task_gpu_variables(part.gpus, gpus_per_task or 0, local_rank, part.tasks)
            tasks.append({"rank": rank + local_rank, "node": part.node, "node_rank": node_rank, "variables": variables})
        rank += part.tasks
    shared = step_variables(job, controller.cluster, step.number, parts, label=label, cpus_per_task=cpus)
    return {
        "job": job.number,
        "step": step.number,
        "array_job": job.array_job,
        "array_task": job.array_task,
        "name": job.request.name,
        "user": job.request.user,
        "variables": shared,
        "tasks": tasks,
        "with_gpus": with_gpus,
        "kill_wait_s": controller.kill_wait_s,
        "hosts": None if controller.names is None else str(controller.names.hosts),
    }
