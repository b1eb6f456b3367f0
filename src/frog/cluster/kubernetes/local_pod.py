"""One pod as local processes: its environment and files, its output, its probes, its end."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from frog.cluster.kubernetes.container import Mount, PodSpec
from frog.cluster.kubernetes.objects import KubernetesJob, Manifest
from frog.cluster.kubernetes.pod_template import Probe, Variable, Volume, field_value
from frog.core.env import child_env
from frog.core.errors import shell_code

INDEX_KEY = "batch.kubernetes.io/job-completion-index"
DOMAIN = "svc.cluster.local"
NAME_SERVER = "127.0.0.10"
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of Kubernetes' random names."""

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
_MOST_WORDS = 4096
"""Number of bytes to report from the start of a probe's output."""

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def hidden_by(path: str) -> list[str]:
    """Return the folders of Python and Frog that a volume at `path` hides here. Images store them elsewhere."""
    folders = {sys.prefix, sys.base_prefix, str(Path(__file__).parents[3])}
    return sorted(folder for folder in folders if Path(folder).is_relative_to(path))


@dataclass
class ProbeState:
    """State of a probe: the time of its next run, its consecutive failures, and its running command."""

    probe: Probe
    next_at: float
    failures: int = 0
    passed: bool = False
    words: str = ""
    question: subprocess.Popen[bytes] | None = None
    answer: IO[bytes] | None = None
    """File for its output: reading a pipe to its end would wait for every process that the probe started."""
    ask_until: float = 0.0

    def turn(self, command: Sequence[str]) -> None:
        """Start the command when it is due; record its result when it has one."""
        now = time.monotonic()
        if self.question is None:
            if now >= self.next_at:
                self.next_at, self.ask_until = now + self.probe.period_s, now + self.probe.timeout_s
                self.answer = tempfile.TemporaryFile()  # noqa: SIM115
                self.question = subprocess.Popen(
                    [*command, *self.probe.command], stdout=self.answer, stderr=subprocess.STDOUT
                )
            return
        code = self.question.poll()
        if code is None and now < self.ask_until:
            return
        self.words = self.stop() or f"exit code {code}"
        if code is None:
            self.words = f"no answer within {self.probe.timeout_s} s"
        self.passed = code == 0
        self.failures = 0 if self.passed else self.failures + 1

    @property
    def failed(self) -> bool:
        return self.failures >= self.probe.failures

    def stop(self) -> str:
        """End the running command, if any; return its output."""
        if self.question is None or self.answer is None:
            return ""
        self.question.kill()
        self.question.wait()
        words = os.pread(self.answer.fileno(), _MOST_WORDS, 0).decode(errors="replace").strip()
        self.answer.close()
        self.question = self.answer = None
        return words


class Pod:
    """A running pod. `number` counts all pods of the cluster and determines the pod's unique address."""

    def __init__(
        self, manifest: Manifest, job: KubernetesJob, index: int, number: int, scratch: Path, gpus: str | None
    ) -> None:
        self.manifest, self.job, self.index, self.template = manifest, job, index, job.template
        self.host = f"{job.name}-{index}"
        self.name = f"{self.host}-{''.join(secrets.choice(_LETTERS) for _ in range(5))}"
        self.address = f"127.0.{1 + number // 250}.{1 + number % 250}"
        self.labels = pod_labels(job, index)
        self.folder = scratch / "pods" / self.name
        self._gpus = gpus
        self._seen_at: float | None = None
        self.asked_at: float | None = None
        """Time of the request to stop."""
        self.why: str | None = None
        """Reason for the request, if a probe caused it."""
        self._start()

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the container."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._log: IO[str] = open(self.folder / "log", "a", buffering=1, encoding="utf-8")  # noqa: SIM115
        (self.folder / "pid").unlink(missing_ok=True)
        (self.folder / "root").mkdir(exist_ok=True)
        env = pod_environment(self.manifest, self.job, self.index, self.name, self.address, self._gpus)
        container = self.template.container
        spec = PodSpec(
            host=self.host,
            uid=self.template.uid,
            gid=self.template.gid,
            root=str(self.folder / "root"),
            folder=container.folder,
            command=[expand(word, env) for word in (*container.command, *container.args)],
            env=env,
            mounts=self._mounts(),
            pid_file=str(self.folder / "pid"),
            writable=container.writable,
        )
        spec.write(self.folder / "spec.json")
        self._process = subprocess.Popen(
            [*_ENTER, "start", str(self.folder / "spec.json")],
            env=child_env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._part = b""
        now = time.monotonic()
        self._probes = {
            name: ProbeState(probe, now + probe.delay_s)
            for name in ("startup", "liveness", "readiness")
            if (probe := getattr(container, name)) is not None
        }

    def _mounts(self) -> list[Mount]:
        etc = self.folder / "etc"
        etc.mkdir(exist_ok=True)
        job, subdomain = self.job, self.template.subdomain
        full = f"{self.host}.{subdomain}.{job.namespace}.{DOMAIN}\t" if subdomain else ""
        texts = {
            "hosts": f"127.0.0.1\tlocalhost\n{self.address}\t{full}{self.host}\n",
            "hostname": f"{self.host}\n",
            "resolv.conf": f"nameserver {NAME_SERVER}\nsearch {job.namespace}.{DOMAIN} {DOMAIN} cluster.local\n"
            "options ndots:5 timeout:2\n",
            "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        }
        for name, text in texts.items():
            (etc / name).write_text(text)
        mounts = [Mount(f"/etc/{name}", str(etc / name), read_only=True) for name in texts]
        if self.template.container.writable:
            mounts += [Mount(path, path, read_only=True) for path in hidden_by("/tmp")]
        for wanted in self.template.container.mounts:
            volume = self.template.volumes[wanted.volume]
            mounts += [Mount(path, path, read_only=True) for path in hidden_by(wanted.path)]
            if volume.in_memory:
                mounts.append(Mount(wanted.path, None, size_bytes=volume.size_bytes))
            else:
                read_only = wanted.read_only or volume.config_map is not None
                mounts.append(Mount(wanted.path, str(self._folder_of(volume)), read_only=read_only))
        return mounts

    def _folder_of(self, volume: Volume) -> Path:
        """Return the folder of a volume on this machine."""
        if volume.claim is not None:
            folder = Path(self.manifest.claim(volume.claim).folder).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        folder = self.folder / "volumes" / volume.name
        folder.mkdir(parents=True, exist_ok=True)
        if volume.config_map is not None:
            files = self.manifest.config_maps[volume.config_map]
            for key, name in (volume.items or {key: key for key in files.keys}).items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).unlink(missing_ok=True)
                (folder / name).write_bytes(files.content(key))
                (folder / name).chmod(volume.mode)
        return folder

    # ---- while it runs -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """True if its latest readiness probe passed; a pod without one is ready as soon as it starts."""
        if not self._started:
            return False
        state = self._probes.get("readiness")
        return state is None or state.passed

    @property
    def _started(self) -> bool:
        state = self._probes.get("startup")
        return state is None or state.passed

    def read(self) -> None:
        """Print the pod's output and write it to the log."""
        assert self._process.stdout is not None
        while chunk := self._process.stdout.read(1 << 16):
            *lines, self._part = (self._part + chunk).split(b"\n")
            for line in lines:
                self.say(line.decode(errors="replace").rstrip("\r"))

    def say(self, line: str) -> None:
        print(f"{self.host} | {line}\n", end="", flush=True)
        self._log.write(f"{line}\n")

    def ask(self) -> None:
        """Run the probes; ask the pod to stop if it fails one."""
        if self.asked_at is not None or not (pid := self._pid()):
            return
        command = [*_ENTER, "join", pid, str(self.folder / "spec.json")]
        for name, state in self._probes.items():
            if (name == "startup") == self._started:  # the other two run once the pod has started
                continue
            state.turn(command)
            if name != "readiness" and state.failed:
                self.why = f"its {name} probe failed {state.failures} times: {state.words}"
                self.stop()
                return

    @property
    def seen_running_s(self) -> float:
        """Seconds since this property first found its first process running."""
        if self._seen_at is None:
            if not self._pid():
                return 0.0
            self._seen_at = time.monotonic()
        return time.monotonic() - self._seen_at

    def _pid(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "pid").read_text()
        return ""

    def stop(self) -> None:
        """Ask the pod to stop, as the kubelet does; `enforce` kills it if it takes too long."""
        if self.asked_at is None:
            self.asked_at = time.monotonic()
            self._process.send_signal(signal.SIGTERM)

    def enforce(self) -> None:
        """Kill the pod at the end of its grace period."""
        if self.asked_at is not None and time.monotonic() - self.asked_at > self.template.grace_s:
            self.kill()

    def kill(self) -> None:
        """Kill the pod and all its processes: the system kills the others when process 1 ends."""
        if pid := self._pid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        else:
            self._process.kill()

    def poll(self) -> int | None:
        """Return the exit code of the pod; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        self.read()
        if self._part:
            self.say(self._part.decode(errors="replace"))
            self._part = b""
        for state in self._probes.values():
            state.stop()
        return shell_code(code)

    def close(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def start_again(self) -> None:
        """Restart the ended container in the same pod: same name, same address, same volumes."""
        self.asked_at = self.why = None
        self._start()


_ENTER = [sys.executable, "-P", "-m", "frog.cluster.kubernetes.container"]


def pod_labels(job: KubernetesJob, index: int) -> dict[str, str]:
    """Return a pod's labels: its template's, and those that the Job controller adds."""
    return {
        **job.template.labels,
        "batch.kubernetes.io/controller-uid": job.uid,
        "controller-uid": job.uid,
        "batch.kubernetes.io/job-name": job.name,
        "job-name": job.name,
        INDEX_KEY: str(index),
    }


def pod_environment(
    manifest: Manifest, job: KubernetesJob, index: int, name: str, address: str, gpus: str | None
) -> dict[str, str]:
    """Return a container's environment: variables of Kubernetes and the image, then the manifest's, in order."""
    known = {
        "metadata.name": name,
        "metadata.namespace": job.namespace,
        "status.podIP": address,
        "labels": pod_labels(job, index),
        "annotations": {**job.template.annotations, INDEX_KEY: str(index)},
    }
    env = {
        "PATH": f"{Path(sys.executable).parent}:{_SYSTEM_PATH}",
        "HOME": "/",
        "HOSTNAME": f"{job.name}-{index}",
        "JOB_COMPLETION_INDEX": str(index),
    }
    if gpus is not None:
        env["CUDA_VISIBLE_DEVICES"] = gpus
    for variable in job.template.container.env:
        env[variable.name] = _value(variable, manifest, known, env)
    return env


def _value(variable: Variable, manifest: Manifest, known: Mapping[str, object], env: Mapping[str, str]) -> str:
    if variable.field_path is not None:
        return field_value(variable.field_path, known)
    if variable.config_map is not None:
        name, key = variable.config_map
        return manifest.config_maps[name].data[key]
    return expand(variable.value or "", env)


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace Kubernetes' $(NAME) if NAME is known, and $$ by $."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else env.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)
