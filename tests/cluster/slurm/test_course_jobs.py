"""The grader checks lab 3's job files on a running local Slurm, if there is one, and the verdict names it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness import wait_until
from slurm_harness import RealSlurm

from frog.learn.grader.client import Grader
from frog.learn.grader.exercise import find_exercise
from frog.learn.grader.job_clusters import running_slurm
from frog.learn.grader.verdict import Verdict
from frog.learn.solution_checks import solution_cases


def check(grader: Grader, shown: str) -> Verdict:
    """Return the verdict on one of the solutions shipped with an exercise; it must be the expected one."""
    number, _, title = shown.partition(" ")
    exercise = find_exercise(number)
    one = next(each for each in solution_cases(exercise) if each.title == f"{exercise.id} {title}")
    verdict = grader.check(exercise, one.files)
    assert (problem := one.problem(verdict)) is None, problem
    return verdict


@pytest.mark.slow
def test_grader_uses_the_running_slurm(real_slurm: RealSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, real_slurm.env[name])
    wait_until(lambda: running_slurm() is not None, "two idle nodes")
    slurm = f"on {running_slurm()}"
    with Grader() as grader:
        passed = check(grader, "3.7 reference")
        assert [line.value for line in passed.measured] == 4 * [f"4 ranks on 2 nodes joined, {slurm}"]
        for wrong in ("3.7 wrong/a-space-makes-a-comment", "3.7 wrong/last-host"):
            assert slurm in str(check(grader, wrong).observed)
        # The emulator runs the job whose time limit changes, and the real Slurm runs those with exit codes.
        assert f"exit.sbatch, {slurm}: rank 1 failed" in str(check(grader, "3.8 wrong/code-lost").observed)
    assert real_slurm.ask("squeue", "--noheader") == ""


IDLE = "node1 127.0.0.1 idle\nnode2 127.0.0.1 idle"


@pytest.mark.parametrize(
    ("nodes", "conf", "expected"),
    [
        (IDLE, "slurm.conf", "Slurm 22.05.8"),
        (IDLE, "", None),
        (IDLE.replace("node2 127.0.0.1 idle", "node2 127.0.0.1 allocated"), "slurm.conf", None),
        (IDLE.replace("127.0.0.1", "10.0.0.7"), "slurm.conf", None),
        (IDLE.replace("node", "gpu"), "slurm.conf", None),
        ("", "slurm.conf", None),
    ],
    ids=["ours", "no cluster chosen", "at work", "of several machines", "other names", "does not answer"],
)
def test_grader_selects_slurm_by_its_nodes(
    nodes: str, conf: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, says in (("sbatch", "slurm-wlm 22.05.8"), ("sinfo", nodes)):
        (tmp_path / name).write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", conf)
    assert running_slurm() == expected
