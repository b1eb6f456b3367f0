"""Training in pods: the manifest that `frog submit` renders, run by `frog run --from`."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

import psutil
import pytest
from harness import Harness, run_to_end, tree

from frog.events.heartbeat import read_heartbeat
from frog.events.schema import Beat

pytestmark = pytest.mark.slow


def rank_process(process: subprocess.Popen[str], beat: Beat) -> psutil.Process:
    """The process of the rank that left this heartbeat in its pod, as this machine sees it."""
    index = beat.host.rpartition("-")[2]
    for found in tree(process):
        with contextlib.suppress(psutil.Error, OSError):
            in_pod = re.findall(r"^NSpid:.*\t(\d+)$", Path(f"/proc/{found.pid}/status").read_text(), re.MULTILINE)
            if in_pod == [str(beat.pid)] and found.environ().get("JOB_COMPLETION_INDEX") == index:
                return found
    raise AssertionError(f"no process of {beat}")


@pytest.mark.timeout(1200)  # pods that start one after the other may miss each other once
def test_a_run_in_pods_survives_a_killed_rank(harness: Harness, may_make_pods: None) -> None:
    """The file that is shipped to a cluster, on this machine: the same weights as `frog run`, kill -9 or not."""
    settings = ["--set", "train.steps=120", "--set", "eval.every=120", "--set", "checkpoint.every=5"]
    options = ["--nodes", "2", "--ranks-per-node", "2", "--no-gpus", "--name", "pods", "--dry-run"]
    done = harness.run("frog", "submit", "run.toml", "--to", "kubernetes", *options, *settings, "--set", "name=pods")
    (harness.root / "pods.yaml").write_text(done.stdout)
    process = harness.start("frog", "run", "--from", "pods.yaml")
    harness.wait_for_step("pods", 11, process, timeout=120)  # the checkpoint of step 5 is whole
    beat = read_heartbeat(harness.folder("pods").heartbeat(2))
    assert beat is not None
    rank_process(process, beat).kill()
    out, err = run_to_end(process, 300)
    assert process.returncode == 0, f"{out}\n{err}"
    assert "rank 2 (pid " in out
    assert "was killed by SIGKILL" in out
    assert "ended with exit code 137; failure 1, of which the Job's backoffLimit allows 6" in err
    assert "resumed at step" in out
    harness.train(4, "no-pods", *settings[1::2])
    for key in ("weights_sha256", "order_sha256"):
        assert harness.record("pods")[key] == harness.record("no-pods")[key]
    beats = [read_heartbeat(harness.folder("pods").heartbeat(rank)) for rank in range(4)]
    hosts = {beat.host for beat in beats if beat}
    assert hosts == {"pods-0", "pods-1"}


def test_a_mistake_in_the_run_file_fails_the_job_at_once(harness: Harness, may_make_pods: None) -> None:
    """Exit code 2 of a rank is exit code 2 of its pod, which the Job's rule answers with FailJob."""
    options = ["--nodes", "1", "--ranks-per-node", "1", "--no-gpus", "--name", "wrong", "--dry-run"]
    done = harness.run("frog", "submit", "run.toml", "--to", "kubernetes", *options, "--set", "data.name=not-there")
    (harness.root / "wrong.yaml").write_text(done.stdout)
    failed = harness.run("frog", "run", "--from", "wrong.yaml", code=1)
    assert "not-there" in failed.stdout
    assert "Job wrong failed (PodFailurePolicy)" in failed.stderr
    assert "exit code 2" in failed.stderr
