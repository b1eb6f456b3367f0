"""`frog run --from FILE`: runs a Job's pods as processes of this machine, to try a manifest before using a cluster."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from frog.cluster.kubernetes.controller import MANIFEST, OUTCOME, Outcome, count_gpus
from frog.cluster.kubernetes.job_controller import BACK_OFF_TEXT
from frog.cluster.kubernetes.local_pod import hidden_by
from frog.cluster.kubernetes.manifest import read_manifest
from frog.cluster.kubernetes.objects import JobSet, KubernetesJob, Manifest
from frog.core.env import child_env
from frog.core.errors import LaunchError, UsageError, signal_code
from frog.core.files import scratch_folder
from frog.core.machine import PROCESS_BYTES, check_memory
from frog.core.schema import read_typed
from frog.core.units import count

_MOST_JOBS = 20
"""Most Jobs of a set to list."""


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
    command = [sys.executable, "-P", "-m", "frog.cluster.kubernetes.controller", str(scratch), *extra]
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
    has = f"{there} GPU{'s' if there != 1 else ''}" if there else "none"
    what = "each pod sees its own" if wanted <= there else "the pods see none and run on the CPU"
    return [f"  nvidia.com/gpu: {wanted} for all pods; this machine has {has}: {what}"]
