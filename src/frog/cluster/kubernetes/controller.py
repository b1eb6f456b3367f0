"""The Job controller, the kubelet and the name server of a cluster on one machine.

`python -m frog.cluster.kubernetes.controller SCRATCH EXTRA...` runs the pods of SCRATCH/manifest.yaml to the end of its
Job, in separate namespaces: the system ends all pods whenever this process ends, for any reason.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import ClassVar

from frog.cluster.kubernetes.dns import NameServer
from frog.cluster.kubernetes.manifest import Manifest, read_manifest
from frog.cluster.kubernetes.pods import DOMAIN, NAME_SERVER, Pod
from frog.core import namespaces
from frog.core.schema import Typed, write_typed

_TICK_S = 0.02
_DNS_DELAY_S = 2.0
"""Delay between the start of a pod and the moment when other pods can look its name up, as in a real cluster."""

_BACK_OFF_S = 1.0
_LONGEST_BACK_OFF_S = 30.0
BACK_OFF_TEXT = "the retry delay is 1 s, 2 s, 4 s, … (on a real cluster: 10 s, 20 s, …)"
MANIFEST, OUTCOME = "manifest.yaml", "outcome.json"
"""Names in the scratch folder: the manifest to run, and its outcome."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Outcome(Typed, frozen=True):
    """The content of outcome.json."""

    KIND: ClassVar[str] = "the outcome of a Job"

    entered: bool
    """True if this system allows the user to create namespaces."""
    reason: tuple[str, str] | None = None
    """Reason why the Job failed: Kubernetes' term, and a description."""
    error: str | None = None


@dataclass
class _Completion:
    """One index of the Job: its running pod, or the time of its next attempt, or its completion."""

    pod: Pod | None = None
    resting: Pod | None = None
    """The failed pod whose container the next attempt restarts; None if the next attempt creates a new pod."""
    next_at: float = 0.0
    done: bool = False


class JobController:
    """Runs the pods of one manifest."""

    def __init__(self, manifest: Manifest, scratch: Path) -> None:
        self.manifest, self.job, self.scratch = manifest, manifest.job, scratch
        self.completions = [_Completion() for _ in range(self.job.completions)]
        self.failures = 0
        self.reason: tuple[str, str] | None = None
        """Reason why the Job failed: Kubernetes' term, and a description."""
        self.signals: list[int] = []
        self._num_pods = 0
        self._start_at = time.monotonic()
        self._names = NameServer(NAME_SERVER)

    def run(self) -> None:
        """Run the Job to its end."""
        for number in _SIGNALS:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        while not self._over():
            self._tick()
            time.sleep(_TICK_S)
        self._names.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)

    def _over(self) -> bool:
        running = any(completion.pod is not None for completion in self.completions)
        ending = self.reason is not None or bool(self.signals)
        return not running and (ending or all(completion.done for completion in self.completions))

    def _tick(self) -> None:
        if self.signals or self.reason is not None:
            for completion in self.completions:
                if completion.pod is not None:
                    completion.pod.stop()
                    if len(self.signals) > 1:
                        completion.pod.kill()
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
        self._publish_names()

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
                _say(f"pod {completion.pod.name} restarted")
            else:
                self._num_pods += 1
                completion.pod = Pod(self.manifest, index, self._num_pods, self.scratch, self._gpus(index))
                _say(f"pod {completion.pod.name} started: {completion.pod.address}")

    def _gpus(self, index: int) -> str | None:
        """Return the GPUs that a pod sees: its own, or none if this machine has too few for all parallel pods."""
        wanted = self.job.template.container.gpus
        return visible_gpus(wanted, index % self.job.parallelism, self.job.parallelism, count_gpus())

    def _look_at_end(self, completion: _Completion, pod: Pod) -> None:
        code = pod.poll()
        if code is None:
            return
        pod.close()
        completion.pod = None
        how = f"pod {pod.name} ended with exit code {code}" + (f": {pod.why}" if pod.why else "")
        if code == 0 and pod.why is None:
            completion.done = True
            _say(how)
        elif self.signals or self.reason is not None:
            _say(how)
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
            _say(f"{how}; this failure does not count")
        else:
            self.failures += 1
            _say(f"{how} (failure {self.failures}, backoffLimit {self.job.backoff_limit})")
            if self.failures > self.job.backoff_limit:
                self.reason = ("BackoffLimitExceeded", how)
        return self.reason is None

    def _remove(self, pod: Pod) -> None:
        """Remove the pod's volumes; keep its log and its spec, which explain what happened."""
        shutil.rmtree(pod.folder / "volumes", ignore_errors=True)

    def _publish_names(self) -> None:
        """Publish the name of every pod that a headless Service of its subdomain selects, after the delay."""
        service = self.manifest.services.get(self.job.template.subdomain or "")
        addresses = {}
        for completion in self.completions:
            pod = completion.pod or completion.resting
            if pod is None or service is None or not service.selects(pod.labels):
                continue
            late = pod.seen_running_s >= _DNS_DELAY_S
            if late and (service.publish_not_ready or (pod.ready and completion.resting is None)):
                domain = f"{service.name}.{self.job.namespace}.{DOMAIN}"
                addresses[f"{pod.host}.{domain}"] = pod.address
        self._names.addresses = addresses
        self._names.serve()


def visible_gpus(per_pod: int, index: int, num_pods: int, available: int) -> str | None:
    """Return CUDA_VISIBLE_DEVICES of a pod; None to leave it unset, if neither the pod nor the machine has GPUs."""
    if per_pod == 0 and available == 0:
        return None
    if per_pod * num_pods > available:
        return ""
    return ",".join(str(number) for number in range(index * per_pod, (index + 1) * per_pod))


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs of this machine."""
    return sum(1 for path in Path("/dev").glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit())


def _say(line: str) -> None:
    print(f"{line}\n", end="", file=sys.stderr, flush=True)


def _enter_cluster() -> int | None:
    """Create the cluster's namespaces and fork: return None in the child, and the child's exit code in the parent.

    Process 1 of the cluster only reaps orphaned processes; until it has done so, the system does not let their pods
    end.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until a child exists that can receive them
    namespaces.die_with_parent()
    namespaces.unshare_as(namespaces.PROCESSES | namespaces.NETWORK, 0, 0)
    if first := os.fork():
        return _forward_and_reap(first)
    namespaces.die_with_parent()
    namespaces.separate_mounts()
    namespaces.mount_proc("/proc")
    if controller := os.fork():
        return _forward_and_reap(controller)
    namespaces.die_with_parent()
    namespaces.loopback_up()
    return None


def _forward_and_reap(child: int) -> int:
    """Forward signals to a child until it ends, and reap all other children. Return the exit code of the first."""

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _SIGNALS:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def main(arguments: Sequence[str]) -> int:
    """Run SCRATCH/manifest.yaml; write the outcome to SCRATCH/outcome.json."""
    scratch, extra = Path(arguments[0]), arguments[1:]
    entered, reason, error_text = False, None, None
    try:
        code = _enter_cluster()
        if code is not None:
            return code
        entered = True
        controller = JobController(read_manifest(scratch / MANIFEST, extra), scratch)
        controller.run()
        reason = controller.reason
    except OSError as error:
        error_text = str(error)
    write_typed(scratch / OUTCOME, Outcome(entered=entered, reason=reason, error=error_text))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
