"""Training in pods: `frog run --from` runs the manifest that `frog submit` renders."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Harness, run_to_end
from in_process import write_faults

from frog.core.runs.heartbeat import read_heartbeat
from frog.measure.chaos.sandbox import faults_env

pytestmark = pytest.mark.slow


@pytest.mark.timeout(1200)  # pods that start one after the other may miss each other once
def test_run_in_pods_survives_a_killed_rank(harness: Harness, may_make_pods: None) -> None:
    """The manifest for a cluster produces the same weights on this machine as `frog run`, with or without kill -9.

    Step 15 is saved only after the checkpoint of step 5 is complete.
    """
    settings = ["--set", "train.steps=40", "--set", "eval.every=40", "--set", "checkpoint.every=5"]
    options = ["--nodes", "2", "--ranks-per-node", "2", "--no-gpus", "--name", "pods", "--dry-run"]
    done = harness.run("frog", "submit", "run.toml", "--to", "kubernetes", *options, *settings, "--set", "name=pods")
    write_faults(harness.root / "faults.toml", {"kind": "kill", "rank": 2, "step": 17, "phase": "forward"})
    env = "          env:\n"
    assert done.stdout.count(env) == 1
    ((name, value),) = faults_env(Path("faults.toml")).items()
    pods = done.stdout.replace(env, f"{env}            - name: {name}\n              value: {value}\n")
    (harness.root / "pods.yaml").write_text(pods)
    process = harness.start("frog", "run", "--from", "pods.yaml")
    out, err = run_to_end(process, limit_s=900)
    assert process.returncode == 0, f"{out}\n{err}"
    assert "rank 2 (pid " in out
    assert "was killed by SIGKILL" in out
    assert "ended with exit code 137 (failure 1, backoffLimit 6)" in err
    assert "resumed at step" in out
    harness.train(4, "no-pods", *settings[1::2])
    for key in ("weights_sha256", "order_sha256"):
        assert harness.record("pods")[key] == harness.record("no-pods")[key]
    beats = [read_heartbeat(harness.folder("pods").heartbeat(rank)) for rank in range(4)]
    hosts = {beat.host for beat in beats if beat}
    assert hosts == {"pods-0", "pods-1"}


def test_run_file_mistake_fails_the_job_without_retries(harness: Harness, may_make_pods: None) -> None:
    """Exit code 2 of a rank becomes that of its pod, and the Job's rule then fails the Job."""
    options = ["--nodes", "1", "--ranks-per-node", "1", "--no-gpus", "--name", "wrong", "--dry-run"]
    done = harness.run("frog", "submit", "run.toml", "--to", "kubernetes", *options, "--set", "data.name=not-there")
    (harness.root / "wrong.yaml").write_text(done.stdout)
    failed = harness.run("frog", "run", "--from", "wrong.yaml", code=1)
    assert "not-there" in failed.stdout
    assert "Job wrong failed (PodFailurePolicy)" in failed.stderr
    assert "exit code 2" in failed.stderr
