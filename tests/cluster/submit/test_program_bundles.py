"""Bundles for a program that is not Frog's: their files, refusals, and a job that runs from one elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import LIMIT_S

from frog.cli import main
from frog.cluster.emulator import emulated_cluster as cluster
from frog.cluster.jobfile.cluster_profile import load_profile
from frog.cluster.jobfile.explain import explain
from frog.cluster.submit import bundle_wheels, submitted_work
from frog.cluster.submit.submitted_work import project_files

from test_program_jobs import PLAIN_TORCH, write_profile  # isort: skip

FILES = {
    "my.py": "import pack.model, torch, yaml_like\nfrom . import x\n",
    "pack/model.py": "import numpy.linalg\n",
    "README.md": "mine\n",
    "config/clusters/own.toml": "gpus_per_node = 2\n",
    "runs/old/log": "old\n",
    "__pycache__/my.pyc": "",
    ".venv/bin/python": "",
    "env/pyvenv.cfg": "",
    ".secret": "token\n",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a program's folder, outside of any clone of Frog, and make it the working folder."""
    folder = tmp_path / "project"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return folder


def bundle(*words: str) -> int:
    return main(["bundle", "--to", "out", *words])


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_bundle_has_the_program_the_observer_and_the_job(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle("--nodes", "2", "--", "my.py", "--lr", "0.1") == 0
    found = names(here / "out")
    program = {name.removeprefix("program/") for name in found if name.startswith("program/")}
    assert program == {"my.py", "pack/model.py", "README.md", "config/clusters/own.toml"}
    assert {"README.md", "SHA256SUMS", "job.sbatch", "config/clusters/generic.toml"} <= found
    assert {"observer/sitecustomize.py", "observer/frog_observer/__init__.py"} <= found
    readme = (here / "out" / "README.md").read_text()
    assert "The packages that it imports: numpy " in readme
    assert ", torch " in readme
    assert "yaml_like." in readme, "a package that this environment lacks has no version"
    text = (here / "out" / "job.sbatch").read_text()
    assert explain(text, Path("job.sbatch"), load_profile("generic"), (here / "out",)).traps == []
    assert main(["bundle", "--check", "out"]) == 0
    (here / "out" / "program" / "my.py").write_text("changed")
    assert main(["bundle", "--check", "out"]) == 1
    assert "program/my.py: altered" in capsys.readouterr().out


def test_bundle_takes_what_git_does_not_ignore(here: Path) -> None:
    for words in (["init", "-q"], ["add", "my.py", "pack"]):
        subprocess.run(["git", *words], check=True, timeout=LIMIT_S)
    (here / ".gitignore").write_text("*.log\nout\nenv\n.venv\n.secret\nrun.sh\n__pycache__\nruns\n")
    (here / "a.log").write_text("")
    (here / "new.py").write_text("")
    (here / "run.sh").write_text("")
    assert bundle("--", "./run.sh") == 0
    kept = {"config/clusters/own.toml", "my.py", "pack/model.py", "README.md"}
    assert names(here / "out" / "program") == {*kept, ".gitignore", "new.py", "run.sh"}


def test_later_bundle_does_not_contain_the_earlier_one(here: Path) -> None:
    assert bundle("--", "my.py") == 0
    assert bundle("--force", "--", "my.py") == 0
    assert not any("out/" in name for name in names(here / "out" / "program"))


def test_later_bundle_does_not_contain_other_ones(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", "--to", "first", "--", "my.py"]) == 0
    capsys.readouterr()
    assert bundle("--", "my.py") == 0
    assert not any("first" in name for name in names(here / "out" / "program"))
    assert "left out: .venv/, env/, first/, runs/, .secret\n" in capsys.readouterr().out


SECRETS = (".env", ".env.local", ".netrc", ".ssh/id_rsa", ".aws/credentials", "keys/deploy.key", "cert.pem")


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("git", [True, False])
def test_bundle_with_a_secret_is_refused_by_name(
    here: Path, name: str, git: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / name).parent.mkdir(exist_ok=True)
    (here / name).write_text("-----BEGIN RSA PRIVATE KEY-----\nx\n" if name == "cert.pem" else "TOKEN=x\n")
    (here / ".env.example").write_text("TOKEN=\n")
    if git:
        subprocess.run(["git", "init", "-q"], check=True, timeout=60)
        subprocess.run(["git", "add", name, "my.py"], check=True, timeout=60)
    if git or "/." not in f"/{name}":
        assert bundle("--", "my.py") == 2
        assert f"these files look like passwords or keys: {name}" in capsys.readouterr().err
        assert not (here / "out").exists()
        assert bundle("--exclude", name, "--", "my.py") == 0
    else:
        assert bundle("--", "my.py") == 0
    assert name.partition("/")[0] in capsys.readouterr().out.partition("left out: ")[2]
    assert name not in names(here / "out" / "program")
    assert bundle("--force", "--secret", name, "--", "my.py", name) == 0
    assert name in names(here / "out" / "program")


def test_certificate_without_a_private_key_is_no_secret(here: Path) -> None:
    (here / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    assert bundle("--", "my.py") == 0
    assert "ca.pem" in names(here / "out" / "program")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--", "missing.py"], "missing.py: no such file"),
        (["--", "../outside.py"], "../outside.py: is outside of this folder"),
        (["--exclude", "big*", "--", "my.py"], "out.txt: a link to "),
        (["--exclude", "*.txt", "--", "my.py"], "big.bin: 1.0 KiB, but a bundle takes files of at most 1.0 KiB"),
        (
            ["--exclude", "*.txt", "--exclude", "big.bin", "--", "my.py"],
            "a bundle takes at most 2.0 KiB; largest: two.dat",
        ),
        (["--profile", "nope", "--exclude", "[bot]*", "--", "my.py"], "one of generic, marenostrum5, own"),
        (["--set", "a=b", "--", "my.py"], "--set: cannot be combined with a program"),
        (["--exclude", "a", "run.toml"], "--exclude: cannot be combined with a run file"),
        (["--requirements", "none.txt", "--exclude", "[bot]*", "--", "my.py"], "none.txt: not a file of the bundle"),
        (["--", "torchrun", "my.py"], "torchrun: the job file starts torchrun"),
    ],
)
def test_bundle_that_could_not_work_is_refused(
    here: Path, words: list[str], error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(submitted_work, "LARGEST_FILE", 1024)
    monkeypatch.setattr(submitted_work, "LARGEST_FOLDER", 2048)
    (here.parent / "outside.py").write_text("")
    (here / "out.txt").symlink_to(here.parent / "outside.py")
    (here / "big.bin").write_bytes(bytes(1025))
    for name in ("one.dat", "two.dat", "three.dat"):
        (here / name).write_bytes(bytes(1000))
    assert bundle(*words) == 2
    assert error in capsys.readouterr().err
    assert not (here / "out").exists()


def test_pattern_leaves_out_files_names_and_folders(here: Path) -> None:
    def kept(*patterns: str) -> list[str]:
        return project_files(here, (), patterns, here / "out")

    assert kept("pack", "*.md", "config/*") == ["my.py"]
    assert kept("pack/", "README.md", "own.toml") == ["my.py"]


def test_requirements_become_wheels_and_a_setup_script(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []

    def pip(words: list[str], timeout_s: float) -> None:
        called.append(words)

    monkeypatch.setattr(bundle_wheels, "_pip", pip)
    (here / "requirements.txt").write_text("numpy\n")
    assert bundle("--", "my.py") == 0
    ((command, *_, option, file),) = called
    assert (command, option, Path(file).name) == ("wheel", "--requirement", "requirements.txt")
    script = (here / "out" / "setup.sh").read_text()
    assert "--find-links wheels --requirement 'program/requirements.txt'\n" in script
    assert "frog" not in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=LIMIT_S)
    assert 'PYTHON="$PWD"/.venv/bin/python\n' in (here / "out" / "job.sbatch").read_text()
    assert bundle("--force", "--no-wheels", "--", "my.py") == 0
    assert not (here / "out" / "setup.sh").exists()


def test_image_of_the_profile_sees_the_whole_bundle(here: Path) -> None:
    (here / "image.toml").write_text('container = "image.sif"\n')
    assert bundle("--profile", "image.toml", "--", "my.py") == 0
    assert '--bind "$OLDPWD" --pwd "$PWD" ' in (here / "out" / "job.sbatch").read_text()


@pytest.mark.slow
def test_job_of_a_bundle_runs_in_another_place(here: Path, tmp_path: Path) -> None:
    (here / "my.py").write_text(PLAIN_TORCH)
    assert (
        bundle("--profile", str(write_profile(tmp_path)), "--nodes", "2", "--ranks-per-node", "1", "--", "my.py") == 0
    )
    elsewhere = tmp_path / "elsewhere"
    shutil.move(here / "out", elsewhere)
    shutil.rmtree(here)
    here.mkdir()
    cluster.up(tmp_path / "cluster", 2, 2, 8, kill_wait_s=1)
    try:
        env = {**os.environ, **cluster.environment(tmp_path / "cluster")}
        env["PATH"] = os.pathsep.join([env["PATH"].split(os.pathsep)[0], str(Path(sys.executable).parent), env["PATH"]])
        done = subprocess.run(
            ["sbatch", "--wait", "job.sbatch"], cwd=elsewhere, env=env, capture_output=True, text=True, timeout=LIMIT_S
        )
    finally:
        cluster.down(tmp_path / "cluster")
    said = "".join(path.read_text() for path in sorted((elsewhere / "runs" / "jobs").glob("*.out")))
    assert done.returncode == 0, said + done.stderr
    for rank in range(2):
        assert f"rank {rank} of 2 with [] on node{rank + 1}\n" in said, said
    (run,) = (path for path in (elsewhere / "runs").iterdir() if path.name != "jobs")
    assert sorted(path.name for path in (run / "observed" / "attempt_0").iterdir()) == ["rank_0", "rank_1"]
