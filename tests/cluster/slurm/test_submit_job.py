"""Job files of `frog submit` on a real Slurm, and real refusals of files that `frog slurm explain` says will fail."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from harness import LIMIT_S, Harness
from slurm_harness import RealSlurm

from frog.cluster.jobfile.cluster_profile import load_profile
from frog.cluster.submit.slurm_job import SlurmRequest, render_job
from frog.core.config import load_run_config

pytestmark = pytest.mark.slow

CLUSTERS = Path(__file__).parents[3] / "config" / "clusters"
HEAD = (
    "#!/bin/bash\n#SBATCH --job-name=it\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --time=5\n{}\necho\n"
)


@pytest.mark.timeout(1200)
def test_submitted_run_completes(harness: Harness, real_slurm: RealSlurm) -> None:
    shutil.copytree(CLUSTERS, harness.root / "config" / "clusters", dirs_exist_ok=True)
    python = harness.root / "config" / "clusters" / "here.toml"
    python.write_text(f"gpus_per_node = 4\ncpus_per_gpu = 2\npython = {json.dumps(sys.executable)}\n")
    words = [
        "frog",
        "submit",
        "run.toml",
        "--to",
        "slurm",
        "--profile",
        "here",
        "--nodes",
        "2",
        "--ranks-per-node",
        "1",
    ]
    output = real_slurm.ask(*words, cwd=harness.root)
    found = re.match(r"job (\d+) is in the queue: 2 x 1 rank of", output)
    assert found
    job = found[1]
    real_slurm.wait_for(job, "COMPLETED", limit_s=900)
    record = harness.record(f"tiny-{job}")
    assert (record["status"], record["step"]) == ("completed", 8)
    assert harness.folder(f"tiny-{job}").event_ranks() == [0, 1]
    log = (harness.root / "runs" / "jobs" / f"tiny-{job}.out").read_text()
    order = [log.index(words) for words in ("allocation:", "workers:", "cleanup: the workers exited with code 0")]
    assert order == sorted(order)


def asks_sbatch(text: str, real_slurm: RealSlurm, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.sbatch").write_text(text, newline="")
    command = ["sbatch", "--test-only", *words, "job.sbatch"]
    return subprocess.run(command, cwd=folder, env=real_slurm.env, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.mark.parametrize("name", ["generic", "marenostrum5"])
def test_sbatch_accepts_the_job_file_of_every_profile(
    name: str, harness: Harness, real_slurm: RealSlurm, tmp_path: Path
) -> None:
    profile = replace(load_profile(name, CLUSTERS), account="bsc01")
    config = load_run_config(harness.root / "run.toml")
    text = render_job(SlurmRequest(config, Path("run.toml"), profile, nodes=2, ranks_per_node=2))
    done = asks_sbatch(text, real_slurm, tmp_path, "--partition=main")
    assert done.returncode == 0, done.stderr
    cpus = 2 * 2 * (profile.cpus_per_gpu or 1)
    assert f"using {cpus} processors on nodes node[1-2]" in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "",
        "#SBATCH -J b # it's a comment with a quote that is not closed",
        '#SBATCH --comment="a b" --gpus-per-no=4',
        "# SBATCH --nonsense",
        "echo\n#SBATCH --nonsense",
    ],
)
def test_sbatch_accepts_directives_that_explain_accepts(line: str, real_slurm: RealSlurm, tmp_path: Path) -> None:
    assert asks_sbatch(HEAD.format(line), real_slurm, tmp_path).returncode == 0


@pytest.mark.parametrize(
    "text",
    [
        HEAD.format("#SBATCH --ntask-per-nodes=1"),
        HEAD.format("#SBATCH -N=2"),
        HEAD.format("#SBATCH --nodes = 2"),
        HEAD.format("#SBATCH --job-name"),
        HEAD.format("#SBATCH --requeue=yes"),
        HEAD.format("#SBATCH --time=half-an-hour"),
        HEAD.format("#SBATCH --cpus-per-task=all"),
        HEAD.format("#SBATCH --signal=USR1:B@120"),
        HEAD.format("").replace("#!/bin/bash\n", ""),
        HEAD.format("").replace("\n", "\r\n"),
    ],
)
def test_sbatch_refuses_files_that_explain_says_will_fail(text: str, real_slurm: RealSlurm, tmp_path: Path) -> None:
    assert asks_sbatch(text, real_slurm, tmp_path).returncode != 0
