"""`frog init`: a folder in which the commands of an installed Frog work."""

from __future__ import annotations

from pathlib import Path

import pytest

from frog.cli import main
from frog.core.config import load_run_config
from frog.core.config.project import FILES

ROOT = Path(__file__).parents[3]


def test_new_project_has_the_repository_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine"
    assert main(["init", str(folder)]) == 0
    assert f"cd {folder}" in capsys.readouterr().out
    for name in FILES:
        assert (folder / name).read_bytes() == (ROOT / name).read_bytes()
    assert load_run_config(folder / "config" / "demo.toml", []).name == "demo"


def test_commands_find_files_in_new_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "."]) == 0
    assert main(["slurm", "explain", "config/slurm_example.sbatch"]) == 0
    assert main(["submit", "config/demo.toml", "--to", "slurm", "--dry-run"]) == 0
    assert "#SBATCH" in capsys.readouterr().out


@pytest.mark.parametrize("there", ["a file", "a folder with something"])
def test_init_rejects_nonempty_target_and_keeps_it(
    there: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "mine"
    kept = place if there == "a file" else place / "notes.txt"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("mine")
    assert main(["init", str(place)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert kept.read_text() == "mine"
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {kept}
