"""A minimal Job, which tests modify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from frog.cluster.kubernetes.manifest import read_manifest

SMALL = """
apiVersion: batch/v1
kind: Job
metadata: {name: small}
spec:
  completionMode: Indexed
  completions: 2
  template:
    spec:
      restartPolicy: Never
      containers:
        - {name: one, image: any, command: [sh], args: ["-c", "true"]}
"""


def read(tmp_path: Path, text: str, *changes: tuple[str, str]) -> Any:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "k8s.yaml"
    path.write_text(text)
    return read_manifest(path, ["more"])
