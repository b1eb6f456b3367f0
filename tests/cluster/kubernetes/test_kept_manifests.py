"""What Frog reads from manifests, field by field, and the environment of their pods: read_manifests.json has it.

Other tests assert what a field does; here no default, number or note may change unnoticed. After a change that is
meant: FROG_REWRITE_GOLDEN=1 pytest -n 0 tests/cluster/kubernetes/test_kept_manifests.py, and read the difference.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_manifest import SMALL
from test_job_sets import job_set, member, runtime, train_job

from frog.cluster.kubernetes.local_pod import pod_environment, pod_labels
from frog.cluster.kubernetes.manifest import read_manifest
from frog.cluster.kubernetes.objects import KubernetesJob, Manifest

KEPT = Path(__file__).with_name("read_manifests.json")
EXAMPLES = Path(__file__).parents[3] / "config" / "kubernetes"
REWRITE = "FROG_REWRITE_GOLDEN" in os.environ
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

FULL = """
apiVersion: batch/v1
kind: Job
metadata: {name: full, namespace: ml, labels: {a: b}, annotations: {c: d}}
spec:
  completionMode: Indexed
  completions: 3
  parallelism: 2
  backoffLimit: 4
  activeDeadlineSeconds: 90
  podReplacementPolicy: Failed
  ttlSecondsAfterFinished: 5
  podFailurePolicy:
    rules:
      - {action: FailJob, onExitCodes: {containerName: one, operator: In, values: [2, 3]}}
      - {action: Count, onExitCodes: {operator: NotIn, values: [1]}}
      - {action: Ignore, onPodConditions: [{type: DisruptionTarget, status: "True"}]}
  template:
    metadata: {labels: {app: full}, annotations: {note: "n"}}
    spec:
      subdomain: sub
      restartPolicy: Never
      terminationGracePeriodSeconds: 7
      automountServiceAccountToken: false
      enableServiceLinks: false
      nodeSelector: {a: b}
      tolerations: []
      priorityClassName: high
      securityContext: {runAsUser: 11, runAsGroup: 12, runAsNonRoot: true, fsGroup: 13}
      containers:
        - name: one
          image: any
          imagePullPolicy: Always
          command: [sh]
          args: ["-c", "true"]
          workingDir: /work
          env:
            - {name: PLAIN, value: "1"}
            - {name: EMPTY}
            - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: SPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
            - {name: ADDRESS, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
            - {name: LABEL, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
            - {name: NOTE, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['note']"}}}
            - {name: NO_NOTE, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['other']"}}}
            - {name: KEY, valueFrom: {configMapKeyRef: {name: files, key: a.txt}}}
            - {name: BOTH, value: "$(PLAIN) $(NAME) $$(NAME) $(UNKNOWN)"}
          resources:
            requests: {cpu: 500m, memory: 1Gi, nvidia.com/gpu: 2}
            limits: {cpu: 2, memory: 2G, nvidia.com/gpu: 2}
          securityContext:
            {runAsUser: 21, allowPrivilegeEscalation: false, readOnlyRootFilesystem: true,
             capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
          startupProbe: {exec: {command: [a, b]}, initialDelaySeconds: 1, periodSeconds: 2, timeoutSeconds: 3,
                         failureThreshold: 4}
          livenessProbe: {exec: {command: [c]}}
          readinessProbe: {exec: {command: [d]}, successThreshold: 2}
          volumeMounts:
            - {name: empty, mountPath: /empty/}
            - {name: memory, mountPath: /dev/shm}
            - {name: map, mountPath: /map, readOnly: true}
            - {name: some, mountPath: /some}
            - {name: claim, mountPath: /claim}
      volumes:
        - {name: empty, emptyDir: {sizeLimit: 3Mi}}
        - {name: memory, emptyDir: {medium: Memory}}
        - {name: map, configMap: {name: files}}
        - {name: some, configMap: {name: files, defaultMode: 0555, items: [{key: a.txt, path: b/c.txt}]}}
        - {name: claim, persistentVolumeClaim: {claimName: mine}}
---
apiVersion: v1
kind: Service
metadata: {name: sub, namespace: ml}
spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {app: full}, ports: [{port: 1}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: files, namespace: ml}
data: {a.txt: hello}
binaryData: {b.bin: AAEC}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: mine, namespace: ml}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}
"""


def _set_with_everything() -> dict[str, Any]:
    return job_set(
        member("a", 2, groupName="first", replicas=2),
        member("b", groupName="second", dependsOn=[{"name": "a", "status": "Ready"}]),
        member("c", 3, groupName="first", replicas=2),
        coordinator={"replicatedJob": "c", "jobIndex": 1, "podIndex": 2},
        network={"subdomain": "net", "publishNotReadyAddresses": False},
        successPolicy={"operator": "Any", "targetReplicatedJobs": ["a", "c"]},
        failurePolicy={
            "maxRestarts": 3,
            "restartStrategy": "BlockingRecreate",
            "rules": [
                {"name": "one", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
                {"name": "two", "action": "RestartJobSetAndIgnoreMaxRestarts", "targetReplicatedJobs": ["b"]},
            ],
        },
        startupPolicy={"startupPolicyOrder": "InOrder"},
    )


TRAINER = {"numNodes": 3, "numProcPerNode": 2, "env": [{"name": "A", "value": "b"}], "args": ["x"],
           "resourcesPerNode": {"limits": {"cpu": "4", "memory": "1Gi"}}}  # fmt: skip

_OWN = member("node", 4)
_OWN["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "node"

TEXTS: dict[str, str] = {
    "job, as short as possible": SMALL,
    "job with every field": FULL,
    "set, as short as possible": yaml.safe_dump(job_set(member("a"))),
    "set whose first pod coordinates": yaml.safe_dump(job_set(member("a"), coordinator={"replicatedJob": "a"})),
    "set with every field": yaml.safe_dump(_set_with_everything()),
    "train job, as short as possible": yaml.safe_dump(train_job({})),
    "train job with more fields": yaml.safe_dump(train_job(TRAINER)),
    "train job with its runtime": yaml.safe_dump_all(
        [
            train_job({"numNodes": 2}, runtimeRef={"name": "own", "kind": "TrainingRuntime"}),
            runtime("own", _OWN, numNodes=4, torch={}),
        ]
    ),
    **{path.name: path.read_text() for path in sorted(EXAMPLES.glob("*.yaml"))},
}


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, Any]]:
    known = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    yield known
    if REWRITE:
        KEPT.write_text(json.dumps({name: known[name] for name in TEXTS}, indent=1, ensure_ascii=False) + "\n")


def _environment(manifest: Manifest, job: KubernetesJob, index: int) -> dict[str, str]:
    """Return a pod's environment without PATH, which begins with this machine's Python."""
    env = pod_environment(manifest, job, index, f"{job.name}-{index}", "127.0.1.2", "0,1")
    del env["PATH"]
    return env


@pytest.mark.parametrize("name", TEXTS)
def test_no_field_of_a_manifest_changes_unnoticed(name: str, kept: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "k8s.yaml"
    path.write_text(TEXTS[name])
    manifest = read_manifest(path)
    read = {key: value for key, value in asdict(manifest).items() if key not in ("text", "runtimes")}
    read["pods"] = {
        f"{job.name}-{index}": {
            "environment": _environment(manifest, job, index),
            "labels": pod_labels(job, index),
        }
        for job in manifest.job_set.jobs
        for index in (0, job.completions - 1)
    }
    text = json.dumps(read, default=lambda value: value.hex() if isinstance(value, bytes) else str(value))
    found = json.loads(UID.sub("UID", text))
    if REWRITE:
        kept[name] = found
    assert found == kept[name], "if the change is meant, rewrite read_manifests.json: see above"
