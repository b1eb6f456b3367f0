"""Files exchanged by the local cluster's processes: invalid values of every key are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mutations import held_to_its_schema
from small_manifest import SMALL

from frog.cluster.kubernetes import container
from frog.cluster.kubernetes.container import Mount, PodSpec
from frog.cluster.kubernetes.local_cluster import Outcome
from frog.cluster.kubernetes.manifest import read_manifest
from frog.cluster.kubernetes.manifest_text import ManifestError, load_documents
from frog.core.errors import LaunchError
from frog.core.schema import read_typed, write_typed


def test_pod_spec_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    spec = PodSpec("h", 0, 0, "/r", "/", ["sleep"], {"A": "b"}, [Mount("/m", None, size_bytes=4)], "/r/pid")
    spec.write(path)
    assert PodSpec.read(path) == spec
    held_to_its_schema(path, lambda: PodSpec.read(path))
    path.write_text("{}")
    assert container.main(["start", str(path)]) == 128


@pytest.mark.slow
def test_manifest_with_wrong_types_is_refused(tmp_path: Path) -> None:
    """JSON is also valid YAML."""
    path = tmp_path / "k8s.yaml"
    path.write_text(json.dumps(*load_documents(SMALL)))
    held_to_its_schema(path, lambda: read_manifest(path))


JOB_SET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: set}
spec:
  network: {subdomain: other}
  coordinator: {replicatedJob: one, jobIndex: 0}
  successPolicy: {operator: All, targetReplicatedJobs: [two]}
  failurePolicy: {maxRestarts: 2, rules: [{action: RestartJob, onJobFailureReasons: [BackoffLimitExceeded]}]}
  volumeClaimPolicies: [{templates: [{metadata: {name: disk}}]}]
  replicatedJobs:
    - name: one
      template: &template
        spec:
          template:
            spec:
              containers: [{name: a, image: b, command: [c], volumeMounts: [{name: disk, mountPath: /d}]}]
    - {name: two, replicas: 2, groupName: g, dependsOn: [{name: one, status: Ready}], template: *template}
"""
TRAIN_JOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: tune}
spec:
  runtimeRef: {name: torch-distributed}
  trainer:
    {image: a, command: [b], args: [c], numNodes: 2, env: [{name: d, value: e}], resourcesPerNode: {limits: {cpu: 2}}}
  runtimePatches:
    - manager: f
      trainingRuntimeSpec:
        template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {spec: {}}}}}]}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("text", [JOB_SET, TRAIN_JOB], ids=["JobSet", "TrainJob"])
def test_job_set_with_wrong_types_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "set.yaml"
    path.write_text(json.dumps(*load_documents(text)))
    held_to_its_schema(path, lambda: read_manifest(path))


def test_job_outcome_with_wrong_types_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"
    write_typed(path, Outcome(entered=True, reason=("BackoffLimitExceeded", "too often")))
    held_to_its_schema(path, lambda: read_typed(path, Outcome, error=LaunchError))


def _aliases(first: str, each: str) -> str:
    """Return twelve values, each of which contains the previous one three times."""
    texts = [f"a0: &a0 {first}", *(f"a{i}: &a{i} {each.replace('*', f'*a{i - 1}')}" for i in range(1, 13))]
    return "\n".join(["kind: Job", *texts])


def test_alias_expansion_is_limited(tmp_path: Path) -> None:
    """A few hundred bytes of aliases can expand to half a million values; each more line triples the number."""
    path = tmp_path / "k8s.yaml"
    for text in (
        _aliases("{x: 1}", "[*, *, *]"),
        _aliases("{x: 1}", "{<<: [*, *, *]}"),
        _aliases("{x: 1}", "{l: *, m: *, r: *}"),
        "kind: Job\nspec: &s {template: *s}",
    ):
        path.write_text(text)
        with pytest.raises(ManifestError, match=r"k8s\.yaml: not valid YAML: its aliases expand"):
            read_manifest(path)
    path.write_text("kind: &k Job\nlabels: &l {a: *k}\nagain: *l")
    with pytest.raises(ManifestError, match="mistakes"):
        read_manifest(path)


def test_long_list_of_mistakes_is_truncated(tmp_path: Path) -> None:
    path = tmp_path / "k8s.yaml"
    path.write_text("kind: Job\n" + "".join(f"key{i}: 1\n" for i in range(1000)))
    with pytest.raises(ManifestError, match=r"\n  \.\.\. 9\d\d more") as caught:
        read_manifest(path)
    assert len(str(caught.value)) < 1 << 14


def test_yaml_with_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frog.cluster.kubernetes.manifest_text._MOST_NODES", 1000)
    with pytest.raises(ValueError, match="has more than 1000 values"):
        load_documents("- []\n" * 10_000 + "{")  # the limit applies before the end is parsed


def test_huge_job_with_many_unknown_keys_is_refused(tmp_path: Path) -> None:
    job = next(iter(load_documents(SMALL)))
    job["spec"] |= {"completions": 10**18, "parallelism": 10**18} | {f"unknow{n}": 1 for n in range(3000)}
    (tmp_path / "k8s.yaml").write_text(json.dumps(job))
    with pytest.raises(ManifestError, match=r"10{18}: must be at most 100000") as caught:
        read_manifest(tmp_path / "k8s.yaml")
    assert "952 more" in str(caught.value)  # of 1002: 50 are shown
