"""Wheels of a bundle: for the right machine, installed without a network and without user or site settings."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from bundle_harness import bundle
from harness import LIMIT_S

from frog import __version__
from frog.cluster.submit import bundle_wheels, make_bundle
from frog.cluster.submit.bundle_folder import check_sums
from frog.cluster.submit.bundle_wheels import PROJECT, build_wheel, pack_wheel
from frog.core.config.project import FILES

NO_NETWORK = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0", "PIP_FIND_LINKS": "/nowhere"}


def small_wheel(folder: Path, name: str, version: str, needs: str | None = None) -> None:
    """Create a wheel of one module with a version."""
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
    return subprocess.run(["./setup.sh"], cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S)


def test_wheels_for_another_machine_are_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip silently omits packages that only the other system needs, such as CUDA's."""
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert bundle("--no-wheels", "--platform", f"manylinux_2_28_{platform.machine()}") == 2
    assert "create the bundle in a Linux container" in capsys.readouterr().err


@pytest.mark.slow
def test_setup_installs_only_wheels_of_the_bundle(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_bundle, "collect_wheels", collect_small_wheels)
    assert bundle() == 0
    (here / "out" / "it").rename(here / "moved")
    folder = here / "moved"
    assert not (folder / "constraints.txt").exists(), "the wheels determine the versions"

    (here / "module").mkdir()
    small_wheel(here / "module", "pond", "2.9")  # modules of a cluster put packages on PYTHONPATH in this way
    shutil.unpack_archive(here / "module" / "pond-2.9-py3-none-any.whl", here / "module", "zip")
    (here / "pip.conf").write_text(f"[install]\ntarget = {here / 'elsewhere'}\n")
    settings = {"PIP_TARGET": str(here / "elsewhere"), "PIP_CONFIG_FILE": str(here / "pip.conf")}
    done = set_up(folder, PYTHONPATH=str(here / "module"), **settings)
    assert done.returncode == 0, done.stderr
    assert not (here / "elsewhere").exists()
    assert f"frog {__version__} is in .venv" in done.stdout
    python = folder / ".venv" / "bin" / "python"
    found = subprocess.run(
        [python, "-c", "import pond; print(pond.__version__)"], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert found.stdout == "2.5\n"
    assert check_sums(folder) == []

    (folder / "wheels" / "pond-2.5-py3-none-any.whl").write_bytes(b"torn")
    done = set_up(folder)
    assert done.returncode == 1
    assert "this bundle is incomplete" in done.stderr


def test_torch_without_cuda_for_cluster_with_gpus_is_reported(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def collect(version: str) -> None:
        monkeypatch.setattr(make_bundle, "collect_wheels", lambda folder, *rest: small_wheel(folder, "torch", version))

    collect("2.13.0+cpu")
    assert bundle() == 0
    output = capsys.readouterr().out
    assert "torch-2.13.0+cpu" in output
    assert "PIP_EXTRA_INDEX_URL=" in output, "in addition to PyPI, because torch's index lacks packages"
    assert "no CUDA" in (here / "out" / "it" / "README.md").read_text()
    collect("2.13.0+cu126")
    assert bundle("--force") == 0
    assert "no CUDA" not in capsys.readouterr().out
    assert "no CUDA" not in (here / "out" / "it" / "README.md").read_text()


@pytest.mark.slow
def test_failed_setup_leaves_no_environment(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        make_bundle, "collect_wheels", lambda folder, *rest: small_wheel(folder, "frog", __version__, "pond")
    )
    assert bundle("--python-version", f"{sys.version_info.major}.{sys.version_info.minor}") == 0
    done = set_up(here / "out" / "it")
    assert done.returncode == 1
    assert "pond" in done.stderr
    assert not (here / "out" / "it" / ".venv").exists()


def test_setup_refuses_another_python_version(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_bundle, "collect_wheels", collect_small_wheels)
    monkeypatch.setattr(make_bundle, "python_version", lambda: "3.99")
    assert bundle() == 0
    done = set_up(here / "out" / "it")
    assert done.returncode == 1
    assert "the wheels are for 3.99" in done.stderr
    done = set_up(here / "out" / "it", PYTHON="/nowhere/python")
    assert "/nowhere/python does not run" in done.stderr


@pytest.fixture
def pip_words(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record what pip is asked for, instead of asking it."""
    asked: list[list[str]] = []
    monkeypatch.setattr(bundle_wheels, "_pip", lambda words, timeout_s: asked.append(words))
    return asked


def test_wheel_is_built_from_a_copy_of_the_sources(
    tmp_path: Path, pip_words: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the wheel contains is said in pyproject.toml only."""
    files = {"pyproject.toml", "constraints.txt", "src/frog/cli.py", "labs/lab.toml", "docs/a.md", "train.py"}
    for name in (*files, "src/frog/__pycache__/cli.pyc", "tests/test_a.py", "notes.txt", "docs/b.md"):
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text("")
    wheel = "[tool.hatch.build.targets.wheel]"
    packed = 'force-include = { labs = "frog_labs", "docs/a.md" = "frog_labs/a.md", "train.py" = "frog/train.py" }'
    (tmp_path / "project" / "pyproject.toml").write_text(f'{wheel}\npackages = ["src/frog"]\n{packed}\n')
    taken: set[str] = set()

    def pip(words: list[str], timeout_s: float) -> None:
        copy = Path(words[-1])
        taken.update(path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file())
        pip_words.append(words[:-1])
        (tmp_path / "frog-1-py3-none-any.whl").write_text("")

    monkeypatch.setattr(bundle_wheels, "_pip", pip)
    assert build_wheel(tmp_path, tmp_path / "project") == tmp_path / "frog-1-py3-none-any.whl"
    assert taken == files
    assert pip_words == [["wheel", "--no-deps", "--wheel-dir", str(tmp_path)]]


def test_packed_wheel_has_the_installed_files_with_their_hashes(tmp_path: Path) -> None:
    small_wheel(tmp_path / "wheels", "pond", "2.5")
    site = tmp_path / "site"
    with zipfile.ZipFile(tmp_path / "wheels" / "pond-2.5-py3-none-any.whl") as wheel:
        wheel.extractall(site)
    about = site / "pond-2.5.dist-info"
    for added in ("INSTALLER", "REQUESTED", "direct_url.json"):
        (about / added).write_text("")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pond").write_text("a script of pip's")
    (site / "pond_tool").mkdir()
    (site / "pond_tool" / "RECORD").write_text("a file of its own, and not pip's")
    names = ["pond.py", "pond_tool/RECORD", "__pycache__/pond.pyc", "../bin/pond"]
    names += [f"pond-2.5.dist-info/{path.name}" for path in about.iterdir()]
    (about / "RECORD").write_text("".join(f"{name},,\n" for name in names))
    (installed,) = distributions(path=[str(site)])
    with zipfile.ZipFile(pack_wheel(tmp_path, installed)) as wheel:
        assert Path(wheel.filename or "").name == "pond-2.5-py3-none-any.whl"
        kept = {"pond.py", "pond_tool/RECORD", "pond-2.5.dist-info/METADATA", "pond-2.5.dist-info/WHEEL"}
        assert set(wheel.namelist()) == {*kept, "pond-2.5.dist-info/RECORD"}
        rows = [line.split(",") for line in wheel.read("pond-2.5.dist-info/RECORD").decode().splitlines()]
        assert rows[0] == ["pond-2.5.dist-info/RECORD", "", ""]
        assert {name for name, *_ in rows[1:]} == kept
        for name, digest, size in rows[1:]:
            data = wheel.read(name)
            assert digest == f"sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')}"
            assert int(size) == len(data)


def test_wheels_for_a_platform_are_those_that_its_pip_would_accept(
    tmp_path: Path, pip_words: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_wheels, "PROJECT", tmp_path)
    own = tmp_path / "frog.whl"
    bundle_wheels.download_wheels(tmp_path, own, (), None, None)
    (tmp_path / "constraints.txt").write_text("")
    bundle_wheels.download_wheels(tmp_path, own, ("hf", "parquet"), "manylinux_2_6_x86_64", "3.11")
    bundle_wheels.download_requirements(tmp_path / "more", tmp_path / "r.txt", "musllinux_1_2_x86_64", "3.9")
    plain, manylinux, musllinux = pip_words
    assert plain == ["wheel", "--wheel-dir", str(tmp_path), str(own)]
    assert manylinux == [
        "download", "--dest", str(tmp_path), "--only-binary=:all:", "--platform", "manylinux_2_6_x86_64",
        "--python-version", "311", "--implementation", "cp", "--abi", "cp311", "--platform", "manylinux_2_5_x86_64",
        "--platform", "manylinux2014_x86_64", "--platform", "manylinux2010_x86_64", "--platform", "manylinux1_x86_64",
        "-c", str(tmp_path / "constraints.txt"), f"{own}[hf,parquet]",
    ]  # fmt: skip
    assert musllinux[4:] == [
        "--platform", "musllinux_1_2_x86_64", "--python-version", "39", "--implementation", "cp", "--abi", "cp39",
        "--requirement", str(tmp_path / "r.txt"),
    ]  # fmt: skip
    assert (tmp_path / "more").is_dir()


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("No matching distribution found for x", "check that a wheel exists"),
        ("Could not find a version that satisfies x", "check that a wheel exists"),
        ("No space left on device", "free some space"),
        ("Connection refused", "check the network"),
    ],
)
def test_message_of_pip_has_a_hint(said: str, hint: str) -> None:
    assert bundle_wheels._hint(f"ERROR: {said}").startswith(hint)


@pytest.mark.slow
def test_pip_failure_is_reported_and_leaves_no_files(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "frog.cluster.submit.bundle_wheels.build_wheel", lambda folder: folder / "frog-0-py3-none-any.whl"
    )
    assert bundle() == 1
    err = capsys.readouterr().err
    assert "pip wheel ended with exit code" in err
    assert os.listdir(here / "out") == []


@pytest.mark.slow
def test_frog_wheel_contains_all_its_files(tmp_path: Path) -> None:
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
    course = {
        f"frog_labs/{path.relative_to(PROJECT / 'labs').as_posix()}"
        for path in (PROJECT / "labs").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert course - packed == set()
    assert "frog_labs/docs/labs/lab1.md" in packed
    assert {f"frog/core/config/shipped/{name}" for name in FILES} - packed == set()
    assert f"frog-{__version__}.dist-info/licenses/LICENSE" in packed
    assert (PROJECT / "build").exists() == before


@pytest.mark.slow
def test_wheel_is_repacked_from_installed_frog(tmp_path: Path) -> None:
    """pip installs the packed wheel with the same files and accepts every hash."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-deps", "--no-index"]
    first = build_wheel(tmp_path)
    subprocess.run([*pip, "--target", str(tmp_path / "one"), str(first)], check=True, timeout=LIMIT_S)
    (installed,) = distributions(path=[str(tmp_path / "one")])
    (tmp_path / "again").mkdir()
    second = pack_wheel(tmp_path / "again", installed)
    assert second.name == first.name
    subprocess.run([*pip, "--target", str(tmp_path / "two"), str(second)], check=True, timeout=LIMIT_S)
    with zipfile.ZipFile(first) as old, zipfile.ZipFile(second) as new:
        assert set(new.namelist()) == set(old.namelist())
        record = next(name for name in old.namelist() if name.endswith("RECORD"))
        assert sorted(new.read(record).decode().split()) == sorted(old.read(record).decode().split())
