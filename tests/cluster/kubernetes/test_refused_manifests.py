"""What Kubernetes refuses, by its published schemas and its API server's rules; YAML as Kubernetes reads it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_manifest import SMALL, read

from frog.cluster.kubernetes.manifest_text import ManifestError, load_documents
from frog.cluster.kubernetes.published_schemas import refused_by_kubernetes

POD = "{restartPolicy: Never, containers: [{name: pytorch, image: b, resources: {requests: {nvidia.com/gpu: 1}}}]}"
PYTORCH = f"""
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: x}}
spec: {{pytorchReplicaSpecs: {{Worker: {{replicas: 2, template: {{spec: {POD}}}}}}}}}
"""
JOB_SET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: x}
spec: {replicatedJobs: [{name: a, replica: 2, template: {spec: {template: {spec: {containers: [{name: a}]}}}}}]}
"""


def refused(text: str) -> list[str]:
    return [problem for document in load_documents(text) for problem in refused_by_kubernetes(document)]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "image: any",
            "image: any, resources: {requests: {nvidia.com/gpu: 4}}",
            "Job.spec.template.spec.containers[0].resources.requests.nvidia.com/gpu: 4 without a limit",
        ),
        (
            "image: any",
            "image: any, resources: {requests: {nvidia.com/gpu: 4}, limits: {nvidia.com/gpu: 8}}",
            "nvidia.com/gpu: 4, but the limit is 8: they must be equal",
        ),
        ("restartPolicy: Never\n", "restartPolicy: Always\n", "Always: must be Never or OnFailure"),
        ("completionMode", "completionModus", "Job.spec.completionModus: no such field; did you mean completionMode?"),
        ("image: any", "image: any, imagePullPolicy: 3", "containers[0].imagePullPolicy: 3 is not of type 'string'"),
    ],
)
def test_kubernetes_refuses_it(old: str, new: str, problem: str) -> None:
    text = SMALL.replace(old, new)
    assert text != SMALL
    assert any(problem in text for text in refused(text)), refused(text)


def test_gpu_request_without_a_limit_is_a_mistake_of_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="without a limit: Kubernetes refuses it"):
        read(tmp_path, SMALL.replace("image: any", "image: any, resources: {requests: {nvidia.com/gpu: 1}}"))


def test_fields_of_kinds_without_a_reader_are_checked() -> None:
    assert refused(SMALL) == []
    (problem,) = refused(PYTORCH)
    assert problem.startswith(
        "PyTorchJob.spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].resources.requests"
    )
    assert any("replicatedJobs[0].replica: no such field; did you mean replicas?" in text for text in refused(JOB_SET))


def test_field_that_frog_does_not_read_is_not_taken_for_another(tmp_path: Path) -> None:
    text = SMALL.replace("restartPolicy: Never", "restartPolicy: Never\n      dnsPolicy: ClusterFirst")
    with pytest.raises(ManifestError) as error:
        read(tmp_path, text)
    assert "dnsPolicy: unknown, or not supported on one machine" in str(error.value)
    assert refused(text) == []


def test_job_set_of_version_1_is_known(tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as error:
        read(tmp_path, JOB_SET.replace("v1alpha2", "v1"))
    assert "apiVersion" not in str(error.value)


def test_rules_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes_validate", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert refused(SMALL.replace("completionMode", "completionModus")) == []
    assert len(refused(PYTORCH)) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 12:30:00", "12:30:00"),
        ("a: 190:20:30.5", "190:20:30.5"),
        ("a: 2026-01-31", "2026-01-31"),
        ("a: !!timestamp x", "x"),
        ("a: !!timestamp 2026-13-45", "2026-13-45"),
        ("a: 12", 12),
        ("a: 1.5", 1.5),
        ("a: yes", True),
    ],
)
def test_yaml_is_read_as_kubernetes_reads_it(text: str, value: Any) -> None:
    assert load_documents(text) == [{"a": value}]


@pytest.mark.parametrize(
    "text", ["a: !!int x", "a: !!float x", "a: !!bool maybe", "a: !!timestamp {b: c}", f"a: 1{'0' * 6000}"]
)
def test_wrong_yaml_value_is_an_error_with_its_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 1") as error:
        load_documents(text)
    assert not isinstance(error.value, yaml.YAMLError)
