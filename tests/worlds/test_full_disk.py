"""A disk that fills up during a checkpoint: the run ends with an error, and the last good checkpoint stays."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import Harness

from frog.train.checkpoint import find_good


def small_disk(path: Path, num_bytes: int) -> list[str]:
    """Return a command prefix that mounts a file system of that size at `path`; [] if that is impossible."""
    unshare = shutil.which("unshare")
    if sys.platform != "linux" or unshare is None:
        return []
    mount = f'mount -t tmpfs -o size={num_bytes} tmpfs "{path}" && exec "$@"'
    words = [unshare, "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    return words if subprocess.run([*words, "true"], capture_output=True).returncode == 0 else []


@pytest.mark.slow
def test_full_disk_ends_the_run_with_its_last_good_checkpoint(harness: Harness) -> None:
    disk = harness.root / "disk"
    disk.mkdir(exist_ok=True)
    words = small_disk(disk, 700_000)
    if not words:
        pytest.skip("a small disk needs root or user namespaces")
    script = (
        "cd disk && ln -s ../data data && cp ../run.toml ../config.json . && "
        "frog run --nproc 2 -- train run.toml --set train.steps=400; code=$?; "
        "cp -r runs/tiny ../full-disk; exit $code"
    )
    done = harness.run(*words, "bash", "-c", script, code=1)
    last = done.stderr[done.stderr.rindex("error:") :]
    assert "No space left on device" in last
    assert "the last complete checkpoint is from step" in last
    assert "Traceback" not in last
    shutil.move(harness.root / "full-disk", harness.root / "runs" / "full-disk")
    folder = harness.folder("full-disk")
    checkpoint, passed_over = find_good(folder)
    assert checkpoint is not None
    assert passed_over == []
    assert f"step {checkpoint.step};" in last
    record = folder.read_record()
    assert record is None or record.status == "failed"
