"""Selection of the next job: dependencies, holds, arrays, and the order of the queue. No clock, no processes."""

from __future__ import annotations

from collections.abc import Sequence

from frog.cluster.emulator.emulated_job import COMPLETED, PENDING, EmulatedJob, Node, NodeAllocation, is_called
from frog.cluster.emulator.layout import free_resources, place_job


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
    states = [_one_state(kind, other) for name in names for other in find_jobs(jobs, name)]
    return next((state for state in ("failed", "unfulfilled") if state in states), "fulfilled")


def _place(job: EmulatedJob, jobs: Sequence[EmulatedJob]) -> int:
    return next(place for place, other in enumerate(jobs) if other is job)


def _one_state(kind: str, other: EmulatedJob) -> str:
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
