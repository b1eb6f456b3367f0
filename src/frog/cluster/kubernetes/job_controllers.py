"""The controllers of Jobs: one runs the pods of a Job; the other creates, restarts and ends the Jobs of a set."""

from __future__ import annotations

import itertools
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from frog.cluster.kubernetes.local_pod import Pod
from frog.cluster.kubernetes.objects import JobSet, KubernetesJob, Manifest, ReplicatedJob
from frog.cluster.kubernetes.workloads import attempt

_BACK_OFF_S = 1.0
_LONGEST_BACK_OFF_S = 30.0
BACK_OFF_TEXT = "the retry delay is 1 s, 2 s, 4 s, … (on a real cluster: 10 s, 20 s, …)"


@dataclass
class Completion:
    """One index of the Job: its running pod, or the time of its next attempt, or its completion."""

    pod: Pod | None = None
    resting: Pod | None = None
    """The failed pod whose container the next attempt restarts; None if the next attempt creates a new pod."""
    next_at: float = 0.0
    done: bool = False


class JobController:
    """Runs the pods of one Job.

    numbers: yields the number of the cluster's next pod. gpus: returns the GPUs that the pod in a place of the Job
    sees.
    """

    def __init__(
        self,
        manifest: Manifest,
        job: KubernetesJob,
        scratch: Path,
        numbers: Iterator[int],
        gpus: Callable[[int], str | None],
    ) -> None:
        self.manifest, self.job, self.scratch = manifest, job, scratch
        self.completions = [Completion() for _ in range(job.completions)]
        self.failures = 0
        self.reason: tuple[str, str] | None = None
        """Reason why the Job failed: Kubernetes' term, and a description."""
        self.stopping = False
        """True after a request to end the pods and to start no others."""
        self._numbers, self._gpus = numbers, gpus
        self._start_at = time.monotonic()

    @property
    def pods(self) -> list[Pod]:
        """The running pods."""
        return [completion.pod for completion in self.completions if completion.pod is not None]

    @property
    def complete(self) -> bool:
        return all(completion.done for completion in self.completions)

    @property
    def ready(self) -> bool:
        """True if as many pods as run in parallel are ready or have completed."""
        completed = sum(completion.done for completion in self.completions)
        return completed + sum(pod.ready for pod in self.pods) >= self.job.at_once

    @property
    def over(self) -> bool:
        return not self.pods and (self.stopping or self.reason is not None or self.complete)

    def stop(self) -> None:
        self.stopping = True

    def kill(self) -> None:
        for pod in self.pods:
            pod.kill()

    def tick(self) -> None:
        """Start pods that are due, check the running ones, and judge those that ended."""
        if self.stopping or self.reason is not None:
            for pod in self.pods:
                pod.stop()
        else:
            self._start_pods()
            if self.job.deadline_s is not None and time.monotonic() - self._start_at > self.job.deadline_s:
                self.reason = ("DeadlineExceeded", f"the Job ran longer than {self.job.deadline_s} s")
        for completion in self.completions:
            if completion.pod is not None:
                completion.pod.read()
                completion.pod.ask()
                completion.pod.enforce()
                self._look_at_end(completion, completion.pod)

    def _start_pods(self) -> None:
        """Start pods up to the Job's parallelism, lowest indexes first."""
        running = sum(completion.pod is not None for completion in self.completions)
        for index, completion in enumerate(self.completions):
            if running >= self.job.parallelism or completion.done or completion.pod is not None:
                continue
            running += 1  # an index counts against parallelism while its next pod waits
            if time.monotonic() < completion.next_at:
                continue
            if completion.resting is not None:
                completion.pod, completion.resting = completion.resting, None
                completion.pod.start_again()
                say(f"pod {completion.pod.name} restarted")
            else:
                gpus = self._gpus(index % self.job.at_once)
                completion.pod = Pod(self.manifest, self.job, index, next(self._numbers), self.scratch, gpus)
                say(f"pod {completion.pod.name} started: {completion.pod.address}")

    def _look_at_end(self, completion: Completion, pod: Pod) -> None:
        code = pod.poll()
        if code is None:
            return
        pod.close()
        completion.pod = None
        how = f"pod {pod.name} ended with exit code {code}" + (f": {pod.why}" if pod.why else "")
        if code == 0 and pod.why is None:
            completion.done = True
            say(how)
        elif self.stopping or self.reason is not None:
            say(how)
        elif self._judge(how, code):
            back_off_s = min(_BACK_OFF_S * 2 ** max(0, self.failures - 1), _LONGEST_BACK_OFF_S)
            completion.next_at = time.monotonic() + back_off_s
            if self.job.template.restart_policy == "OnFailure":
                completion.resting = pod
        if completion.resting is None:
            self._remove(pod)

    def _judge(self, how: str, code: int) -> bool:
        """Apply the Job's rules to a failure; return True if another attempt follows."""
        action = next((rule.action for rule in self.job.rules if rule.matches(code)), "Count")
        if action == "FailJob":
            self.reason = ("PodFailurePolicy", f"{how}, for which a rule's action is FailJob")
        elif action == "Ignore":
            say(f"{how}; this failure does not count")
        else:
            self.failures += 1
            say(f"{how} (failure {self.failures}, backoffLimit {self.job.backoff_limit})")
            if self.failures > self.job.backoff_limit:
                self.reason = ("BackoffLimitExceeded", how)
        return self.reason is None

    def _remove(self, pod: Pod) -> None:
        """Remove the pod's volumes; keep its log and its spec, which explain what happened."""
        shutil.rmtree(pod.folder / "volumes", ignore_errors=True)


def say(line: str) -> None:
    print(f"{line}\n", end="", file=sys.stderr, flush=True)


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
        controllers = [self.current.get(job.name) for job in member.jobs]
        return all(
            controller is not None and (controller.complete or (status == "Ready" and controller.ready))
            for controller in controllers
        )

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
        matches = ((rule, controller) for rule in self.job_set.rules for controller in failed
                   if rule.matches(self._member_of(controller).name, _failure(controller)[0]))  # fmt: skip
        if (match := next(matches, None)) is not None:
            action, culprit = match[0].action, match[1]
        if self.job_set.kind == "Job":
            self._fail(_failure(culprit))
        elif action == "FailJobSet":
            self._fail(("FailJobSetFailurePolicyAction", _describe_failure(culprit)))
        elif not action.endswith("IgnoreMaxRestarts") and self._counted >= self.job_set.max_restarts:
            word = "ReachedMaxRestarts" if self.job_set.max_restarts else "FailedJobs"
            self._fail((word, _describe_failure(culprit)))
        else:
            self._restart(action, culprit)

    def _restart(self, action: str, culprit: JobController) -> None:
        counts = not action.endswith("IgnoreMaxRestarts")
        self._counted += counts
        which = f"restart {self._counted} of {self.job_set.max_restarts}" if counts else "this restart does not count"
        if action.startswith("RestartJobSet"):
            self.restarts += 1
            again = list(self.current.values())
            say(f"{_describe_failure(culprit)}: all Jobs start again ({which})")
        else:
            again = [culprit]
            say(f"{_describe_failure(culprit)}: it starts again ({which})")
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


def _describe_failure(controller: JobController) -> str:
    word, what = _failure(controller)
    return f"Job {controller.job.name} failed ({word}: {what})"
