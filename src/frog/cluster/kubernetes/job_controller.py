"""The Job controller: runs the pods of one Job to its end."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from frog.cluster.kubernetes.local_pod import Pod
from frog.cluster.kubernetes.objects import KubernetesJob, Manifest

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
