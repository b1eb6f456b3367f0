"""Bundles: complete or absent; a replacement keeps the old bundle's runs, wherever it is interrupted."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from bundle_harness import bundle
from harness import LIMIT_S, all_gone, tree, wait_until

from frog.cluster.submit import make_bundle
from frog.cluster.submit.bundle_folder import check_sums


def test_failed_bundle_leaves_no_files(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(folder: Path) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(make_bundle, "write_sums", full)
    assert bundle("--no-wheels") == 1
    assert "No space left on device" in capsys.readouterr().err
    assert os.listdir(here / "out") == []


@pytest.mark.slow
def test_interrupted_bundle_leaves_no_files_or_processes(here: Path) -> None:
    """Interrupt `frog bundle` while pip waits for an index that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as index:
        index.settimeout(60)
        env = {
            **os.environ,
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": f"http://127.0.0.1:{index.getsockname()[1]}/",
            "PIP_TIMEOUT": "3600",
        }
        for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
            env.pop(name, None)
        words = [sys.executable, "-m", "frog.cli", "bundle", "run.toml", "--to", "out/it"]
        with subprocess.Popen(words, cwd=here, env=env) as process:
            connection, _ = index.accept()
            family = tree(process)
            process.terminate()
            assert process.wait(timeout=LIMIT_S) == 128 + signal.SIGTERM
        wait_until(lambda: all_gone(family), "the end of pip")
        connection.close()
    assert os.listdir(here / "out") == []


def test_bundle_appears_by_rename(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frog renames the staging folder; during a copy, others could see an incomplete bundle."""
    seen = []
    plain = make_bundle.write_sums
    monkeypatch.setattr(make_bundle, "write_sums", lambda folder: (seen.append(folder.stat().st_ino), plain(folder))[1])
    assert bundle("--no-wheels") == 0
    assert seen == [(here / "out" / "it").stat().st_ino]


def test_killed_bundle_looks_incomplete_and_is_removed(here: Path) -> None:
    code = (
        "import os, signal, sys\nfrom frog.cluster.submit import make_bundle\nfrom frog.cli import main\n"
        "make_bundle.write_sums = lambda folder: os.kill(os.getpid(), signal.SIGKILL)\n"
        "main(['bundle', 'run.toml', '--to', 'out/it', '--no-wheels'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=here, timeout=LIMIT_S)
    assert done.returncode == -signal.SIGKILL
    (left,) = os.listdir(here / "out")
    assert left.startswith(".it.staging-")
    assert bundle("--no-wheels") == 0
    assert os.listdir(here / "out") == ["it"]


def test_existing_folder_is_kept_unless_force_replaces_a_bundle(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "out" / "it").mkdir(parents=True)
    assert bundle("--no-wheels") == 0
    assert bundle("--no-wheels") == 2
    assert "--force replaces it" in capsys.readouterr().err
    assert bundle("--no-wheels", "--force") == 0
    (here / "out" / "it" / "SHA256SUMS").unlink()
    assert bundle("--no-wheels", "--force") == 2
    assert "name another folder" in capsys.readouterr().err


def use(folder: Path, run: str = "tiny-1") -> None:
    """Add the files of a job to a bundle."""
    (folder / ".venv").mkdir(exist_ok=True)
    (folder / "runs" / run).mkdir(parents=True)
    (folder / "runs" / run / "record.json").write_text(run)
    (folder / "runs" / "jobs" / f"{run}.out").touch()


def test_replaced_bundle_keeps_its_runs(here: Path) -> None:
    assert bundle("--no-wheels") == 0
    folder = here / "out" / "it"
    use(folder)
    assert bundle("--no-wheels", "--force", "--set", "train.steps=3") == 0
    assert "train.steps=3" in (folder / "job.sbatch").read_text()
    assert (folder / "runs" / "tiny-1" / "record.json").read_text() == "tiny-1"
    assert (folder / "runs" / "jobs" / "tiny-1.out").is_file()
    assert os.listdir(here / "out") == ["it"]
    assert check_sums(folder) == []


@pytest.mark.parametrize("place", [1, 2, 3])
def test_killed_replacement_loses_no_run(place: int, here: Path) -> None:
    """Kill the replacement before each of its renames: old bundle away, new bundle in place, runs moved."""
    assert bundle("--no-wheels") == 0
    folder = here / "out" / "it"
    use(folder)
    code = (
        "import os, signal, sys\nfrom frog.cluster.submit import make_bundle\nfrom frog.cli import main\n"
        "rename, left = os.rename, [int(sys.argv[1])]\n"
        "def count(source, target):\n"
        "    left[0] -= 1\n"
        "    os.kill(os.getpid(), signal.SIGKILL) if left[0] == 0 else rename(source, target)\n"
        "def seal(folder, seal=make_bundle.write_sums):\n"
        "    os.rename, done = count, seal(folder)\n"
        "    return done\n"
        "make_bundle.write_sums = seal\n"
        "main(['bundle', 'run.toml', '--to', 'out/it', '--no-wheels', '--force'])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(place)], cwd=here, timeout=LIMIT_S)
    assert done.returncode == -signal.SIGKILL
    assert folder.exists() == (place != 2)
    assert bundle("--no-wheels") == 2, "it already exists"
    assert bundle("--no-wheels", "--force") == 0
    assert (folder / "runs" / "tiny-1" / "record.json").read_text() == "tiny-1"
    assert os.listdir(here / "out") == ["it"]


def test_failed_replacement_keeps_the_old_bundle(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bundle("--no-wheels") == 0
    folder = here / "out" / "it"
    use(folder)
    plain = os.rename

    def rename(source: Path, target: Path) -> None:
        if ".staging-" in source.name:
            raise OSError(5, "Input/output error")
        plain(source, target)

    monkeypatch.setattr(os, "rename", rename)
    assert bundle("--no-wheels", "--force") == 1
    assert (folder / "runs" / "tiny-1").is_dir()
    assert os.listdir(here / "out") == ["it"]


def test_runs_in_both_bundles_are_reported_and_kept(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle("--no-wheels") == 0
    folder, old = here / "out" / "it", here / "out" / ".it.old-999999999"
    shutil.copytree(folder, old)
    use(folder, "tiny-1")
    use(old, "tiny-2")
    assert bundle("--no-wheels", "--force") == 2
    assert "both have runs" in capsys.readouterr().err
    assert (old / "runs" / "tiny-2").is_dir()
    assert (folder / "runs" / "tiny-1").is_dir()
