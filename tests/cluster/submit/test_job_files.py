"""Job files that `frog submit` renders: correct for every profile, refused if impossible, passed to sbatch."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from harness import LIMIT_S, MODEL, RUN_FILE

from frog.cli import main
from frog.cluster.jobfile.cluster_profile import ClusterProfile, load_profile
from frog.cluster.jobfile.explain import explain
from frog.cluster.jobfile.job_file import JobFile, read_job_file
from frog.cluster.jobfile.line_meanings import summary
from frog.cluster.submit.slurm_job import SlurmRequest, check_request, render_job
from frog.cluster.submit.submit_commands import FOR_KUBERNETES, FOR_SLURM, add_submit_parser
from frog.cluster.submit.submit_slurm import render_checked
from frog.core.config import RunConfig, load_run_config
from frog.core.errors import ConfigError, UsageError

CLUSTERS = Path(__file__).parents[3] / "config" / "clusters"
GENERIC, MN5 = (load_profile(name, CLUSTERS) for name in ("generic", "marenostrum5"))
RUN = Path("run.toml")

PROFILES = {
    "generic": GENERIC,
    "marenostrum5": replace(MN5, account="bsc01"),
    "cpus": ClusterProfile(name="cpus", cpus_per_gpu=2),
    "container": ClusterProfile(name="container", gpus_per_node=2, cpus_per_gpu=4, container="/shared/it's frog.sif"),
    "exclusive": ClusterProfile(name="exclusive", gpus_per_node=2, directives=("--exclusive", "--mem=0")),
    "modules": ClusterProfile(
        name="m", gpus_per_node=4, modules=("a/1", "b"), environment={"X": "a 'b' $c"}, network=False
    ),
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return load_run_config(project(tmp_path_factory.mktemp("project")) / RUN)


def project(folder: Path) -> Path:
    """Create a user's project folder with a tiny run and the profiles; the data set does not exist."""
    (folder / "config.json").write_text(json.dumps(MODEL))
    (folder / "run.toml").write_text(RUN_FILE)
    shutil.copytree(CLUSTERS, folder / "config" / "clusters")
    (folder / "data" / "rhymes").mkdir(parents=True)
    (folder / "data" / "rhymes" / "manifest.json").write_text("{}")
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").symlink_to(shutil.which("python3") or "/usr/bin/python3")
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project(tmp_path))
    return tmp_path


def job_of(request: SlurmRequest) -> JobFile:
    return read_job_file(render_job(request), Path("job.sbatch"))


@pytest.mark.parametrize("name", PROFILES)
def test_rendered_job_file_has_no_findings(name: str, config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "runs" / "jobs").mkdir(parents=True)
    for bundled in (False, True):
        request = SlurmRequest(config, RUN, PROFILES[name], nodes=2, bundled=bundled, settings=("train.steps=5",))
        check_request(request)
        assert explain(render_job(request), Path("job.sbatch"), PROFILES[name], (tmp_path,)).findings == ()


@pytest.mark.parametrize("name", PROFILES)
def test_rendered_job_file_passes_shellcheck(name: str, config: RunConfig) -> None:
    text = render_job(SlurmRequest(config, Path("a run's file.toml"), PROFILES[name], nodes=2, settings=("name=it",)))
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=LIMIT_S)
    if shutil.which("shellcheck"):
        words = ["shellcheck", "--shell=bash", "--exclude=SC2016", "-"]
        done = subprocess.run(words, input=text, text=True, capture_output=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stdout


def test_rendered_job_file_requests_the_given_resources(config: RunConfig) -> None:
    job = job_of(SlurmRequest(config, RUN, MN5, nodes=2, account="bsc01", qos="acc_debug", time="01:00:00"))
    asked = {item.name: item.value for item in job.options}
    assert asked == {
        "job-name": "tiny", "account": "bsc01", "partition": "acc", "qos": "acc_debug", "nodes": "2",
        "ntasks-per-node": "1", "gres": "gpu:4", "cpus-per-task": "80", "time": "01:00:00", "signal": "B:USR1@120",
        "open-mode": "append", "output": "runs/jobs/tiny-%j.out", "requeue": None,
    }  # fmt: skip
    assert summary(job)[1] == "starts: 8 ranks = 2 nodes x 4"


def test_job_file_for_cluster_without_gpus_requests_none(config: RunConfig) -> None:
    job = job_of(SlurmRequest(config, RUN, PROFILES["cpus"], nodes=2, ranks_per_node=4))
    assert (job.gpus_per_node, job.number("cpus-per-task")) == (0, 8)


def test_run_name_comes_from_job_or_user(config: RunConfig) -> None:
    assert '--set name="tiny-$SLURM_JOB_ID"' in render_job(SlurmRequest(config, RUN, GENERIC))
    named = render_job(SlurmRequest(config, RUN, GENERIC, settings=("name=mine",)))
    assert "--set name=mine" in named
    assert "tiny-$SLURM_JOB_ID" not in named.replace("runs/jobs/tiny-$SLURM_JOB_ID", "")


@pytest.mark.parametrize(
    ("time", "signal_s"), [("00:30:00", 120), ("3-00:00:00", 120), ("00:04:00", 60), ("00:01:00", 15)]
)
def test_signal_leaves_time_to_save(time: str, signal_s: int, config: RunConfig) -> None:
    request = SlurmRequest(config, RUN, GENERIC, time=time)
    text = render_job(request)
    grace = re.search(r"--shutdown-timeout=(\d+)", text)
    assert job_of(request).text("signal") == f"B:USR1@{signal_s}"
    assert grace
    assert 0 < int(grace[1]) < signal_s


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"nodes": 0}, "--nodes 0: must be at least 1"),
        ({"ranks_per_node": 0}, "--ranks-per-node 0: must be at least 1"),
        ({"ranks_per_node": 8}, "--ranks-per-node 8: a node of marenostrum5 has 4 GPUs"),
        ({"nodes": 9, "qos": "acc_debug"}, "--nodes 9: marenostrum5 allows 8 with qos acc_debug"),
        ({"time": "03:00:00", "qos": "acc_debug"}, "allows at most 02:00:00 with qos acc_debug"),
        ({"time": "an hour"}, "--time an hour: not a time"),
        ({"time": "UNLIMITED"}, "a job needs a limit"),
        ({"time": "0:30"}, "Slurm counts in minutes"),
        ({"account": None}, "--account: marenostrum5 requires the account"),
        ({"account": "a b"}, "--account 'a b': not a valid name"),
        ({"nodes": 3}, "train.global_batch_size=8 is not a multiple of world size 12"),
    ],
)
def test_impossible_request_is_refused(asked: dict[str, object], message: str, config: RunConfig) -> None:
    request = replace(SlurmRequest(config, RUN, MN5, account="bsc01"), **asked)
    with pytest.raises(ConfigError, match="nothing was submitted") as caught:
        check_request(request)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "asked",
    [
        {"nodes": 1},
        {"nodes": 8, "ranks_per_node": 1, "qos": "acc_debug"},
        {"nodes": 1, "ranks_per_node": 4},
        {"nodes": 2, "time": "02:00:00", "qos": "acc_debug"},
    ],
)
def test_request_at_the_limits_is_accepted(asked: dict[str, object], config: RunConfig) -> None:
    check_request(replace(SlurmRequest(config, RUN, MN5, account="bsc01"), **asked))


def test_one_error_lists_all_mistakes_of_a_request(config: RunConfig) -> None:
    with pytest.raises(ConfigError, match="4 mistakes"):
        check_request(SlurmRequest(config, RUN, MN5, nodes=3, ranks_per_node=8, time="9-00:00:00"))


def test_profile_that_causes_a_trap_is_refused(config: RunConfig) -> None:
    profile = replace(GENERIC, directives=("--ntasks-per-node=4",))
    with pytest.raises(UsageError, match="ranks-doubled"):
        render_checked(SlurmRequest(config, RUN, profile), Path())


def submit(*words: str) -> int:
    return main(["submit", "run.toml", "--to", "slurm", *words])


def test_dry_run_prints_the_job_file_and_writes_no_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(here.rglob("*"))
    assert submit("--nodes", "2", "--dry-run") == 0
    assert capsys.readouterr().out.startswith("#!/bin/bash\n# run.toml on generic: 2 nodes x 4 ranks = world size 8.\n")
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("kubernetes --time 1:00:00 --account a", "--time, --account: only --to slurm has this option"),
        ("kubernetes --profile nonsense --bundle /nope", "--profile, --bundle: only --to slurm has this option"),
        ("slurm --image frog:9 --storage-class fast", "--image, --storage-class: only --to kubernetes has this option"),
        ("slurm --no-gpus", "--gpus: only --to kubernetes has this option"),
    ],
)
def test_option_of_the_other_cluster_kind_is_refused(
    words: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "run.toml", "--dry-run", "--to", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_every_submit_option_has_known_cluster_kinds() -> None:
    parser = argparse.ArgumentParser()
    add_submit_parser(parser.add_subparsers())
    options = vars(parser.parse_args(["submit", "run.toml", "--to", "slurm"])).keys()
    assert set(FOR_SLURM) | set(FOR_KUBERNETES) <= options
    rest = options - set(FOR_SLURM) - set(FOR_KUBERNETES)
    assert rest == {
        "run_file",
        "to",
        "nodes",
        "ranks_per_node",
        "set",
        "dry_run",
        "handler",
        "program",
        "no_observe",
    }


def test_missing_sbatch_is_reported(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(here))
    assert submit() == 1
    assert "sbatch is not on PATH: runs/jobs/tiny.sbatch was written" in capsys.readouterr().err
    assert (here / "runs" / "jobs" / "tiny.sbatch").is_file()


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("data/rhymes/manifest.json", "the prepared data set 'rhymes' does not exist"),
        (".venv/bin/python", "this Python does not exist"),
    ],
)
def test_job_with_missing_files_is_not_submitted(
    gone: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / gone).unlink()
    assert submit() == 2
    assert message in capsys.readouterr().err
    assert not (here / "runs").exists()


def fake_sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch, script: Sequence[str]) -> None:
    """Put a program called sbatch on PATH; it writes its arguments to `given`."""
    program = folder / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text("\n".join(["#!/bin/bash", 'echo "$PWD $*" > "$(dirname "$0")/given"', *script]))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def test_submit_calls_sbatch_and_prints_next_commands(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_sbatch(here, monkeypatch, ["echo '4711;cluster'"])
    assert submit("--ranks-per-node", "2") == 0
    out = capsys.readouterr().out
    assert (here / "bin" / "given").read_text() == f"{here} --parsable runs/jobs/tiny.sbatch\n"
    for words in ("squeue --job 4711", "tail -f runs/jobs/tiny-4711.out", "scancel 4711", "frog report tiny-4711"):
        assert words in out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("Invalid account or account/partition combination specified", "--account NAME"),
        ("Invalid qos specification", "--qos NAME"),
        ("invalid partition specified: acc", "--partition NAME"),
        ("Requested node configuration is not available", "no node has these resources"),
        ("Could not establish a configuration source", "frog slurm up"),
    ],
)
def test_sbatch_error_is_reported_with_a_hint(
    words: str, hint: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_sbatch(here, monkeypatch, [f"echo 'sbatch: error: {words}' >&2", "exit 1"])
    assert submit() == 1
    err = capsys.readouterr().err
    assert words in err
    assert hint in err
