"""Job files for a program that is not Frog's: golden files, no traps, refusals, and a run on the emulator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import LIMIT_S

from frog.cli import main
from frog.cluster.emulator import emulated_cluster as cluster
from frog.cluster.jobfile.explain import explain
from frog.cluster.submit.slurm_job import SlurmRequest, check_request, render_job
from frog.cluster.submit.submitted_work import ProgramWork, program_work
from frog.core.errors import UsageError

from test_job_files import GENERIC, PROFILES  # isort: skip

GOLDEN = Path(__file__).parent / "golden"
OBSERVER = Path("/shared/observe/hook")
SCRIPT = ProgramWork(("my.py", "--lr", "0.1 x"), "my", False, OBSERVER)
MODULE = ProgramWork(("python", "-m", "pack.train"), "train", True, None)
PLAIN_TORCH = r"""
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
line = f"rank {dist.get_rank()} of {int(total)} with {sys.argv[1:]} on {os.environ['SLURMD_NODENAME']}\n"
print(line, end="", flush=True)  # one write, even with PYTHONUNBUFFERED
dist.destroy_process_group()
"""


def request_of(work: ProgramWork, profile: str = "generic") -> SlurmRequest:
    found = SlurmRequest(work, Path(work.file or work.name), PROFILES[profile], nodes=2, ranks_per_node=2)
    check_request(found)
    return found


@pytest.mark.parametrize(("name", "work"), [("script", SCRIPT), ("module", MODULE)])
def test_job_file_of_a_program_is_the_golden_one(name: str, work: ProgramWork) -> None:
    """FROG_REWRITE_GOLDEN=1 rewrites the files."""
    text, path = render_job(request_of(work)), GOLDEN / f"{name}.sbatch"
    if os.environ.get("FROG_REWRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("work", [SCRIPT, MODULE], ids=["script", "module"])
def test_job_file_of_a_program_has_no_findings(work: ProgramWork, profile: str, tmp_path: Path) -> None:
    (tmp_path / "runs" / "jobs").mkdir(parents=True)
    text = render_job(request_of(work, profile))
    assert explain(text, Path("job.sbatch"), PROFILES[profile], (tmp_path,)).findings == ()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=LIMIT_S)


@pytest.mark.parametrize(
    ("words", "target", "name"),
    [
        (("my.py", "--a", "b c"), "my.py --a 'b c'", "my"),
        (("-m", "pack.train"), "-m pack.train", "train"),
        (("python3.11", "dir/my script.py"), "'dir/my script.py'", "my-script"),
        (("./run.sh", "x"), "--no-python ./run.sh x", "run"),
        (("my.py", "$$x ${local_rank}"), "my.py '$$$$x $${local_rank}'", "my"),
        (("python", "-c", "pass"), "--no-python python -c pass", "pass"),
    ],
)
def test_program_becomes_the_last_words_of_torchrun(
    words: tuple[str, ...], target: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir").mkdir()
    for file in ("my.py", "dir/my script.py", "run.sh"):
        (tmp_path / file).write_text("")
    work = program_work(words, to="slurm", requeue=False, observer=None, name=None)
    assert (work.target, work.name) == (target, name)


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["missing.py"], "missing.py: no such file", "submit from the folder"),
        (["torchrun", "--nproc-per-node=4", "my.py", "-x"], "starts torchrun", "-- my.py -x"),
        (["python"], "no script to run", "my.py"),
        (["my.py", "a\nb"], "one line", "script"),
    ],
)
def test_impossible_program_is_refused(
    words: list[str], error: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text("")
    with pytest.raises(UsageError, match=error) as caught:
        program_work(words, to="slurm", requeue=False, observer=None, name=None)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--to", "slurm"], "nothing to submit"),
        (["--to", "slurm", "--set", "train.steps=1", "--", "my.py"], "--set: cannot be combined with a program"),
        (["run.toml", "--to", "slurm", "--requeue"], "--requeue: cannot be combined with a run file"),
    ],
)
def test_options_that_do_not_fit_the_work_are_refused(
    words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", *words]) == 2
    assert error in capsys.readouterr().err


def test_profile_comes_with_frog_outside_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text("")
    words = ["--to", "slurm", "--nodes", "2", "--name", "mine", "--dry-run", "--", "my.py", "--lr", "1"]
    assert main(["submit", *words]) == 0
    text = capsys.readouterr().out
    assert f"gpus-per-node={GENERIC.gpus_per_node}\n" in text
    assert "# Made by: frog submit --to slurm --name mine --nodes 2 -- my.py --lr 1\n" in text
    assert "torchrun my.py --lr 1 &\n" in text


@pytest.mark.slow
def test_plain_torch_script_runs_from_its_job_file_on_the_emulator(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(PLAIN_TORCH)
    cluster.up(tmp_path / "cluster", 2, 2, 8, kill_wait_s=1)
    try:
        env = {**os.environ, **cluster.environment(tmp_path / "cluster")}
        env["PATH"] = os.pathsep.join([env["PATH"].split(os.pathsep)[0], str(Path(sys.executable).parent), env["PATH"]])
        frog = [sys.executable, "-m", "frog.cli", "submit", "--to", "slurm", "--nodes", "2", "--ranks-per-node", "1"]
        words = [*frog, "--profile", str(write_profile(tmp_path)), "--", "my.py", "a b"]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        job = done.stdout.split()[1]
        wait = ["sbatch", "--wait", f"--dependency=afterany:{job}", "--wrap", "true"]
        subprocess.run(wait, cwd=tmp_path, env=env, check=True, capture_output=True, timeout=LIMIT_S)
    finally:
        cluster.down(tmp_path / "cluster")
    jobs = tmp_path / "runs" / "jobs"
    said = "".join(path.read_text() for path in sorted(jobs.glob("*.out")))
    for rank in range(2):
        assert f"rank {rank} of 2 with ['a b'] on node{rank + 1}\n" in said, said
    assert "cleanup: the workers exited with code 0" in said
    observed = tmp_path / "runs" / f"my-{job}" / "observed" / "attempt_0"
    assert sorted(path.name for path in observed.glob("rank_*")) == ["rank_0", "rank_1"]


def write_profile(folder: Path) -> Path:
    path = folder / "small.toml"
    path.write_text("gpus_per_node = 2\ncpus_per_gpu = 2\n")
    return path
