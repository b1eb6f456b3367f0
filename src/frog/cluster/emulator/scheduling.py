"""Scheduling: which job starts next, and the nodes, CPUs and GPUs of its tasks. No clock, no processes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from frog.cluster.emulator import SlurmRefusal, unknown
from frog.cluster.emulator.emulated_job import (
    COMPLETED,
    PENDING,
    EmulatedJob,
    JobRequest,
    Node,
    NodeAllocation,
    StepAllocation,
    StepRequest,
    is_called,
)
from frog.cluster.simulated_cluster import MEMORY_MB, SiteNames

_UNAVAILABLE = "Batch job submission failed: Requested node configuration is not available"


# ---- the queue -------------------------------------------------------------------------------------------------------


def find_jobs(jobs: Sequence[EmulatedJob], text: str) -> list[EmulatedJob]:
    """Return the job with that number, the task 12_3, or all tasks of the array 12."""
    whole = [job for job in jobs if is_called(text, job.label, job.array_job)]
    return whole or [job for job in jobs if is_called(text, job.label, job.job_id)]


def next_to_start(
    jobs: Sequence[EmulatedJob], nodes: Sequence[Node]
) -> tuple[EmulatedJob, list[NodeAllocation]] | None:
    """Return the first job that can start, and its allocation; set the reason of each job that must wait.

    Jobs start in order: no job overtakes one that waits for nodes.
    """
    blocked = False
    for job in jobs:
        if job.state != PENDING:
            continue
        job.reason = _reason(job, jobs)
        if job.reason != "None":
            continue
        if blocked:
            job.reason = "Priority"
            continue
        allocations = place_job(job.request, free_resources(nodes, jobs))
        if allocations is not None:
            return job, allocations
        job.reason, blocked = "Resources", True
    return None


def _reason(job: EmulatedJob, jobs: Sequence[EmulatedJob]) -> str:
    if job.held:
        return "JobHeldUser"
    if job.reason in ("PartitionNodeLimit", "PartitionConfig"):
        return job.reason
    states = [dependency_state(job, kind, names, jobs) for kind, names in job.request.dependency]
    if "failed" in states:
        return "DependencyNeverSatisfied"
    if "unfulfilled" in states:
        return "Dependency"
    if job.request.array is not None and (most := job.request.array[2]) is not None:
        at_once = sum(other.is_active for other in jobs if other.array_job == job.array_job)
        if at_once >= most:
            return "JobArrayTaskLimit"
    return "None"


def dependency_state(job: EmulatedJob, kind: str, names: Sequence[str], jobs: Sequence[EmulatedJob]) -> str:
    """Return fulfilled, unfulfilled or failed. An unknown job counts as fulfilled."""
    if kind == "singleton":
        others = [
            other
            for other in jobs[: _place(job, jobs)]
            if (other.request.name, other.request.user) == (job.request.name, job.request.user)
            and (other.array_job is None or other.array_job != job.array_job)
        ]
        return "fulfilled" if all(other.has_ended for other in others) else "unfulfilled"
    states = [_dependency_on(kind, other) for name in names for other in find_jobs(jobs, name)]
    return next((state for state in ("failed", "unfulfilled") if state in states), "fulfilled")


def _place(job: EmulatedJob, jobs: Sequence[EmulatedJob]) -> int:
    return next(place for place, other in enumerate(jobs) if other is job)


def _dependency_on(kind: str, other: EmulatedJob) -> str:
    if kind == "after":
        return "unfulfilled" if other.state == PENDING else "fulfilled"
    if not other.has_ended:
        return "unfulfilled"
    went_well = other.state == COMPLETED
    met = {"afterany": True, "afterok": went_well, "afternotok": not went_well}[kind]
    return "fulfilled" if met else "failed"


def dependency_text(job: EmulatedJob, jobs: Sequence[EmulatedJob]) -> str:
    """Format a dependency as squeue does: afterok:12(unfulfilled)."""
    parts = []
    for kind, names in job.request.dependency:
        state = dependency_state(job, kind, names, jobs)
        if state == "fulfilled":
            continue
        parts += [f"{kind}:{name}({state})" for name in names] or [f"{kind}({state})"]
    return ",".join(parts) or "(null)"


# ---- a job's nodes ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FreeResources:
    """The part of a node that no job has allocated."""

    node: Node
    cpus: int
    gpus: tuple[int, ...]

    @property
    def is_idle(self) -> bool:
        return self.cpus == self.node.cpus and len(self.gpus) == self.node.gpus


def free_resources(nodes: Sequence[Node], jobs: Sequence[EmulatedJob]) -> list[FreeResources]:
    """Return the free resources of each node, which no active job has allocated."""
    allocations = [allocation for job in jobs if job.is_active for allocation in job.allocations]
    free = []
    for node in nodes:
        here = [allocation for allocation in allocations if allocation.node == node.name]
        taken = {number for allocation in here for number in allocation.gpus}
        gpus = tuple(number for number in range(node.gpus) if number not in taken)
        free.append(FreeResources(node, node.cpus - sum(allocation.cpus for allocation in here), gpus))
    return free


def check_fits(request: JobRequest, nodes: Sequence[Node]) -> str | None:
    """Raise SlurmRefusal for a job that the cluster can never run; return a reason if Slurm would queue it forever."""
    unknown_names = [name for name in request.node_names if name not in {node.name for node in nodes}]
    if unknown_names:
        raise SlurmRefusal("Batch job submission failed: Invalid node name specified")
    if request.mem_mb is not None and request.mem_mb > MEMORY_MB:
        raise SlurmRefusal(f"Memory specification can not be satisfied\n{_UNAVAILABLE}")
    node = nodes[0]
    if (request.mem_per_cpu_mb or 0) * request.cpus_of_task * (request.ntasks_per_node or 1) > MEMORY_MB:
        raise SlurmRefusal(f"Memory specification can not be satisfied\n{_UNAVAILABLE}")
    if request.cpus_of_task * (request.ntasks_per_node or 1) > node.cpus:
        raise SlurmRefusal(f"CPU count per node can not be satisfied\n{_UNAVAILABLE}")
    if (request.nodes or 1) > len(nodes):
        return "PartitionNodeLimit"
    if place_job(request, free_resources(nodes, [])) is not None:
        return None
    asks_nodes = request.nodes is not None or request.ntasks_per_node is not None
    if not asks_nodes and not request.gpus_per_task and request.gpus_per_node <= node.gpus:
        return "PartitionConfig"
    raise SlurmRefusal(_UNAVAILABLE)


def check_names(request: JobRequest, partition: str | None, site: SiteNames) -> None:
    """Raise SlurmRefusal for a partition or a feature that the cluster does not have."""
    if partition not in (None, *site.all_partitions):
        raise SlurmRefusal(
            f"invalid partition specified: {partition}\nBatch job submission failed: Invalid partition name specified",
            hint=f"--partition=main; or start the cluster with: frog slurm up --emulator --partition {partition}",
        )
    features = re.findall(r"[A-Za-z][\w.-]*", request.constraint or "")
    if missing := [name for name in features if name not in site.features]:
        raise SlurmRefusal(
            "Batch job submission failed: Invalid feature specification",
            hint=f"start the cluster with: frog slurm up --emulator --feature {','.join(missing)}",
        )


def place_job(request: JobRequest, free: Sequence[FreeResources]) -> list[NodeAllocation] | None:
    """Return a job's allocation, or None if it must wait."""
    able = {part.node.name: most for part in free if (most := _most_tasks(request, part)) > 0}
    named = [part for part in free if part.node.name in request.node_names]
    if any(part.node.name not in able for part in named):
        return None
    others = [part for part in free if part.node.name in able and part not in named]
    for count in _node_counts(request, len(named), len(free)):
        chosen = _choose(count, request.ntasks or count, named, others, able)
        if chosen:
            tasks = _fill(chosen, able, request)
            return [_allocate(request, part, number) for part, number in zip(chosen, tasks, strict=True)]
    return None


def _most_tasks(request: JobRequest, part: FreeResources) -> int:
    if len(part.gpus) < request.gpus_per_node or (request.exclusive and not part.is_idle):
        return 0
    most = part.cpus // request.cpus_of_task
    if request.gpus_per_task:
        most = min(most, len(part.gpus) // request.gpus_per_task)
    if request.ntasks_per_node is None:
        return most
    return request.ntasks_per_node if most >= request.ntasks_per_node else 0


def _node_counts(request: JobRequest, num_named: int, num_nodes: int) -> Sequence[int]:
    """Return the numbers of nodes to try; without a requested number, the smallest that fits the tasks."""
    if request.nodes is not None:
        return [max(request.nodes, num_named)]
    if request.ntasks is not None and request.ntasks_per_node is not None:
        return [max(-(-request.ntasks // request.ntasks_per_node), num_named)]
    return range(max(1, num_named), num_nodes + 1) if request.ntasks is not None else [max(1, num_named)]


def _choose(
    count: int, ntasks: int, named: Sequence[FreeResources], others: Sequence[FreeResources], able: Mapping[str, int]
) -> list[FreeResources] | None:
    """Return the first `count` nodes that together have room for `ntasks`."""
    if len(named) + len(others) < count:
        return None
    first = [*named, *others][:count]
    largest = [*named, *sorted(others, key=lambda part: -able[part.node.name])][:count]
    for chosen in (first, largest):
        if sum(able[part.node.name] for part in chosen) >= ntasks:
            return chosen
    return None


def _fill(chosen: Sequence[FreeResources], able: Mapping[str, int], request: JobRequest) -> list[int]:
    """Return the tasks of each node: fill the first nodes, but put at least one task on each."""
    if request.ntasks is None:
        return [request.ntasks_per_node or 1] * len(chosen)
    counts, left = [], request.ntasks
    for place, part in enumerate(chosen):
        others = len(chosen) - place - 1
        counts.append(min(able[part.node.name], left - others))
        left -= counts[-1]
    return counts


def _allocate(request: JobRequest, part: FreeResources, tasks: int) -> NodeAllocation:
    if not request.exclusive:
        gpus = list(part.gpus[: request.gpus_per_node + tasks * (request.gpus_per_task or 0)])
        return NodeAllocation(part.node.name, tasks * request.cpus_of_task, gpus, tasks)
    if request.ntasks is None and request.ntasks_per_node is None:
        tasks = part.node.cpus // request.cpus_of_task
    return NodeAllocation(part.node.name, part.node.cpus, list(part.gpus), tasks)


# ---- a step's nodes --------------------------------------------------------------------------------------------------


def place_step(
    request: StepRequest,
    allocations: Sequence[NodeAllocation],
    busy_cpus: Mapping[str, int],
    busy_gpus: Collection[tuple[str, int]] = (),
) -> list[StepAllocation] | None:
    """Place the tasks of a step on nodes; None if other steps use its nodes.

    Raises:  SlurmRefusal if the whole job would be too small for it.
    """
    if request.num_nodes > len(allocations):
        raise SlurmRefusal(f"Only allocated {len(allocations)} nodes asked for {request.num_nodes}")
    if not set(request.node_names) <= {allocation.node for allocation in allocations}:
        raise SlurmRefusal("Unable to create step for job {job}: Requested node configuration is not available")
    whole = {allocation.node: allocation.cpus for allocation in allocations}
    parts = _step_on(request, allocations, whole)
    if parts is None:
        raise SlurmRefusal("Unable to create step for job {job}: More processors requested than permitted")
    honoured = request.per_node is not None and request.ntasks == request.per_node * request.num_nodes
    if honoured and any(part.tasks != request.per_node for part in parts):
        raise unknown(f"--ntasks-per-node={request.per_node} on a node where the job has fewer CPUs")
    if request.overlap:
        return parts
    left = {allocation.node: allocation.cpus - busy_cpus.get(allocation.node, 0) for allocation in allocations}
    if not request.exact:  # a node is busy if another step uses a part of it
        left = {name: cpus if cpus == whole[name] else 0 for name, cpus in left.items()}
    free = allocations
    if request.reserves_gpus:
        free = [
            replace(part, gpus=[gpu for gpu in part.gpus if (part.node, gpu) not in busy_gpus]) for part in allocations
        ]
    return _step_on(request, free, left)


def _step_on(
    request: StepRequest, allocations: Sequence[NodeAllocation], cpus: Mapping[str, int]
) -> list[StepAllocation] | None:
    """Distribute the tasks in turn over the nodes that have CPUs for them."""
    per_task = request.gpus_per_task or 0
    most_on = {each.node: cpus[each.node] // request.cpus_per_task for each in allocations}
    if per_task:
        most_on = {each.node: min(most_on[each.node], len(each.gpus) // per_task) for each in allocations}
    able = [each for each in allocations if most_on[each.node] > 0]
    in_order = sorted(able, key=lambda each: each.node not in request.node_names)
    chosen_names = {each.node for each in in_order[: request.num_nodes]}
    chosen = [each for each in allocations if each.node in chosen_names]
    if len(chosen) < request.num_nodes or not set(request.node_names[: request.num_nodes]) <= chosen_names:
        return None
    most = [most_on[each.node] for each in chosen]
    counts = [0] * len(chosen)
    while sum(counts) < request.ntasks:
        before = sum(counts)
        for place in range(len(chosen)):
            if counts[place] < most[place] and sum(counts) < request.ntasks:
                counts[place] += 1
        if sum(counts) == before:
            return None
    return [
        StepAllocation(
            each.node,
            tasks,
            tasks * request.cpus_per_task if request.exact else cpus[each.node],
            each.gpus[: tasks * per_task] if per_task and not request.all_gpus else each.gpus,
        )
        for each, tasks in zip(chosen, counts, strict=True)
    ]


def check_step_gpus(request: StepRequest, job: EmulatedJob) -> None:
    """Refuse a step that requests GPUs that its job does not have. Raises SlurmRefusal."""
    per_task, of_job = request.gpus_per_task, job.request.gpus_per_task
    if not per_task and not request.gpus_per_node:
        return
    said, most = None, max(len(allocation.gpus) for allocation in job.allocations)
    if request.gpus_per_node and most and request.gpus_per_node != most:
        raise unknown(f"{request.gpus_per_node} GPUs per node in a step of a job with {most} per node")
    if not most:
        said = "Step requested GRES but job doesn't have GRES"
    elif of_job is not None and per_task is not None and per_task > of_job:
        said = f"Step requested gres_per_task=gpu:{per_task} is more than the job's gres_per_task=gpu:{of_job}"
    if said:
        raise SlurmRefusal(
            f"{said}\nUnable to create step for job {job.number}: Invalid generic resource (gres) specification"
        )
