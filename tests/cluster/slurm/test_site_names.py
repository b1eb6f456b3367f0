"""A cluster that answers to the names of another site: partitions, features of nodes, commands without effect."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import LIMIT_S

from frog.cluster.emulator import emulated_cluster as cluster
from frog.cluster.simulated_cluster import Shape, SiteNames, remove_commands, split_names
from frog.cluster.slurm.configuration import Site, write_configuration
from frog.core.errors import UsageError

CONFIGURED = Path(__file__).with_name("configured.json")
SITE = SiteNames(partitions=("gpu", "debug"), features=("a100",), commands=("module", "activate"))
JOB = """#!/bin/bash
#SBATCH --partition=gpu --constraint=a100&a100 --mail-type=END --gpus=4 --nodes=2 --mem-per-cpu=2G
set -eu
module load cuda/12.1
source activate env
echo "in $SLURM_JOB_PARTITION: $SLURM_GPUS GPUs, $SLURM_MEM_PER_CPU MB"
srun --jobid $SLURM_JOB_ID --job-name=inner --gres=gpu:2 --mem=0 bash -c 'echo $SLURM_JOB_NAME: $CUDA_VISIBLE_DEVICES'
srun --wait=1 --ntasks=2 bash -c '[ $SLURM_PROCID = 0 ] || exec sleep 100' || echo "code $?"
"""


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **cluster.environment(folder)}
    return subprocess.run(words, cwd=folder.parent, env=env, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("site") / "cluster"
    cluster.up(place, 2, 2, 8, kill_wait_s=1, site=SITE)
    yield place
    cluster.down(place)
    assert not place.exists()


def test_job_file_of_another_site_runs_to_its_end(folder: Path) -> None:
    (folder.parent / "job.sbatch").write_text(JOB)
    done = call(folder, "sbatch", "--wait", "--output=out", "job.sbatch")
    said = (folder.parent / "out").read_text()
    assert done.returncode == 0, done.stderr + said
    assert done.stderr == "sbatch: no effect on the emulator: --mail-type\n"
    assert "frog: no effect here: module load cuda/12.1\nfrog: no effect here: activate env\n" in said
    assert "in gpu: 4 GPUs, 2048 MB\n" in said
    assert said.count("inner: 0,1\n") == 2
    assert "code 137" in said


def test_every_partition_is_listed(folder: Path) -> None:
    assert call(folder, "sinfo", "--noheader", "--format=%P %D").stdout == "main* 2\ngpu 2\ndebug 2\n"


@pytest.mark.parametrize(
    ("option", "error", "hint"),
    [
        ("--partition=cpu", "invalid partition specified: cpu", "frog slurm up --emulator --partition cpu"),
        ("--constraint=v100|a100", "Invalid feature specification", "frog slurm up --emulator --feature v100"),
    ],
)
def test_name_that_the_cluster_lacks_is_refused_with_the_option(
    folder: Path, option: str, error: str, hint: str
) -> None:
    done = call(folder, "sbatch", option, "--wrap", "true")
    assert done.returncode == 1
    assert error in done.stderr
    assert hint in done.stderr


def test_step_with_fewer_gpus_than_its_job_is_refused(folder: Path) -> None:
    done = call(folder, "sbatch", "--wait", "--gpus-per-node=2", "--output=few", "--wrap", "srun --gres=gpu:1 true")
    assert done.returncode != 0
    assert "does not support 1 GPUs per node in a step" in (folder.parent / "few").read_text()


@pytest.mark.parametrize(
    ("kept", "shape", "names"), [("small", Shape(1, 0, 1), SiteNames()), ("with site names", Shape(3, 2, 8), SITE)]
)
def test_real_slurm_is_configured_word_by_word(kept: str, shape: Shape, names: SiteNames, tmp_path: Path) -> None:
    """Every file and link. After a change that is meant: FROG_REWRITE_GOLDEN=1, and read configured.json."""
    folder, scratch = tmp_path / "folder", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    site = Site("frog-00000000", folder, scratch, "host", "127.0.0.1", "me", tuple(range(7000, 7001 + shape.nodes)), 41)
    write_configuration(site, shape, names)
    assert site.owns_scratch
    assert Site.of(site.fields()) == site
    found: dict[str, list[str]] = {}
    for path in sorted(tmp_path.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(tmp_path))] = [f"-> {os.readlink(path)}"]
        elif path.is_dir():
            found[str(path.relative_to(tmp_path))] = ["a folder"]
        else:
            mode = f"{path.stat().st_mode & 0o777:o}" if os.access(path, os.X_OK) else "a file"
            found[str(path.relative_to(tmp_path))] = [mode, *path.read_text().splitlines()]
    found = {name: [line.replace(str(tmp_path), "HERE") for line in lines] for name, lines in found.items()}
    known = json.loads(CONFIGURED.read_text()) if CONFIGURED.exists() else {}
    if "FROG_REWRITE_GOLDEN" in os.environ:
        known[kept] = found
        CONFIGURED.write_text(json.dumps(known, indent=1) + "\n")
    assert found == known[kept]


def test_names_are_split_and_checked() -> None:
    assert split_names(["a,b", "b c"]) == ("a", "b", "c")
    for wrong in ("../x", "a/b", "a;b", "-x"):
        with pytest.raises(UsageError, match="expected a name"):
            SiteNames(commands=(wrong,))


def test_only_written_commands_are_removed(tmp_path: Path) -> None:
    SITE.write_commands(tmp_path / "commands")
    (tmp_path / "commands" / "mine").write_text("")
    remove_commands(tmp_path / "commands")
    assert [file.name for file in (tmp_path / "commands").iterdir()] == ["mine"]
