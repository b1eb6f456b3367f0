"""One real Slurm, started once, for the tests of this folder."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import pytest
from slurm_harness import BIN, CPUS_PER_NODE, GPUS_PER_NODE, NODES, RealSlurm, frog_slurm, need_slurm


@pytest.fixture(scope="session")
def real_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSlurm]:
    need_slurm()
    root = tmp_path_factory.mktemp("slurm")
    size = ("--nodes", NODES, "--gpus-per-node", GPUS_PER_NODE, "--cpus-per-node", CPUS_PER_NODE)
    try:
        frog_slurm("up", *map(str, size), cwd=root)
        lines = frog_slurm("env", cwd=root).splitlines()
        changes = dict(shlex.split(line)[1].split("=", 1) for line in lines)
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        yield RealSlurm(root / ".slurm", {**os.environ, "PATH": path, **changes})
    finally:
        if (root / ".slurm" / "cluster.json").exists():
            frog_slurm("down", cwd=root)
