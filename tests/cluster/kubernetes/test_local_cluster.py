"""The local cluster, tested without its processes: probes, attempts, GPUs, leftover files."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import wait_until
from small_manifest import SMALL, read

from frog.cli import main
from frog.cluster.kubernetes import job_controllers, local_cluster
from frog.cluster.kubernetes.job_controllers import JobController, visible_gpus
from frog.cluster.kubernetes.local_cluster import Cluster
from frog.cluster.kubernetes.local_pod import ProbeState
from frog.cluster.kubernetes.pod_template import Probe


def ask(*command: str) -> ProbeState:
    """Run a probe with a timeout of a minute once."""
    state = ProbeState(Probe(command, delay_s=0, period_s=60, timeout_s=60, failures=3), next_at=0)
    state.turn([])

    def has_answered() -> bool:
        state.turn([])
        return state.question is None

    wait_until(has_answered, "the answer of a probe")
    return state


def test_probe_output_may_exceed_a_pipe_buffer() -> None:
    state = ask("bash", "-c", "printf %0200000d 7; exit 3")
    assert (state.failures, state.words) == (1, "0" * 4096)


def test_probe_ends_although_its_child_keeps_running() -> None:
    state = ask("bash", "-c", "sleep 3600 & echo $!; exit 3")
    assert state.failures == 1
    child = psutil.Process(int(state.words))
    assert child.status() != psutil.STATUS_ZOMBIE, "it ran while the output was read"
    child.kill()


def test_gpus_are_divided_among_pods_or_hidden() -> None:
    assert visible_gpus(0, 0, 2, 0) is None
    assert visible_gpus(0, 0, 2, 8) == ""
    assert [visible_gpus(2, first, 4, 4) for first in (0, 2)] == ["0,1", "2,3"]
    assert visible_gpus(4, 0, 8, 4) == "", "not enough for both pods"


class FakePod:
    """A pod that always fails with exit code 7."""

    why = None
    ready = True
    address = "127.0.1.2"

    def __init__(self, manifest: object, job: object, index: int, number: int, scratch: Path, gpus: object) -> None:
        self.name = f"pod-{number}"
        self.host = "small-0"
        self.folder = scratch / self.name
        self.labels = {"app": "a"}
        self.seen_running_s = 60.0
        self.starts = 1

    def start_again(self) -> None:
        self.starts += 1

    def poll(self) -> int:
        return 7

    def read(self) -> None:
        pass

    ask = enforce = stop = close = read


class FakeNames:
    def __init__(self, address: str) -> None:
        self.addresses: dict[str, str] = {}

    def serve(self) -> None:
        pass


SERVICE = (
    "---\napiVersion: v1\nkind: Service\nmetadata: {name: s}\n"
    "spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {app: a}}\n"
)


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_retry_delay_doubles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """Retries follow after 1 s, 2 s, 4 s: with Never in a new pod, with OnFailure in the same pod."""
    now = 100.0
    monkeypatch.setattr(job_controllers, "Pod", FakePod)
    monkeypatch.setattr(local_cluster, "NameServer", FakeNames)
    monkeypatch.setattr(job_controllers.time, "monotonic", lambda: now)
    subdomain = ("containers:", "subdomain: s\n      containers:")
    changes = (subdomain, ("completions: 2", "completions: 1"), ("Never", policy))
    cluster = Cluster(read(tmp_path, SMALL + SERVICE, *changes), tmp_path)
    tries: list[tuple[float, str, int]] = []
    named: set[bool] = set()
    look_at_end = JobController._look_at_end

    def note(self: JobController, completion: Any, pod: Any) -> None:
        tries.append((now, pod.name, pod.starts))
        look_at_end(self, completion, pod)

    monkeypatch.setattr(JobController, "_look_at_end", note)
    while now <= 107.0:
        cluster.tick()
        named.add(bool(cluster._names.addresses))
        now += 0.5
    moments = [100.0, 101.0, 103.0, 107.0]
    if policy == "Never":
        assert tries == [(moment, f"pod-{number + 1}", 1) for number, moment in enumerate(moments)]
        assert named == {False}
    else:
        assert tries == [(moment, "pod-1", number + 1) for number, moment in enumerate(moments)]
        assert named == {True}
    cluster.signals.append(signal.SIGTERM)
    cluster.tick()
    assert cluster.jobs.over, "no further attempt is pending"
    assert [job.pods for job in cluster.jobs.controllers] == [[]]


def test_pod_name_resolves_two_seconds_after_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_controllers, "Pod", FakePod)
    monkeypatch.setattr(local_cluster, "NameServer", FakeNames)
    monkeypatch.setattr(FakePod, "poll", lambda self: None)
    changes = (("containers:", "subdomain: s\n      containers:"), ("completions: 2", "completions: 1"))
    cluster = Cluster(read(tmp_path, SMALL + SERVICE, *changes), tmp_path)
    cluster.tick()
    [[completion]] = [job.completions for job in cluster.jobs.controllers]
    pod: Any = completion.pod
    for running_s, addresses in ((0.0, []), (1.9, []), (2.0, ["127.0.1.2"])):
        pod.seen_running_s = running_s
        cluster.tick()
        assert list(cluster._names.addresses.values()) == addresses


@pytest.mark.parametrize(
    ("change", "ready", "named"),
    [
        (("app: a", "app: a"), False, True),
        (("publishNotReadyAddresses: true, ", ""), False, False),
        (("publishNotReadyAddresses: true, ", ""), True, True),
        (("selector: {app: a}", "selector: {app: b}"), True, False),
        (("name: s}", "name: other}"), True, False),
    ],
    ids=["unready but published", "unready", "ready", "not selected", "of another subdomain"],
)
def test_pod_names_need_a_service_that_selects_them(
    change: tuple[str, str], ready: bool, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_controllers, "Pod", FakePod)
    monkeypatch.setattr(local_cluster, "NameServer", FakeNames)
    monkeypatch.setattr(FakePod, "poll", lambda self: None)
    monkeypatch.setattr(FakePod, "ready", ready)
    changes = (("containers:", "subdomain: s\n      containers:"), ("completions: 2", "completions: 1"), change)
    cluster = Cluster(read(tmp_path, SMALL + SERVICE, *changes), tmp_path)
    cluster.tick()
    assert list(cluster._names.addresses) == (["small-0.s.default.svc.cluster.local"] if named else [])


@pytest.mark.parametrize(
    "option",
    ["--nproc 2", "--nodes 2x2", "--restarts 0", "--deadline 3", "--threads 3", "--network rate=1mbit"],
)
def test_world_options_conflict_with_a_manifest(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--from", "k8s.yaml", *option.split()]) == 2
    assert f"{option.split()[0]} cannot be combined with --from" in capsys.readouterr().err
