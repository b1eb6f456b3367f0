"""A cluster on one machine: its loop, its name server, and the process in which both run.

`python -m frog.cluster.kubernetes.controller SCRATCH EXTRA...` runs the pods of SCRATCH/manifest.yaml to the end of its
Jobs, in separate namespaces: the system ends all pods whenever this process ends, for any reason.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import ClassVar

from frog.cluster.kubernetes.dns import NameServer
from frog.cluster.kubernetes.job_set_controller import JobSetController
from frog.cluster.kubernetes.local_pod import DOMAIN, NAME_SERVER
from frog.cluster.kubernetes.manifest import read_manifest
from frog.cluster.kubernetes.objects import Manifest
from frog.core import namespaces
from frog.core.schema import Typed, write_typed

_TICK_S = 0.02
_DNS_DELAY_S = 2.0
"""Delay between the start of a pod and the moment when other pods can look its name up, as in a real cluster."""

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


class Cluster:
    """The loop that runs a manifest's Jobs and answers their pods' questions for names."""

    def __init__(self, manifest: Manifest, scratch: Path) -> None:
        self.manifest = manifest
        self.jobs = JobSetController(manifest, scratch, count_gpus())
        self.signals: list[int] = []
        self._names = NameServer(NAME_SERVER)

    def run(self) -> None:
        """Run the Jobs to their end."""
        for number in _SIGNALS:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        while not self.jobs.over:
            self.tick()
            time.sleep(_TICK_S)
        self._names.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)

    def tick(self) -> None:
        """Pass signals on, let the Jobs proceed, and answer questions for names."""
        if self.signals:
            self.jobs.stop()
        if len(self.signals) > 1:
            self.jobs.kill()
        self.jobs.tick()
        self._publish_names()

    def _publish_names(self) -> None:
        """Publish the name of every pod that a headless Service of its subdomain selects, after the delay."""
        addresses = {}
        for controller in self.jobs.controllers:
            service = self.manifest.services.get(controller.job.template.subdomain or "")
            for completion in controller.completions:
                pod = completion.pod or completion.resting
                if pod is None or service is None or not service.selects(pod.labels):
                    continue
                late = pod.seen_running_s >= _DNS_DELAY_S
                if late and (service.publish_not_ready or (pod.ready and completion.resting is None)):
                    domain = f"{service.name}.{controller.job.namespace}.{DOMAIN}"
                    addresses[f"{pod.host}.{domain}"] = pod.address
        self._names.addresses = addresses
        self._names.serve()


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs of this machine."""
    return sum(1 for path in Path("/dev").glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit())


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
        cluster = Cluster(read_manifest(scratch / MANIFEST, extra), scratch)
        cluster.run()
        reason = cluster.jobs.reason
    except OSError as error:
        error_text = str(error)
    write_typed(scratch / OUTCOME, Outcome(entered=entered, reason=reason, error=error_text))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
