"""The JobSet controller: creates the Jobs of a set in order, restarts them together, and decides how the set ends."""

from __future__ import annotations

import itertools
from pathlib import Path

from frog.cluster.kubernetes.job_controller import JobController, say
from frog.cluster.kubernetes.jobset import attempt
from frog.cluster.kubernetes.objects import JobSet, KubernetesJob, Manifest, ReplicatedJob


class JobSetController:
    """Runs a manifest's set of Jobs. A Job alone is a set that never restarts."""

    def __init__(self, manifest: Manifest, scratch: Path, num_gpus: int) -> None:
        self.manifest, self.scratch, self.job_set = manifest, scratch, manifest.job_set
        self.current: dict[str, JobController] = {}
        """Controllers of this attempt's Jobs, by name; a Job that waits for another has none yet."""
        self.leaving: list[JobController] = []
        """Controllers of deleted Jobs whose pods are ending."""
        self.reason: tuple[str, str] | None = None
        """Reason why the set failed: Kubernetes' term, and a description."""
        self.stopping = False
        self.restarts = 0
        """How often all Jobs were created again."""
        self._counted = 0
        """Restarts that count against `maxRestarts`."""
        self._gpus = _GpuPlaces(self.job_set, num_gpus)
        self._numbers = itertools.count(1)
        self._complete = False

    @property
    def controllers(self) -> list[JobController]:
        return [*self.current.values(), *self.leaving]

    @property
    def over(self) -> bool:
        ending = self._complete or self.stopping or self.reason is not None
        return ending and all(controller.over for controller in self.controllers)

    def stop(self) -> None:
        """Ask all pods to stop."""
        self.stopping = True
        for controller in self.controllers:
            controller.stop()

    def kill(self) -> None:
        for controller in self.controllers:
            controller.kill()

    def tick(self) -> None:
        """Create Jobs that are due, check all of them, and judge those that ended."""
        ending = self._complete or self.stopping or self.reason is not None
        if not ending:
            self._create_jobs()
        for controller in self.controllers:
            controller.tick()
        self.leaving = [controller for controller in self.leaving if not controller.over]
        if not ending:
            self._look_at_ends()

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _create_jobs(self) -> None:
        blocked = {controller.job.name for controller in self.leaving}
        if blocked and self.job_set.wait_for_end:
            return
        for member in self.job_set.members:
            if not all(self._reached(name, status) for name, status in member.after):
                continue
            for job in member.jobs:
                if job.name not in self.current and job.name not in blocked:
                    self.current[job.name] = self._controller(job)

    def _controller(self, job: KubernetesJob) -> JobController:
        again = job if self.restarts == 0 else attempt(job, self.restarts)
        gpus = self._gpus
        return JobController(self.manifest, again, self.scratch, self._numbers, lambda place: gpus.visible(job, place))

    def _reached(self, name: str, status: str) -> bool:
        """True if all Jobs of another member are complete, or at least ready."""
        member = next(member for member in self.job_set.members if member.name == name)
        found = [self.current.get(job.name) for job in member.jobs]
        return all(one is not None and (one.complete or (status == "Ready" and one.ready)) for one in found)

    # ---- ending ------------------------------------------------------------------------------------------------------

    def _look_at_ends(self) -> None:
        failed = [controller for controller in self.current.values() if controller.reason is not None]
        if failed:
            self._apply_failure_policy(failed)
        elif self._succeeded():
            self._complete = True
            for controller in self.current.values():
                controller.stop()

    def _succeeded(self) -> bool:
        targets = self.job_set.succeeding
        names = [job.name for member in self.job_set.members for job in member.jobs
                 if not targets or member.name in targets]  # fmt: skip
        complete = [name in self.current and self.current[name].complete for name in names]
        return any(complete) if self.job_set.any_succeeds else all(complete)

    def _apply_failure_policy(self, failed: list[JobController]) -> None:
        """Do what the first rule that matches a failed Job says; restart all Jobs if none matches."""
        action, culprit = "RestartJobSet", failed[0]
        matches = ((rule, one) for rule in self.job_set.rules for one in failed
                   if rule.matches(self._member_of(one).name, _failure(one)[0]))  # fmt: skip
        if (match := next(matches, None)) is not None:
            action, culprit = match[0].action, match[1]
        if self.job_set.kind == "Job":
            self._fail(_failure(culprit))
        elif action == "FailJobSet":
            self._fail(("FailJobSetFailurePolicyAction", _words(culprit)))
        elif not action.endswith("IgnoreMaxRestarts") and self._counted >= self.job_set.max_restarts:
            word = "ReachedMaxRestarts" if self.job_set.max_restarts else "FailedJobs"
            self._fail((word, _words(culprit)))
        else:
            self._restart(action, culprit)

    def _restart(self, action: str, culprit: JobController) -> None:
        counts = not action.endswith("IgnoreMaxRestarts")
        self._counted += counts
        which = f"restart {self._counted} of {self.job_set.max_restarts}" if counts else "this restart does not count"
        if action.startswith("RestartJobSet"):
            self.restarts += 1
            again = list(self.current.values())
            say(f"{_words(culprit)}: all Jobs start again ({which})")
        else:
            again = [culprit]
            say(f"{_words(culprit)}: it starts again ({which})")
        for controller in again:
            controller.stop()
            del self.current[controller.job.name]
        self.leaving += again

    def _fail(self, reason: tuple[str, str]) -> None:
        self.reason = reason
        for controller in self.current.values():
            controller.stop()

    def _member_of(self, controller: JobController) -> ReplicatedJob:
        name = controller.job.name
        return next(member for member in self.job_set.members if name in (job.name for job in member.jobs))


class _GpuPlaces:
    """Divides this machine's GPUs among the pods of all Jobs, if there are enough for all pods in parallel."""

    def __init__(self, job_set: JobSet, num_gpus: int) -> None:
        self._first: dict[str, int] = {}
        total = 0
        for job in job_set.jobs:
            self._first[job.name] = total
            total += job.template.container.gpus * job.at_once
        self._total, self._num_gpus = total, num_gpus

    def visible(self, job: KubernetesJob, place: int) -> str | None:
        """Return CUDA_VISIBLE_DEVICES of the pod in a place of its Job; None to leave it unset."""
        wanted = job.template.container.gpus
        return visible_gpus(wanted, self._first[job.name] + place * wanted, self._total, self._num_gpus)


def visible_gpus(per_pod: int, first: int, total: int, available: int) -> str | None:
    """Return CUDA_VISIBLE_DEVICES of a pod; None to leave it unset, if neither the pod nor the machine has GPUs.

    first: number of the pod's first GPU. total: GPUs of all pods.
    """
    if per_pod == 0 and available == 0:
        return None
    if total > available:
        return ""
    return ",".join(str(number) for number in range(first, first + per_pod))


def _failure(controller: JobController) -> tuple[str, str]:
    assert controller.reason is not None
    return controller.reason


def _words(controller: JobController) -> str:
    word, what = _failure(controller)
    return f"Job {controller.job.name} failed ({word}: {what})"
