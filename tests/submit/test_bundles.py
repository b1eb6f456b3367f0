"""Bundles: whole or absent, with all that the run needs, checked by sha256sum, set up without a network."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from workshop import Workshop, all_gone, tree, wait_until

from frog import __version__
from frog.cli import main
from frog.launch.bundle import make
from frog.launch.bundle.sums import check_sums
from frog.launch.bundle.wheels import PROJECT, build_wheel
from frog.launch.slurm.explain import explain_file
from frog.launch.submit.profile import load_profile

CLUSTERS = Path(__file__).parents[2] / "config" / "clusters"
NO_NETWORK = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0", "PIP_FIND_LINKS": "/nowhere"}


@pytest.fixture
def here(workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny run, its prepared data, and the profiles."""
    for name in ("config.json", "run.toml"):
        shutil.copy(workshop.root / name, tmp_path / name)
    shutil.copytree(workshop.root / "data", tmp_path / "data")
    shutil.copytree(CLUSTERS, tmp_path / "config" / "clusters")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bundle(*words: str) -> int:
    return main(["bundle", "run.toml", "--to", "out/it", *words])


def test_it_holds_what_the_run_needs_and_nothing_half_made(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_sha256sum_takes_the_list_and_so_does_frog(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle("--no-wheels") == 0
    folder = here / "out" / "it"
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()
    assert main(["bundle", "--check", "out/it"]) == 0
    assert capsys.readouterr().out.endswith("out/it: whole\n")


def test_what_is_wrong_with_a_bundle_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    told = [line.removeprefix("out/it: ").split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert told == ["config/config.json", "job.sbatch", "stray", "not whole"]
    (folder / "SHA256SUMS").write_text("nonsense\n")
    assert "SHA256SUMS, line 1: not a hash and a name" in check_sums(folder)
    (folder / "SHA256SUMS").unlink()
    assert main(["bundle", "--check", "out/it"]) == 2


def test_a_failure_leaves_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(folder: Path) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(make, "write_sums", full)
    assert bundle("--no-wheels") == 1
    assert "No space left on device" in capsys.readouterr().err
    assert os.listdir(here / "out") == []


def test_a_bundle_that_is_stopped_leaves_nothing_and_nobody(here: Path) -> None:
    """While pip waits for an index that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as index:
        index.settimeout(60)
        env = {
            **os.environ,
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": f"http://127.0.0.1:{index.getsockname()[1]}/",
        }
        for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
            env.pop(name, None)
        words = [sys.executable, "-m", "frog.cli", "bundle", "run.toml", "--to", "out/it"]
        with subprocess.Popen(words, cwd=here, env=env) as process:
            connection, _ = index.accept()
            family = tree(process)
            process.terminate()
            assert process.wait(timeout=60) == 128 + signal.SIGTERM
            connection.close()
    wait_until(lambda: all_gone(family), 30, "pip to be gone")
    assert os.listdir(here / "out") == []


def test_a_bundle_takes_its_name_at_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The very folder that was filled is renamed: a copy would be seen half done."""
    seen = []
    plain = make.write_sums
    monkeypatch.setattr(make, "write_sums", lambda folder: (seen.append(folder.stat().st_ino), plain(folder))[1])
    assert bundle("--no-wheels") == 0
    assert seen == [(here / "out" / "it").stat().st_ino]


def test_a_bundle_that_was_killed_does_not_look_whole_and_is_cleared(here: Path) -> None:
    code = (
        "import os, signal, sys\nfrom frog.launch.bundle import make\nfrom frog.cli import main\n"
        "make.write_sums = lambda folder: os.kill(os.getpid(), signal.SIGKILL)\n"
        "main(['bundle', 'run.toml', '--to', 'out/it', '--no-wheels'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=here, timeout=60)
    assert done.returncode == -signal.SIGKILL
    (left,) = os.listdir(here / "out")
    assert left.startswith(".it.partial-")
    assert bundle("--no-wheels") == 0
    assert os.listdir(here / "out") == ["it"]


def test_what_is_there_is_kept_unless_it_is_a_bundle_and_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "out" / "it").mkdir(parents=True)
    assert bundle("--no-wheels") == 0
    assert bundle("--no-wheels") == 2
    assert "--force replaces it" in capsys.readouterr().err
    assert bundle("--no-wheels", "--force") == 0
    (here / "out" / "it" / "SHA256SUMS").unlink()
    assert bundle("--no-wheels", "--force") == 2
    assert "name another folder" in capsys.readouterr().err


def test_files_from_elsewhere_come_along_and_are_found(here: Path) -> None:
    (here / "models").mkdir()
    (here / "config.json").rename(here / "models" / "tiny.json")
    deepspeed = Path(__file__).parents[2] / "config" / "deepspeed_zero1.json"
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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set", "data.name=none"], "no prepared data set 'none'"),
        (["--set", "model.init_from=runs/x"], "not a folder of weights"),
        (["--nodes", "3"], "not a multiple of world size 12"),
        (["--profile", "marenostrum5"], "takes no job without the project that pays"),
        (["--set", "train.step=1"], "did you mean train.steps?"),
    ],
)
def test_what_cannot_be_bundled(words: list[str], told: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle("--no-wheels", *words) == 2
    assert told in capsys.readouterr().err
    assert not (here / "out").exists()


def test_altered_data_is_not_bundled(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = next((here / "data" / "rhymes").glob("train_*[0-9].bin"))
    content = bytearray(tokens.read_bytes())
    content[7] ^= 1
    tokens.write_bytes(content)
    assert bundle("--no-wheels") == 2
    assert "altered" in capsys.readouterr().err


def test_a_job_of_a_bundle_is_refused_elsewhere(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "run.toml", "--to", "slurm", "--bundle", "data"]) == 2
    assert "no bundle there" in capsys.readouterr().err
    assert bundle("--no-wheels") == 0
    shutil.copy(here / "run.toml", here / "other.toml")
    assert main(["submit", "other.toml", "--to", "slurm", "--bundle", "out/it"]) == 2
    assert "was made of run.toml" in capsys.readouterr().err


def small_wheel(folder: Path, name: str, version: str, needs: str | None = None) -> None:
    """A wheel of one module that knows its version."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f'__version__ = "{version}"\n')
        wheel.writestr(f"{about}/METADATA", metadata + (f"Requires-Dist: {needs}\n" if needs else ""))
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", f"{name}.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")


def collect_small_wheels(folder: Path, extras: tuple[str, ...], platform: str | None, python: str | None) -> None:
    small_wheel(folder, "frog", __version__, needs="pond>=2")
    small_wheel(folder, "pond", "2.5")


def set_up(folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **NO_NETWORK, "PYTHON": sys.executable, **changes}
    return subprocess.run(["./setup.sh"], cwd=folder, env=env, capture_output=True, text=True, timeout=150)


def test_setup_takes_the_wheels_of_the_folder_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "collect_wheels", collect_small_wheels)
    assert bundle() == 0
    (here / "out" / "it").rename(here / "moved")
    folder = here / "moved"

    (here / "module").mkdir()
    small_wheel(here / "module", "pond", "2.9")  # as a cluster's modules put packages on PYTHONPATH
    shutil.unpack_archive(here / "module" / "pond-2.9-py3-none-any.whl", here / "module", "zip")
    done = set_up(folder, PYTHONPATH=str(here / "module"))
    assert done.returncode == 0, done.stderr
    assert f"frog {__version__} is in .venv" in done.stdout
    python = folder / ".venv" / "bin" / "python"
    found = subprocess.run(
        [python, "-c", "import pond; print(pond.__version__)"], capture_output=True, text=True, timeout=60
    )
    assert found.stdout == "2.5\n"
    assert check_sums(folder) == []

    (folder / "wheels" / "pond-2.5-py3-none-any.whl").write_bytes(b"torn")
    done = set_up(folder)
    assert done.returncode == 1
    assert "this bundle is not whole" in done.stderr


def test_a_torch_without_cuda_for_a_cluster_with_gpus_is_told(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def collect(version: str) -> None:
        monkeypatch.setattr(make, "collect_wheels", lambda folder, *rest: small_wheel(folder, "torch", version))

    collect("2.13.0+cpu")
    assert bundle() == 0
    assert "torch-2.13.0+cpu" in capsys.readouterr().out
    assert "no CUDA" in (here / "out" / "it" / "README.md").read_text()
    collect("2.13.0+cu126")
    assert bundle("--force") == 0
    assert "no CUDA" not in capsys.readouterr().out
    assert "no CUDA" not in (here / "out" / "it" / "README.md").read_text()


def test_setup_that_fails_leaves_no_environment(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "collect_wheels", lambda folder, *rest: small_wheel(folder, "frog", __version__, "pond"))
    assert bundle("--python-version", f"{sys.version_info.major}.{sys.version_info.minor}") == 0
    done = set_up(here / "out" / "it")
    assert done.returncode == 1
    assert "pond" in done.stderr
    assert not (here / "out" / "it" / ".venv").exists()


def test_setup_refuses_another_python(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "collect_wheels", collect_small_wheels)
    assert bundle("--python-version", "3.99") == 0
    done = set_up(here / "out" / "it")
    assert done.returncode == 1
    assert "the wheels are for 3.99" in done.stderr
    done = set_up(here / "out" / "it", PYTHON="/nowhere/python")
    assert "/nowhere/python does not run" in done.stderr


def test_pip_that_fails_is_told_and_leaves_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("frog.launch.bundle.wheels.build_wheel", lambda folder: folder / "frog-0-py3-none-any.whl")
    assert bundle() == 1
    err = capsys.readouterr().err
    assert "pip wheel ended with exit code" in err
    assert os.listdir(here / "out") == []


def test_frogs_own_wheel_holds_all_of_its_files(tmp_path: Path) -> None:
    if not (PROJECT / "pyproject.toml").is_file():
        pytest.skip("Frog was not installed from its sources, and its wheel is built from them")
    before = (PROJECT / "build").exists()
    with zipfile.ZipFile(build_wheel(tmp_path)) as wheel:
        packed = set(wheel.namelist())
    sources = {
        f"frog/{path.relative_to(PROJECT / 'src/frog').as_posix()}"
        for path in (PROJECT / "src" / "frog").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources - packed == set()
    assert (PROJECT / "build").exists() == before
