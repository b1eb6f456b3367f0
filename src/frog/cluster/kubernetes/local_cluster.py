"""`frog run --from FILE`: runs a Job's pods as processes of this machine, to try a manifest before using a cluster.

The cluster is a process of its own: `python -m frog.cluster.kubernetes.local_cluster SCRATCH EXTRA...` runs the pods of
SCRATCH/manifest.yaml to the end of its Jobs, in separate namespaces, so the system ends all pods whenever that process
ends, for any reason. It answers the pods' questions for names over UDP (RFC 1035).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import ClassVar

from frog.cluster.kubernetes.job_controllers import BACK_OFF_TEXT, JobSetController
from frog.cluster.kubernetes.local_pod import DOMAIN, NAME_SERVER, hidden_by
from frog.cluster.kubernetes.manifest import read_manifest
from frog.cluster.kubernetes.objects import JobSet, KubernetesJob, Manifest
from frog.core import namespaces
from frog.core.env import child_env
from frog.core.errors import LaunchError, UsageError, signal_code
from frog.core.files import scratch_folder
from frog.core.machine import PROCESS_BYTES, check_memory
from frog.core.schema import Typed, read_typed, write_typed
from frog.core.units import count

_MOST_JOBS = 20
"""Most Jobs of a set to list."""

_TICK_S = 0.02
_DNS_DELAY_S = 2.0
"""Delay between the start of a pod and the moment when other pods can look its name up, as in a real cluster."""

MANIFEST, OUTCOME = "manifest.yaml", "outcome.json"
"""Names in the scratch folder: the manifest to run, and its outcome."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_RESPONSE, _OPCODE, _AUTHORITATIVE, _RECURSION = 0x8000, 0x7800, 0x0400, 0x0100
_NO_SUCH_NAME, _NOT_IMPLEMENTED = 3, 4
_TYPE_A, _CLASS_IN = 1, 1
_TTL_S = 1
_HEADER = struct.Struct("!6H")


# ---- the command -----------------------------------------------------------------------------------------------------


def run_manifest(path: Path, *, extra: Sequence[str] = ()) -> int:
    """Run the pods of the Job in `path` until it is complete or has failed; return the exit code.

    `extra` words are added to the container's arguments.

    Raises:  ManifestError with every mistake of the file; UsageError if this machine cannot run pods; LaunchError if
    the Job fails.
    """
    if not sys.platform.startswith("linux"):
        raise UsageError(
            f"pods on this machine need Linux namespaces, but this is {sys.platform}",
            "run it in a Linux virtual machine or container; `frog run --nodes 2x4` works here",
        )
    manifest = read_manifest(path, extra)
    check_volumes(manifest)
    at_once = sum(job.at_once for job in manifest.job_set.jobs)
    check_memory(at_once * PROCESS_BYTES, f"{path}: {at_once} pods in parallel", "lower spec.parallelism")
    print(_summary(path, manifest), file=sys.stderr, flush=True)
    with scratch_folder("frog-pods-") as scratch:
        (scratch / MANIFEST).write_text(manifest.text)
        return _run(extra, manifest, scratch)


def check_volumes(manifest: Manifest) -> None:
    """Raise UsageError if a volume's mount hides this machine's Python."""
    mounts = [(job.template, mount) for job in manifest.job_set.jobs for mount in job.template.container.mounts]
    for template, mount in mounts:
        volume, hidden = template.volumes[mount.volume], hidden_by(mount.path)
        if hidden and (volume.claim is not None or volume.config_map is not None):
            raise UsageError(
                f"the pods' volume {mount.volume} at {mount.path} hides this machine's Python ({hidden[0]})",
                f"mount it elsewhere, or use an environment outside of {mount.path}",
            )


def _run(extra: Sequence[str], manifest: Manifest, scratch: Path) -> int:
    command = [sys.executable, "-P", "-m", "frog.cluster.kubernetes.local_cluster", str(scratch), *extra]
    process = subprocess.Popen(command, env=child_env(), start_new_session=True)
    try:
        with _pass_signals_on(process) as received:
            code = process.wait()
    finally:
        process.kill()  # this also kills all pods; no effect if it has ended
        process.wait()
    if received:
        return signal_code(received[0])
    try:
        outcome = read_typed(scratch / OUTCOME, Outcome, error=LaunchError)
    except FileNotFoundError:
        raise LaunchError(f"the local cluster ended with exit code {code}", "its own message is above") from None
    if outcome.error is not None:
        raise UsageError(*_refusal(outcome.entered, outcome.error))
    if outcome.reason is not None:
        word, what = outcome.reason
        raise LaunchError(f"{_title(manifest.job_set)} failed ({word}): {what}", "see the output of its pods above")
    print(f"{_title(manifest.job_set)} is complete", file=sys.stderr, flush=True)
    return 0


def _refusal(entered: bool, error: str) -> tuple[str, str]:
    if entered:
        return f"the local cluster: {error}", "check whether another program uses that address"
    return (
        f"this system does not allow you to create namespaces, which pods on one machine need: {error}",
        "containers and some distributions forbid it (kernel.unprivileged_userns_clone, AppArmor); run it outside "
        "the container, or as root. `frog run --nodes 2x4` does not need them",
    )


@contextmanager
def _pass_signals_on(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Stop the pods on SIGINT or SIGTERM while inside; a second signal kills them. Yields the received signals."""
    received: list[int] = []
    kinds = iter([signal.SIGTERM])  # a signal cannot interrupt `next`, so only one counts as first

    def forward(number: int, frame: FrameType | None) -> None:
        kind = next(kinds, signal.SIGINT)
        received.append(number)
        if process.poll() is None:
            process.send_signal(kind)  # the system would merge two simultaneous signals of one kind

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _title(job_set: JobSet) -> str:
    return f"{job_set.kind} {job_set.name}"


def _summary(path: Path, manifest: Manifest) -> str:
    """Return a summary of what will run, and of the differences from a real cluster."""
    jobs = manifest.job_set.jobs
    lines = [f"{path}: {_title(manifest.job_set)}{'' if manifest.job_set.kind == 'Job' else ':'}"]
    if manifest.job_set.kind == "Job":
        lines[0] += f", {_pods(jobs[0])}"
    else:
        lines += [f"  Job {job.name}: {_pods(job)}" for job in jobs[:_MOST_JOBS]]
        lines += [f"  and {len(jobs) - _MOST_JOBS} more Jobs"] if len(jobs) > _MOST_JOBS else []
    claims = {volume.claim for job in jobs for volume in job.template.volumes.values() if volume.claim is not None}
    lines += [f"  claim {claim}: the folder {Path(manifest.claim(claim).folder).resolve()}" for claim in sorted(claims)]
    lines += _gpu_lines(jobs)
    lines += [f"  {note}" for note in dict.fromkeys(manifest.notes)]
    lines.append(f"  after a failure {BACK_OFF_TEXT}")
    lines.append("  the pods share an isolated network without internet access")
    return "\n".join(lines)


def _pods(job: KubernetesJob) -> str:
    return f"{count(job.completions, 'pod')} of one container, {job.at_once} in parallel"


def _gpu_lines(jobs: list[KubernetesJob]) -> list[str]:
    """Return a line about GPUs if a pod requests any."""
    wanted, there = sum(job.template.container.gpus * job.at_once for job in jobs), count_gpus()
    if not wanted:
        return []
    has = count(there, "GPU") if there else "none"
    what = "each pod sees its own" if wanted <= there else "the pods see none and run on the CPU"
    return [f"  nvidia.com/gpu: {wanted} for all pods; this machine has {has}: {what}"]


# ---- the cluster's loop and its names --------------------------------------------------------------------------------


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


class NameServer:
    """Answers queries from the current content of `addresses`."""

    def __init__(self, address: str) -> None:
        self.addresses: dict[str, str] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        self._socket.setblocking(False)

    def serve(self) -> None:
        """Answer every pending query."""
        while True:
            try:
                question, sender = self._socket.recvfrom(512)
            except BlockingIOError:
                return
            if (reply := dns_reply(question, self.addresses)) is not None:
                self._socket.sendto(reply, sender)

    def close(self) -> None:
        self._socket.close()


def dns_reply(question: bytes, addresses: dict[str, str]) -> bytes | None:
    """Return the reply to one message: the address, no data for other types of a known name, or "no such name".

    Returns None if the message is not a query.
    """
    try:
        number, flags, count, *_ = _HEADER.unpack_from(question)
        if flags & _RESPONSE or count != 1:
            return None
        name, end = _read_name(question, _HEADER.size)
        kind, kind_class = struct.unpack_from("!2H", question, end)
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    asked = question[_HEADER.size : end + 4]
    flags = _RESPONSE | _AUTHORITATIVE | (flags & (_OPCODE | _RECURSION))
    if flags & _OPCODE:
        return _HEADER.pack(number, flags | _NOT_IMPLEMENTED, 1, 0, 0, 0) + asked
    address = addresses.get(name)
    if address is None:
        return _HEADER.pack(number, flags | _NO_SUCH_NAME, 1, 0, 0, 0) + asked
    if (kind, kind_class) != (_TYPE_A, _CLASS_IN):
        return _HEADER.pack(number, flags, 1, 0, 0, 0) + asked
    pointer_to_name = 0xC000 | _HEADER.size
    record = struct.pack("!HHHIH", pointer_to_name, _TYPE_A, _CLASS_IN, _TTL_S, 4) + socket.inet_aton(address)
    return _HEADER.pack(number, flags, 1, 1, 0, 0) + asked + record


def _read_name(message: bytes, at: int) -> tuple[str, int]:
    """Return the name at offset `at`, in lower case, and the offset after it."""
    labels = []
    while length := message[at]:
        labels.append(message[at + 1 : at + 1 + length].decode("ascii").lower())
        at += 1 + length
    return ".".join(labels), at + 1


# ---- the cluster's process -------------------------------------------------------------------------------------------


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
