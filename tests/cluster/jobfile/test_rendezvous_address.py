"""`frog slurm explain` on files that query the first node for its address, as many tutorials do, usually correctly."""

from __future__ import annotations

from pathlib import Path

import pytest

from frog.cluster.jobfile.explain import explain

HEAD = """#!/bin/bash
#SBATCH --job-name=meet
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=5
hosts=($(scontrol show hostnames $SLURM_JOB_NODELIST))
first=${hosts[0]}
"""
RUN = "srun torchrun --nnodes 2 --nproc_per_node 1 --rdzv_backend c10d --rdzv_endpoint $where:29500 train.py\n"


@pytest.mark.parametrize("how", ["hostname --ip-address", "hostname -i", "hostname -I | cut -d' ' -f1"])
def test_single_address_of_first_host_has_no_finding(how: str, tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    text = f'{HEAD}where=$(srun --nodes=1 --ntasks=1 -w "$first" {how})\n{RUN}'
    assert found_in(text, path) == found_in(f"{HEAD}where=$first\n\n{RUN}".replace("\n\nsrun", "\nsrun"), path)
    assert "head-not-node-0" in {name for name, _ in found_in(text.replace("hosts[0]", "hosts[1]"), path)}


def test_all_addresses_of_first_host_are_reported(tmp_path: Path) -> None:
    text = f'{HEAD}where=$(srun --nodes=1 --ntasks=1 -w "$first" hostname -I)\n{RUN}'
    assert ("many-addresses", 10) in found_in(text, tmp_path / "job.sbatch")


def test_first_host_of_the_list_has_no_finding(tmp_path: Path) -> None:
    names = {name for name, _ in found_in(f"{HEAD}where=$first\n{RUN}", tmp_path / "job.sbatch")}
    assert not names & {"head-localhost", "many-addresses", "head-not-node-0", "nodelist-folded"}


def found_in(text: str, path: Path) -> set[tuple[str, int]]:
    return {(finding.code, finding.line) for finding in explain(text, path).findings}
