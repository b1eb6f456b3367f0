"""A Python environment inside a folder where a pod mounts a volume: Frog mounts it again on top of the volume."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from harness import Harness
from small_manifest import SMALL, read

import frog
from frog.cluster.kubernetes.local_cluster import check_volumes
from frog.cluster.kubernetes.local_pod import hidden_by
from frog.core.errors import UsageError

ABOVE = str(Path(sys.prefix).parent)
SOURCES = str(Path(frog.__file__).parents[1])
POD = SMALL.replace("completions: 2", "completions: 1").replace(
    """{name: one, image: any, command: [sh], args: ["-c", "true"]}""",
    f"""{{name: one, image: any, command: [python], args: ["-c", "import frog.core.units, os; os.mkdir('{ABOVE}/new')"],
           volumeMounts: [{{name: empty, mountPath: {ABOVE}}}]}}
      volumes: [{{name: empty, VOLUME}}]""",
)


def test_volume_hides_the_folders_below_its_mount_path() -> None:
    assert sys.prefix in hidden_by(ABOVE)
    assert SOURCES in hidden_by(SOURCES)
    assert hidden_by("/config") == []


@pytest.mark.parametrize("volume", ["emptyDir: {}", pytest.param("emptyDir: {medium: Memory}", marks=pytest.mark.slow)])
def test_python_stays_visible_inside_an_empty_volume(tmp_path: Path, may_make_pods: None, volume: str) -> None:
    (tmp_path / "k8s.yaml").write_text(POD.replace("VOLUME", volume))
    done = Harness(tmp_path).run("frog", "run", "--from", "k8s.yaml")
    assert "Job small is complete" in done.stderr
    assert not (Path(ABOVE) / "new").exists()


def test_claim_that_hides_python_is_refused(tmp_path: Path) -> None:
    manifest = read(tmp_path, POD, ("VOLUME", "persistentVolumeClaim: {claimName: disk}"))
    with pytest.raises(UsageError, match="hides this machine's Python"):
        check_volumes(manifest)
