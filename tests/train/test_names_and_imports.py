"""Names of runs and data sets cannot leave their folders, in any command; a failed import leaves nothing."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from harness import RUN_FILE, Harness
from in_process import train, tune

from frog.cli import main
from frog.core.config import ModelConfig
from frog.core.errors import FrogError
from frog.core.files import write_json
from frog.core.runs.folder import RunFolder
from frog.core.user_input import name_problem
from frog.measure.chaos.sandbox import TINY_MODEL
from frog.train import train_commands as commands
from frog.train.data.tokenizer import train_tokenizer
from frog.train.model import TinyTransformer, hf
from frog.train.model.hf import save_hf

OUTSIDE = Path(tempfile.gettempdir(), f"frog-evil-{uuid4().hex}")
WRONG = ("../../evil", str(OUTSIDE), "..", ".", "", ".hidden", "-x", "a/b", "a b", "a\nb", "a\x1b[31m", "$(x)",
         "ä", "x" * 101, "x\0")  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a project in a nested folder: a model to import, an imported run, a run file, a text."""
    root = tmp_path / "a" / "b"
    root.mkdir(parents=True)
    monkeypatch.chdir(root)
    write_json(root / "config.json", TINY_MODEL)
    (root / "run.toml").write_text(RUN_FILE)
    (root / "p.toml").touch()
    (root / "text.md").write_text("3 frogs sat on a log; one jumped, and two sang. " * 200)
    train_tokenizer(["3 frogs sat on a log"], 300).save("tokenizer.json")
    save_hf(TinyTransformer(ModelConfig(**TINY_MODEL)), root / "hf", root / "tokenizer.json")
    assert import_as("base") == 0
    return root


def import_as(name: str) -> int:
    return commands.import_model(argparse.Namespace(folder="hf", name=name))


@pytest.mark.parametrize("target", ["out", "new/out", "empty"])
def test_export_is_complete_or_absent(here: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    (here / "empty").mkdir()
    arguments = argparse.Namespace(run="base", folder=target, merge=False, step=None)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(hf, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            commands.export(arguments)
    assert not list(here.glob(f"{target}/*"))
    assert not list((here / target).parent.glob(".export-*"))
    assert commands.export(arguments) == 0
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(os.listdir(target))


def words_of(name: str) -> list[str]:
    return ["run.toml", "--profile", "p.toml", "--set", f"name={name}"]


def everything(root: Path) -> set[Path]:
    return set(root.rglob("*"))


NAMED: dict[str, Callable[[Harness, str], int]] = {
    "import": lambda here, name: import_as(name),
    "train": lambda here, name: train(here, "run.toml", "--set", f"name={name}"),
    "train --continue": lambda here, name: train(here, "run.toml", "--continue", "--set", f"name={name}"),
    "train on data": lambda here, name: train(here, "run.toml", "--set", f"data.name={name}"),
    "finetune": lambda here, name: tune(here, "base", f"--name={name}"),
    "finetune --continue": lambda here, name: tune(here, "base", "--continue", f"--name={name}"),
    "profile": lambda here, name: main(["profile", "run.toml", f"--name={name}"]),
    "prepare": lambda here, name: main(["data", "prepare", "--corpus", "text.md", f"--name={name}"]),
    "inspect": lambda here, name: main(["data", "inspect", "--", name]),
    "submit": lambda here, name: main(["submit", *words_of(name), "--to", "slurm"]),
    "bundle": lambda here, name: main(["bundle", *words_of(name), "--to", "out"]),
}  # fmt: skip


@pytest.mark.parametrize("command", NAMED)
def test_invalid_folder_name_is_rejected(
    here: Path, tmp_path: Path, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every command with a name rejects it with a message, before it writes anything."""
    before = everything(tmp_path)
    for name in WRONG:
        if not name and command in ("prepare", "profile", "finetune", "finetune --continue"):
            continue  # the same as no name
        try:
            code = NAMED[command](Harness(here), name)
            said = capfd.readouterr().err
        except FrogError as error:
            code, said = error.exit_code, str(error)
        assert (code, f"{name[:100]!r}" in said, "names a folder" in said) == (2, True, True), (name, said)
        assert everything(tmp_path) == before, name
        assert not OUTSIDE.exists()


def test_valid_names_are_accepted() -> None:
    assert [name for name in ("a", "demo-2", "0", "x.y_z-1", "x" * 100) if name_problem(name)] == []


def test_import_creates_a_complete_run(here: Path) -> None:
    folder = RunFolder(here / "runs" / "base")
    assert folder.read_run_json().name == "base"
    assert folder.checkpoint_steps() == [0]
    assert folder.tokenizer_json.is_file()
    assert [path.name for path in (here / "runs").iterdir()] == ["base"]


def unreadable(path: Path) -> None:
    path.write_text("{}")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", [unreadable, a_folder, a_dangling_link, a_pipe])
def test_import_with_an_unreadable_tokenizer_creates_no_run(here: Path, damage: Callable[[Path], None]) -> None:
    damage(here / "hf" / "tokenizer.json")
    before = everything(here)
    with pytest.raises(FrogError, match=r"hf/tokenizer\.json.*\n  try: copy it again"):
        import_as("second")
    assert everything(here) == before


class Killed(BaseException):
    """Ctrl-C, or an unexpected error."""


@pytest.mark.parametrize("moment", ["new_run_json", "write_json", "Saver", "sync_folder"])
def test_interrupted_import_leaves_nothing(here: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    before = everything(here)

    def broken(*args: object, **options: object) -> None:
        raise Killed

    monkeypatch.setattr(commands, moment, broken)
    with pytest.raises(Killed):
        import_as("second")
    left = everything(here) - before
    if moment == "sync_folder":  # the run is already complete
        assert RunFolder(here / "runs" / "second").checkpoint_steps() == [0]
    else:
        assert left == set()


def test_next_import_cleans_up_after_a_killed_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dead = here / "runs" / ".import-dead"
    (here / "runs" / "base").rename(here / "kept")
    dead.mkdir()
    (here / "kept").rename(dead / "second")
    assert main(["runs"]) == 0
    assert "second" not in capsys.readouterr().out
    assert import_as("second") == 0
    assert [path.name for path in (here / "runs").iterdir()] == ["second"]
