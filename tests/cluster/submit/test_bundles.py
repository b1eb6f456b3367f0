"""Bundles: complete, verified by sha256sum, and used by the jobs that run from them."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from bundle_harness import CLUSTERS, bundle
from harness import LIMIT_S
from mutations import held_to_its_schema

from frog.cli import main
from frog.cluster.jobfile.cluster_profile import load_profile
from frog.cluster.jobfile.explain import explain_file
from frog.cluster.submit.bundle_folder import check_sums
from frog.cluster.submit.bundle_wheels import python_version
from frog.cluster.submit.submit_commands import add_submit_parser
from frog.cluster.submit.submit_slurm import read_request


def test_bundle_contains_all_files_of_the_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle("--no-wheels", "--nodes", "2", "--profile", "marenostrum5", "--account", "bsc01") == 0
    assert "out/it/README.md" in capsys.readouterr().out
    folder = here / "out" / "it"
    assert os.listdir(here / "out") == ["it"]
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    data = {name for name in names if name.startswith("data/rhymes/")}
    assert len(data) == len(os.listdir(here / "data" / "rhymes"))
    assert names - data == {
        "README.md", "SHA256SUMS", "bundle.json", "config/clusters/marenostrum5.toml", "config/config.json",
        "config/run.toml", "job.sbatch",
    }  # fmt: skip
    assert "unset PYTHONPATH" in (folder / "job.sbatch").read_text()
    assert explain_file(folder / "job.sbatch", load_profile("marenostrum5", CLUSTERS)).traps == []
    readme = (folder / "README.md").read_text()
    assert "/gpfs/scratch/" in readme
    assert "bsc_queues" in readme


def test_sha256sum_and_frog_verify_the_bundle(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle("--no-wheels") == 0
    folder = here / "out" / "it"
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, capture_output=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr.decode()
    assert main(["bundle", "--check", "out/it"]) == 0
    assert capsys.readouterr().out.endswith("out/it: complete\n")


def test_problems_of_a_bundle_are_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle("--no-wheels") == 0
    folder = here / "out" / "it"
    (folder / "config" / "config.json").unlink()
    with open(folder / "job.sbatch", "a") as file:
        file.write("\n")
    (folder / "stray").touch()
    for used in (".venv/bin", "runs/tiny-1"):
        (folder / used).mkdir(parents=True)
        (folder / used / "later").touch()
    capsys.readouterr()
    assert main(["bundle", "--check", "out/it"]) == 1
    message = [line.removeprefix("out/it: ").split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert message == ["config/config.json", "job.sbatch", "stray", "incomplete bundle. Copy it again or rebuild it"]
    (folder / "SHA256SUMS").write_text("nonsense\n")
    assert "SHA256SUMS, line 1: not a hash and a name" in check_sums(folder)
    (folder / "SHA256SUMS").write_text("0" * 64 + "  a\0b\n")
    assert "a\0b: cannot be read: the name contains a NUL" in check_sums(folder)
    (folder / "SHA256SUMS").write_text(
        "".join(f"{64 * '0'}  {name}\n" for name in ("/dev/zero", "a/../../b", "c", "c"))
    )
    outside = ["/dev/zero: outside the bundle", "a/../../b: outside the bundle", "c: missing"]
    assert check_sums(folder)[:4] == [*outside, "SHA256SUMS, line 4: c is listed twice"]
    (folder / "SHA256SUMS").write_text("0" * 64 + "  " + 10_000 * "x" + "\n" + "nonsense\n" * 100_000)
    assert main(["bundle", "--check", "out/it"]) == 1
    assert 2_000 < len(capsys.readouterr().out) < 9_000
    (folder / "SHA256SUMS").unlink()
    assert main(["bundle", "--check", "out/it"]) == 2


def test_bundle_includes_files_from_other_folders(here: Path) -> None:
    (here / "models").mkdir()
    (here / "config.json").rename(here / "models" / "tiny.json")
    deepspeed = Path(__file__).parents[3] / "config" / "deepspeed_zero1.json"
    shutil.copy(deepspeed, here / "models" / "mine.json")
    weights = here / "weights-of-mine"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    text = (here / "run.toml").read_text()
    (here / "run.toml").write_text(
        f'{text}\n[model]\nfile = "models/tiny.json"\ninit_from = "weights-of-mine"\n[strategy]\nname = "zero1"\n'
        'implementation = "deepspeed"\ndeepspeed_file = "models/mine.json"\n'
    )
    assert bundle("--no-wheels", "--set", "train.steps=3") == 0
    folder = here / "out" / "it"
    job = (folder / "job.sbatch").read_text()
    for setting in (
        "train.steps=3", "model.file=tiny.json", "model.init_from=weights/weights-of-mine",
        "strategy.deepspeed_file=config/mine.json",
    ):  # fmt: skip
        assert f"--set {setting}" in job
    for name in ("config/tiny.json", "config/mine.json", "weights/weights-of-mine/config.json"):
        assert (folder / name).is_file()
    assert main(["submit", "run.toml", "--to", "slurm", "--bundle", "out/it", "--dry-run"]) == 0


SAME_NAMES = [
    "--set=strategy.name=zero1", "--set=strategy.implementation=deepspeed",
    "--set=strategy.deepspeed_file=ds/config.json",
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "data.name=none"], "no prepared data set 'none'"),
        (["--set", "model.init_from=runs/x"], "not a folder of weights"),
        (["--nodes", "3"], "not a multiple of world size 12"),
        (["--profile", "marenostrum5"], "requires the account to charge"),
        (["--set", "train.step=1"], "did you mean train.steps?"),
        (SAME_NAMES, "two files have the same name: run.toml, config.json, ds/config.json"),
        (["--platform", "manylinux_2_28_riscv64"], "create the bundle in a Linux container of that machine type"),
        (["--platform", "macosx_11_0_arm64"], "not a Linux platform"),
        (["--python-version", "3.99"], "run the same command with Python 3.99"),
    ],
)
def test_impossible_bundle_is_refused(
    words: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bundle("--no-wheels", *words) == 2
    assert message in capsys.readouterr().err
    assert not (here / "out").exists()


def test_bundle_refuses_altered_data(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = next((here / "data" / "rhymes").glob("train_*[0-9].bin"))
    content = bytearray(tokens.read_bytes())
    content[7] ^= 1
    tokens.write_bytes(content)
    assert bundle("--no-wheels") == 2
    assert "altered" in capsys.readouterr().err


def test_recorded_command_recreates_the_bundle(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    tag, version = f"manylinux_2_28_{platform.machine()}", python_version()
    words = ["--no-wheels", "--platform", tag, "--python-version", version, "--nodes", "2"]
    words += ["--set", "eval.prompt=a\n  b"]
    assert main(["bundle", "run.toml", "--to", "out/the bundle", *words]) == 0
    folder = here / "out" / "the bundle"
    (message,) = [line for line in (folder / "job.sbatch").read_text().splitlines() if line.startswith("# Made by: ")]
    assert message == (
        f"# Made by: frog bundle run.toml --to 'out/the bundle' --profile generic --nodes 2 --platform {tag} "
        f"--python-version {version} --no-wheels --set 'eval.prompt=a b'"
    )
    assert message.removeprefix("# Made by: ") in (folder / "README.md").read_text()


MADE_WITH = ("--profile", "marenostrum5", "--account", "bsc01", "--nodes", "2", "--time", "02:00:00", "--no-wheels")


def fake_sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program called sbatch on PATH, and a Python for the job into the bundle."""
    for path in (folder.parent / "bin" / "sbatch", folder / ".venv" / "bin" / "python"):
        path.parent.mkdir(parents=True)
        path.write_text('#!/bin/bash\necho "$PWD $*" > "$(dirname "$0")/given"\necho 7\n')
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder.parent / 'bin'}{os.pathsep}{os.environ['PATH']}")


def test_second_job_of_a_bundle_reuses_its_request(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bundle(*MADE_WITH) == 0
    shutil.rmtree(here / "config")  # the bundle contains the profile
    folder = here / "out" / "it"
    fake_sbatch(folder, monkeypatch)
    before = (folder / "job.sbatch").read_bytes()
    again = ["submit", "run.toml", "--to", "slurm", "--bundle", "out/it"]
    assert main([*again, "--time", "01:00:00", "--set", "train.steps=3"]) == 0
    job = (folder / "runs" / "jobs" / "tiny.sbatch").read_text()
    for asked in (
        "#SBATCH --account=bsc01", "#SBATCH --qos=acc_ehpc", "#SBATCH --nodes=2", "#SBATCH --time=01:00:00",
        "export HF_HUB_OFFLINE=1", "--set train.steps=3",
    ):  # fmt: skip
        assert asked in job
    assert (here / "out" / "bin" / "given").read_text() == f"{folder} --parsable runs/jobs/tiny.sbatch\n"
    assert (folder / "job.sbatch").read_bytes() == before
    assert check_sums(folder) == []

    (here / "mine.toml").write_text("cpus_per_gpu = 2\n")
    capsys.readouterr()
    assert main([*again, "--profile", "mine.toml", "--dry-run"]) == 0
    job = capsys.readouterr().out
    assert "#SBATCH --nodes=1" in job
    assert "account" not in job


def test_bundle_includes_the_users_profile(here: Path) -> None:
    (here / "mine.toml").write_text('name = "My cluster"\ncpus_per_gpu = 2\n')
    assert bundle("--no-wheels", "--profile", "mine.toml") == 0
    (here / "mine.toml").unlink()
    assert main(["submit", "run.toml", "--to", "slurm", "--bundle", "out/it", "--dry-run"]) == 0


def test_job_of_a_bundle_needs_a_matching_bundle(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "run.toml", "--to", "slurm", "--bundle", "data"]) == 2
    assert "not a bundle" in capsys.readouterr().err
    assert bundle("--no-wheels") == 0
    shutil.copy(here / "run.toml", here / "other.toml")
    assert main(["submit", "other.toml", "--to", "slurm", "--bundle", "out/it"]) == 2
    assert "was made from run.toml" in capsys.readouterr().err


def test_bundle_facts_with_wrong_types_are_refused(here: Path) -> None:
    assert bundle("--no-wheels") == 0
    folder = here / "out" / "it"
    parser = argparse.ArgumentParser()
    add_submit_parser(parser.add_subparsers())
    args = parser.parse_args(["submit", "run.toml", "--to", "slurm", "--bundle", str(folder)])
    args.run_file = Path(args.run_file)
    held_to_its_schema(folder / "bundle.json", lambda: read_request(args, folder), names="")
