"""JobSets and TrainJobs: what is read from them, and how their controller creates, restarts and ends Jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from frog.cluster.kubernetes import job_controllers
from frog.cluster.kubernetes.job_controllers import JobSetController
from frog.cluster.kubernetes.local_pod import pod_environment, pod_labels
from frog.cluster.kubernetes.manifest import read_manifest
from frog.cluster.kubernetes.manifest_text import ManifestError
from frog.cluster.kubernetes.objects import Manifest

PREFIX = "jobset.sigs.k8s.io"


def member(name: str, completions: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a replicated Job as short as public examples write it."""
    pod = {"containers": [{"name": "one", "image": "any", "command": ["true"]}]}
    spec = {"completions": completions, "parallelism": completions, "backoffLimit": 0, "template": {"spec": pod}}
    return {"name": name, "template": {"spec": spec}, **fields}


def job_set(*members: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "set"},
        "spec": {"replicatedJobs": list(members), **spec},
    }


def train_job(trainer: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "tune"},
        "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"command": ["true"], **trainer}, **spec},
    }


def runtime(name: str, job: dict[str, Any], **policy: Any) -> dict[str, Any]:
    job["template"]["metadata"] = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": name},
        "spec": {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": [job]}}},
    }


Read = Callable[..., Manifest]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def parse(*documents: dict[str, Any], extra: tuple[str, ...] = ()) -> Manifest:
        (tmp_path / "set.yaml").write_text("---\n".join(map(yaml.safe_dump, documents)))
        return read_manifest(tmp_path / "set.yaml", extra)

    return parse


def environment(manifest: Manifest, place: int, index: int) -> dict[str, str]:
    return pod_environment(manifest, manifest.job_set.jobs[place], index, "pod", "127.0.1.2", None)


def test_jobs_have_the_names_and_labels_of_a_cluster(read: Read) -> None:
    coordinator = {"replicatedJob": "driver", "jobIndex": 0, "podIndex": 0}
    manifest = read(job_set(member("driver"), member("workers", 2, replicas=2), coordinator=coordinator))
    jobs = manifest.job_set.jobs
    assert [job.name for job in jobs] == ["set-driver-0", "set-workers-0", "set-workers-1"]
    assert {job.template.restart_policy for job in jobs} == {"OnFailure"}
    assert {job.template.subdomain for job in jobs} == {"set"}
    labels = pod_labels(jobs[2], 1)
    expected = {
        "jobset-name": "set",
        "replicatedjob-name": "workers",
        "replicatedjob-replicas": "2",
        "global-replicas": "3",
        "job-index": "1",
        "job-global-index": "2",
        "group-name": "default",
        "group-replicas": "3",
        "job-group-index": "2",
        "restart-attempt": "0",
        "coordinator": "set-driver-0-0.set",
    }
    assert {key: labels[f"{PREFIX}/{key}"] for key in expected} == expected
    assert jobs[2].template.annotations[f"{PREFIX}/job-index"] == "1"
    assert manifest.services["set"].selects(labels)
    assert environment(manifest, 2, 1)["HOSTNAME"] == "set-workers-1-1"


def test_network_names_the_subdomain_or_disables_it(read: Read) -> None:
    manifest = read(job_set(member("a"), network={"subdomain": "other", "publishNotReadyAddresses": False}))
    assert (manifest.job.template.subdomain, manifest.services["other"].publish_not_ready) == ("other", False)
    manifest = read(job_set(member("a"), network={"enableDNSHostnames": False}))
    assert (manifest.job.template.subdomain, manifest.services) == (None, {})


def test_train_job_gets_the_variables_of_torchrun(read: Read) -> None:
    env = [{"name": "LR", "value": "0.1"}]
    trainer = {"numNodes": 2, "numProcPerNode": 4, "image": "mine", "command": ["torchrun"], "args": ["a.py"]}
    manifest = read(train_job({**trainer, "env": env}), extra=("more",))
    assert [job.name for job in manifest.job_set.jobs] == ["tune-node-0"]
    assert (manifest.job.completions, manifest.job.parallelism) == (2, 2)
    container = manifest.job.template.container
    assert (container.command, container.args) == (["torchrun"], ["a.py", "more"])
    found = environment(manifest, 0, 1)
    assert {key: found[key] for key in found if key.startswith("PET_") or key == "LR"} == {
        "LR": "0.1",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "4",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "tune-node-0-0.tune",
        "PET_MASTER_PORT": "29500",
    }
    assert manifest.services["tune"].publish_not_ready


@pytest.mark.parametrize(
    ("resources", "ranks"),
    [
        ({}, "1"),
        ({"limits": {"nvidia.com/gpu": 8}, "requests": {"cpu": "2"}}, "8"),
        ({"limits": {"cpu": "4"}, "requests": {"cpu": "2500m"}}, "3"),
        ({"limits": {"cpu": 4}}, "4"),
    ],
)
def test_ranks_per_node_default_to_gpus_then_cpus(read: Read, resources: dict[str, Any], ranks: str) -> None:
    manifest = read(train_job({"resourcesPerNode": resources}))
    assert environment(manifest, 0, 0)["PET_NPROC_PER_NODE"] == ranks


def test_train_job_starts_from_the_runtime_of_its_file(read: Read) -> None:
    own = member("node")
    own["template"]["spec"]["template"]["spec"]["containers"] = [
        {"name": "node", "image": "own", "command": ["own"], "env": [{"name": "A", "value": "1"}], "args": ["x"]}
    ]
    described = train_job({"command": ["mine"], "env": [{"name": "A", "value": "2"}]})
    described["spec"]["runtimeRef"] = {"name": "own", "kind": "TrainingRuntime"}
    manifest = read(described, runtime("own", own, numNodes=3))
    container = manifest.job.template.container
    assert (container.command, container.args, manifest.job.completions) == (["mine"], ["x"], 3)
    found = environment(manifest, 0, 0)
    assert found["A"] == "2"
    assert "PET_NNODES" not in found, "only a torch policy sets torchrun's variables"


def test_runtime_patches_change_the_pods(read: Read) -> None:
    container = {"name": "node", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    pod = {"containers": [container], "volumes": [{"name": "v", "emptyDir": {}}], "terminationGracePeriodSeconds": 5}
    patched = {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": pod}}}}]}
    patch = {"manager": "a/b", "trainingRuntimeSpec": {"template": {"metadata": {"labels": {}}, "spec": patched}}}
    template = read(train_job({}, runtimePatches=[patch])).job.template
    assert (template.grace_s, template.container.mounts[0].path, template.container.command) == (5, "/v", ["true"])


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (job_set(member("a"), member("a")), "replicatedJobs: two have the same name"),
        (job_set(), "replicatedJobs: missing"),
        (job_set(member("a", replicas=0)), "JobSet set: has no Job to run"),
        (job_set(member("a", replicas=10**9)), "replicas: 1000000000: must be at most 1024"),
        (job_set(member("a"), failurePolicy={"restartStrategy": "InPlaceRestart"}), "'InPlaceRestart': Frog supports"),
        (job_set(member("a", dependsOn=[{"name": "b", "status": "Ready"}]), member("b")), "must come before it"),
        (job_set(member("a"), successPolicy={"operator": "All", "targetReplicatedJobs": ["b"]}), "'b': no such Job"),
        (job_set(member("a"), coordinator={"replicatedJob": "b"}), "'b': no such Job in the set"),
        (
            job_set(member("a"), failurePolicy={"rules": [{"action": "FailJobSet", "onJobFailureReasons": ["x"]}]}),
            "'x': must be one of BackoffLimitExceeded",
        ),
        (
            job_set(
                member("a"), failurePolicy={"rules": [{"action": "FailJobSet", "onJobFailureMessagePatterns": ["x"]}]}
            ),
            "onJobFailureMessagePatterns: not supported on one machine",
        ),
        (job_set(member("a", replica=2)), "replica: unknown; did you mean replicas?"),
        (train_job({"env": [{"name": "PET_NNODES", "value": "1"}]}), "env: PET_NNODES: the runtime sets these"),
        (train_job({"command": []}), "command: missing, and Frog does not read the image's default command"),
        (train_job({}, initializer={"model": {}}), "TrainJob.spec.initializer: unknown, or not supported"),
        (train_job({}, runtimeRef={"name": "deepspeed-distributed"}), "not in this file; Frog knows torch-distributed"),
        (runtime("own", member("node"), mpi={}), "TrainingRuntime.spec.mlPolicy.mpi: unknown, or not supported"),
    ],
)
def test_what_one_machine_cannot_run_is_refused_by_name(read: Read, document: dict[str, Any], words: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read(document)
    assert words in str(caught.value)


def test_further_arguments_need_one_replicated_job(read: Read) -> None:
    with pytest.raises(ManifestError, match="only one can take further arguments"):
        read(job_set(member("a"), member("b")), extra=("more",))


class FakePod:
    """A pod that is ready at once and ends when the test sets its exit code."""

    why = None
    ready = True
    all: list[FakePod]

    def __init__(self, manifest: object, job: Any, index: int, number: int, scratch: Path, gpus: str | None) -> None:
        self.job, self.index, self.number, self.gpus = job, index, number, gpus
        self.name, self.address, self.folder = f"{job.name}-{index}", f"127.0.1.{number}", scratch
        self.code: int | None = None
        self.asked = False
        FakePod.all.append(self)

    def poll(self) -> int | None:
        return self.code

    def stop(self) -> None:
        self.asked = True

    def read(self) -> None:
        pass

    ask = enforce = close = read


Start = Callable[..., JobSetController]


@pytest.fixture
def start(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Return a set's controller after its first tick."""
    monkeypatch.setattr(job_controllers, "Pod", FakePod)
    FakePod.all = []

    def begin(*members: dict[str, Any], **spec: Any) -> JobSetController:
        controller = JobSetController(read(job_set(*members, **spec)), tmp_path, 0)
        controller.tick()
        return controller

    return begin


def running(name: str = "") -> list[FakePod]:
    return [pod for pod in FakePod.all if pod.code is None and pod.name.startswith(name)]


def end(controller: JobSetController, pods: list[FakePod], code: int) -> None:
    for pod in pods:
        pod.code = code
    for _ in range(3):
        controller.tick()


def test_set_is_complete_when_all_its_jobs_are(start: Start) -> None:
    controller = start(member("a"), member("b", 2))
    assert sorted(pod.name for pod in running()) == ["set-a-0-0", "set-b-0-0", "set-b-0-1"]
    end(controller, running("set-a"), 0)
    assert not controller.over
    end(controller, running(), 0)
    assert (controller.over, controller.reason) == (True, None)


def test_jobs_wait_for_those_they_depend_on(start: Start) -> None:
    controller = start(
        member("a"),
        member("b", dependsOn=[{"name": "a", "status": "Complete"}]),
        member("c", dependsOn=[{"name": "b", "status": "Ready"}]),
    )
    assert [pod.name for pod in running()] == ["set-a-0-0"]
    end(controller, running(), 0)
    assert [pod.name for pod in running()] == ["set-b-0-0", "set-c-0-0"]


def test_startup_in_order_waits_until_pods_are_ready(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePod, "ready", False)
    controller = start(member("a"), member("b"), startupPolicy={"startupPolicyOrder": "InOrder"})
    controller.tick()
    assert [pod.name for pod in running()] == ["set-a-0-0"]
    monkeypatch.setattr(FakePod, "ready", True)
    controller.tick()
    assert [pod.name for pod in running()] == ["set-a-0-0", "set-b-0-0"]


def test_success_policy_ends_the_other_jobs(start: Start) -> None:
    policy = {"operator": "All", "targetReplicatedJobs": ["workers"]}
    controller = start(member("driver"), member("workers"), successPolicy=policy)
    end(controller, running("set-workers"), 0)
    (driver,) = running()
    assert driver.asked
    end(controller, [driver], 143)
    assert (controller.over, controller.reason) == (True, None)


NEVER: dict[str, Any] = {"restartPolicy": "Never"}


def never(name: str) -> dict[str, Any]:
    """Return a replicated Job whose failed pods end it."""
    found = member(name)
    found["template"]["spec"]["template"]["spec"] |= NEVER
    return found


def test_failure_without_a_policy_fails_the_set(start: Start) -> None:
    controller = start(never("a"), never("b"))
    end(controller, running("set-a"), 1)
    (other,) = running()
    assert other.asked
    end(controller, [other], 143)
    assert controller.over
    assert controller.reason is not None
    assert controller.reason[0] == "FailedJobs"
    assert "Job set-a-0 failed (BackoffLimitExceeded" in controller.reason[1]


def test_failure_restarts_all_jobs_up_to_the_limit(start: Start) -> None:
    controller = start(never("a"), never("b"), failurePolicy={"maxRestarts": 1})
    end(controller, running("set-a"), 1)
    assert [pod.name for pod in running()] == ["set-b-0-0", "set-a-0-0"], "a Job starts again when its old pod is gone"
    end(controller, running("set-b"), 143)
    first, second = running()
    assert {
        first.job.template.labels[f"{PREFIX}/restart-attempt"],
        second.job.template.labels[f"{PREFIX}/restart-attempt"],
    } == {"1"}
    end(controller, [first], 1)
    end(controller, running(), 143)
    assert controller.over
    assert controller.reason is not None
    assert controller.reason[0] == "ReachedMaxRestarts"


def test_blocking_restart_waits_for_all_old_pods(start: Start) -> None:
    policy = {"maxRestarts": 1, "restartStrategy": "BlockingRecreate"}
    controller = start(never("a"), never("b"), failurePolicy=policy)
    end(controller, running("set-a"), 1)
    assert [pod.name for pod in running()] == ["set-b-0-0"]
    end(controller, running(), 143)
    assert sorted(pod.name for pod in running()) == ["set-a-0-0", "set-b-0-0"]


@pytest.mark.parametrize(
    ("action", "restarted"), [("RestartJob", ["set-b-0-0", "set-a-0-0"]), ("FailJobSet", ["set-b-0-0"])]
)
def test_first_matching_rule_decides(start: Start, action: str, restarted: list[str]) -> None:
    rules = [
        {"action": "FailJobSet", "targetReplicatedJobs": ["b"]},
        {"action": action, "onJobFailureReasons": ["BackoffLimitExceeded"]},
    ]
    controller = start(never("a"), never("b"), failurePolicy={"maxRestarts": 1, "rules": rules})
    end(controller, running("set-a"), 1)
    assert [pod.name for pod in running()] == restarted
    assert running("set-b")[0].asked == (action == "FailJobSet")


def test_gpus_are_divided_among_the_pods_of_all_jobs(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_controllers, "Pod", FakePod)
    FakePod.all = []
    members = [member("a"), member("b", 2)]
    for one in members:
        container = one["template"]["spec"]["template"]["spec"]["containers"][0]
        container["resources"] = {"limits": {"nvidia.com/gpu": 2}}
    for available, expected in ((6, ["0,1", "2,3", "4,5"]), (5, ["", "", ""])):
        FakePod.all = []
        JobSetController(read(job_set(*members)), tmp_path, available).tick()
        assert [pod.gpus for pod in FakePod.all] == expected
