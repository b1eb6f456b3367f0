"""Values of a cluster profile stay values: none becomes a line of the job file, or a command in one.

The test puts every value into every text field of a profile. Frog refuses the value, or the job file runs with
stand-ins for Slurm's programs and does not execute the value.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from harness import LIMIT_S, MODEL, RUN_FILE

from frog.cluster.jobfile.cluster_profile import ClusterProfile, parse_profile
from frog.cluster.submit.slurm_job import SlurmRequest, check_request, render_job
from frog.core.config import RunConfig, load_run_config
from frog.core.errors import ConfigError

HOSTILE = (
    "$(touch hit)", "`touch hit`", "\ntouch hit\n", "x\ntouch${IFS}hit", "x\rtouch hit", '"; touch hit; "',
    "'; touch hit; '", "'\"; touch hit; \"'", "; touch hit #", "${X:-$(touch hit)}", "${X:=`touch hit`}",
    "$((a[$(touch hit)]))", "$[a[$(touch hit)]]", "${HIT@P}", "\\$(touch hit)", '\\"; touch hit; \\"', "\\",
    "& touch hit &", "|touch hit", "<(touch hit)", ">hit", "*", "--comment=$(touch hit)",
    "--exclusive\n--comment=$(touch${IFS}hit)",
    "$HIT", "x\u2028touch hit", "x\0touch hit",
)  # fmt: skip
PLACES = ("name", "description", "source", "partition", "account", "qos", "python", "container", "scratch", "modules",
          "directives", "check", "environment", "max_time", "gpu_option")  # fmt: skip
LISTS = ("modules", "directives", "check")
STAND_INS = {
    "srun": 'while [[ $1 == -* ]]; do shift; done; SLURM_NODEID=0 exec "$@"',
    "scontrol": 'echo "node0 NodeAddr=127.0.0.1 x"',
    "module": "true",
    "apptainer": 'for word; do echo "$word"; done > apptainer.words',
    "mkdir": 'echo "${@: -1}" > scratch.word',
    "scancel": "true",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a project with a run file and stand-ins for Slurm's programs."""
    root = tmp_path_factory.mktemp("hostile")
    (root / "config.json").write_text(json.dumps(MODEL))
    (root / "run.toml").write_text(RUN_FILE)
    (root / "bin").mkdir()
    for name, text in STAND_INS.items():
        (root / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (root / "bin" / name).chmod(0o755)
    return root


def profile_of(place: str, value: str) -> ClusterProfile:
    table: dict[str, Any] = {"python": "/bin/true", place: [value] if place in LISTS else value}
    if place == "environment":
        table["environment"] = {"A": value}
    return parse_profile(table, Path("mine.toml"))


def run_job(here: Path, config: RunConfig, profile: ClusterProfile, run_file: Path = Path("run.toml")) -> None:
    request = SlurmRequest(config, run_file, profile)
    check_request(request)
    surroundings = {
        "PATH": f"{here / 'bin'}{os.pathsep}/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "USER": "me",
        "SLURM_JOB_NODELIST": "node0", "SLURM_CPUS_PER_TASK": "1", "HIT": "$(touch hit)",
    }  # fmt: skip
    subprocess.run(
        ["bash", "-c", render_job(request)], cwd=here, env=surroundings, capture_output=True, timeout=LIMIT_S
    )


@pytest.mark.parametrize("place", PLACES)
def test_profile_value_never_becomes_a_command(place: str, here: Path) -> None:
    config, took = load_run_config(here / "run.toml"), []
    for value in HOSTILE:
        try:
            profile = profile_of(place, value)
        except ConfigError:
            continue
        run_job(here, config, profile)
        took.append(value)
        assert not (here / "hit").exists(), value
    if place in ("environment", "modules"):  # the job file quotes them
        assert "$(touch hit)" in took
    if place in ("container", "scratch"):
        assert "$HIT" in took


def test_profile_values_reach_the_job(here: Path) -> None:
    """The stand-in run executes values: it expands their variables, so it would also run their commands."""
    config = load_run_config(here / "run.toml")
    run_job(here, config, profile_of("container", "/images/${USER}/it's one.sif"))
    assert "/images/me/it's one.sif" in (here / "apptainer.words").read_text().splitlines()
    run_job(here, config, profile_of("scratch", "/scratch/$USER/a b"))
    assert (here / "scratch.word").read_text() == "/scratch/me/a b/cache\n"


def test_stand_ins_detect_an_executed_command(here: Path) -> None:
    run_job(
        here, load_run_config(here / "run.toml"), ClusterProfile(name="x", python="/bin/true", scratch="$(touch hit)")
    )
    (here / "hit").unlink()


@pytest.mark.parametrize(
    "name", ["$(touch hit).toml", "`touch hit`.toml", "a\ntouch hit\n.toml", '"; touch hit; ".toml']
)
def test_run_file_name_never_becomes_a_command(name: str, here: Path) -> None:
    config = load_run_config(here / "run.toml")
    try:
        run_job(here, config, profile_of("name", "mine"), Path(name))
    except ConfigError:
        assert "\n" in name
    assert not (here / "hit").exists()
