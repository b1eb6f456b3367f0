"""`frog run --from FILE --dry-run`: manifests of any kinds, with the rules of operators without a published schema."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from frog.cli import main
from frog.cluster.kubernetes.published_schemas import placeholders, refused_by_kubernetes

CONFIG = Path(__file__).parents[3] / "config" / "kubernetes"


def pod(name: str) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": 4}
    return {"template": {"spec": {"containers": [{"name": name, "image": "a", "resources": {"limits": limits}}]}}}


PYTORCH = {
    "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
    "metadata": {"name": "a", "labels": {"kueue.x-k8s.io/queue-name": "team-a"}},
    "spec": {
        "runPolicy": {"suspend": True},
        "pytorchReplicaSpecs": {
            "Master": {"replicas": 1, "restartPolicy": "OnFailure", **pod("pytorch")},
            "Worker": {"replicas": 3, "restartPolicy": "ExitCode", **pod("pytorch")},
        },
    },
}  # fmt: skip
MPI = {
    "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "a"},
    "spec": {"slotsPerWorker": 8, "mpiReplicaSpecs": {"Launcher": pod("l"), "Worker": {"replicas": 2, **pod("w")}}},
}  # fmt: skip
RESOURCES = [{"name": "cpu", "nominalQuota": 9}, {"name": "nvidia.com/gpu", "nominalQuota": 8}]
QUEUE = {
    "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue", "metadata": {"name": "a"},
    "spec": {"resourceGroups": [
        {"coveredResources": ["cpu", "nvidia.com/gpu"], "flavors": [{"name": "a", "resources": RESOURCES}]},
    ]},
}  # fmt: skip
LOCAL = {
    "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": {"name": "a"},
    "spec": {"clusterQueue": "a"},
}  # fmt: skip
MASTER = ("spec", "pytorchReplicaSpecs", "Master")
WRONG: list[tuple[dict[str, Any], tuple[Any, ...], Any, str]] = [
    (PYTORCH, (*MASTER, "replicas"), 2, "Master.replicas: 2: there must be exactly one Master"),
    (PYTORCH, (*MASTER, "replicas"), "1", "Master.replicas: '1': must be a whole number"),
    (PYTORCH, (*MASTER, "restartPolicy"), "onfailure", "Master.restartPolicy: 'onfailure': must be one of"),
    (PYTORCH, (*MASTER, "template", "spec", "containers", 0, "name"), "x", "none is named pytorch"),
    (PYTORCH, ("spec", "pytorchReplicaSpecs", "Workers"), {}, "Workers: no such role; roles: Master, Worker"),
    (PYTORCH, ("spec", "runPolicy", "suspend"), "yes", ".spec.runPolicy.suspend: 'yes': must be true or false"),
    (PYTORCH, ("metadata", "labels", "kueue.x-k8s.io/queue-name"), "team a", "queue-name: 'team a': not a valid label"),
    (PYTORCH, (*MASTER, "template", "spec", "containers", 0, "resources"), {"requests": {"nvidia.com/gpu": 4}},
     "requests.nvidia.com/gpu: 4 without a limit"),
    (MPI, ("spec", "slotsPerWorker"), 0, ".spec.slotsPerWorker: 0: must be a whole number of at least 1"),
    (MPI, ("spec", "mpiReplicaSpecs", "Launcher"), None, "Launcher.template.spec.containers: missing"),
    (MPI, ("spec", "mpiReplicaSpecs"), {"Worker": pod("w")}, ".spec.mpiReplicaSpecs.Launcher: missing"),
    (QUEUE, ("spec", "resourceGroups", 0, "coveredResources"), ["nvidia.com/gpu", "cpu"], "must be coveredResources"),
    (LOCAL, ("spec", "clusterQueue"), None, ".spec.clusterQueue: missing"),
]  # fmt: skip


def changed(document: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made = copy.deepcopy(document)
    inner: Any = made
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return made


@pytest.mark.parametrize("document", [PYTORCH, MPI, QUEUE, LOCAL], ids=lambda document: document["kind"])
def test_correct_objects_of_operators_are_accepted(document: dict[str, Any]) -> None:
    assert refused_by_kubernetes(document) == []


@pytest.mark.parametrize(("document", "place", "value", "words"), WRONG)
def test_mistakes_in_objects_of_operators_are_found(
    document: dict[str, Any], place: tuple[Any, ...], value: Any, words: str
) -> None:
    found = refused_by_kubernetes(changed(document, place, value))
    assert len(found) == 1
    assert words in found[0]


def test_placeholders_of_a_template_cannot_be_known() -> None:
    limits = ("template", "spec", "containers", 0, "resources", "limits", "nvidia.com/gpu")
    template = changed(changed(PYTORCH, (*MASTER, "replicas"), "$NUM_NODES"), (*MASTER, *limits), "$GPU_PER_NODE")
    assert refused_by_kubernetes(template) == []
    unknown = " ".join(placeholders(template))
    assert "Master.replicas: $NUM_NODES: a placeholder, whose value cannot be known" in unknown
    assert "limits.nvidia.com/gpu: $GPU_PER_NODE: a placeholder" in unknown


def test_null_limit_is_no_mistake() -> None:
    pytest.importorskip("kubernetes_validate")
    limits = ("template", "spec", "containers", 0, "resources", "limits", "nvidia.com/gpu")
    assert refused_by_kubernetes(changed(PYTORCH, (*MASTER, *limits), None)) == []


def test_check_prints_each_object_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k8s.yaml"
    path.write_text(yaml.safe_dump_all([PYTORCH, QUEUE]))
    assert main(["run", "--from", str(path), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "PyTorchJob a: no published schema here" in shown or "PyTorchJob a: checked by rules only" in shown
    assert f"{path}: no mistakes found" in shown
    path.write_text(yaml.safe_dump_all([changed(*WRONG[0][:3]), 3]))
    assert main(["run", "--from", str(path), "--dry-run"]) == 1
    assert f"{path}: 2 mistakes" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["job.yaml", "job-cpu.yaml", "trainjob.yaml"])
def test_frogs_own_manifests_have_no_mistakes(name: str) -> None:
    assert main(["run", "--from", str(CONFIG / name), "--dry-run"]) == 0


@pytest.mark.parametrize(("text", "words"), [("a: [", "not valid YAML"), ("", "contains no object")])
def test_files_that_are_no_manifest_are_refused(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert main(["run", "--from", str(tmp_path / "a.yaml"), "--dry-run"]) == 2
    assert words in capsys.readouterr().err


def test_check_needs_a_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--dry-run", "--nproc", "1", "--", "x"]) == 2
    assert "--dry-run: needs a manifest" in capsys.readouterr().err
