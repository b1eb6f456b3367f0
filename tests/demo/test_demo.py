"""The sessions' demonstrations: what the curriculum lists is there, a step that fails is got over, all three run."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from harness import PATIENCE
from rich.console import Console

from frog.core.errors import UsageError
from frog.demo.commands import _folder
from frog.demo.page import write_page
from frog.demo.play import Player
from frog.demo.session import NAMES, Name, Session, Step, read_session

ROOT = Path(__file__).parents[2]
LISTED: dict[Name, tuple[str, ...]] = {
    "a": (
        "Build a tiny transformer (few layers)",
        "Use MPS backend",
        "observe loss decreasing",
        "Save checkpoint every N steps",
        "Resume from checkpoint",
        "Validate model on held-out samples",
    ),
    "b": (
        "torchrun --nproc_per_node=4 train.py",
        "Each process acting as a GPU worker",
        "Rank-specific logs",
        "Dataset sharding per rank",
        "Simulated gradient synchronization",
    ),
    "c": (
        "Fake a 2-node job by manually assigning ranks",
        "Simulate distributed barriers",
        "Show SLURM config",
        "Show DeepSpeed config",
        "Walk through how cluster nodes coordinate",
    ),
}
"""The demo lists of the curriculum."""


@pytest.mark.parametrize("name", NAMES)
def test_every_point_of_the_curriculum_is_a_step(name: Name) -> None:
    titles = "\n".join(step.title for step in read_session(name).steps)
    assert [words for words in LISTED[name] if words not in titles] == []


@pytest.mark.parametrize("name", NAMES)
def test_commands_are_shell(name: Name) -> None:
    for step in read_session(name).steps:
        subprocess.run(["bash", "-n", "-c", step.run], check=True)


def player(folder: Path, *steps: Step, auto: bool = True) -> Player:
    session = Session(title="a session", minutes=1, steps=steps)
    return Player(session, folder, auto, Console(file=io.StringIO(), width=100))


def step(run: str, **more: object) -> Step:
    return Step(title="title", say="say [this]", run=run, look="look", **more)  # type: ignore[arg-type]


def test_a_step_that_fails_is_tried_again_without_what_it_made(tmp_path: Path) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    one = player(
        tmp_path, step("test -e runs/one && exit 3; mkdir -p runs/one; echo tried >> tries; exit 4", makes=("one",))
    )
    assert not one.play(1)
    assert (tmp_path / "tries").read_text() == "tried\ntried\n"
    assert one.played[0].code == 4


def test_a_step_that_is_to_fail_must_fail(tmp_path: Path) -> None:
    assert player(tmp_path, step("exit 1", fails=True)).play(1)
    assert not player(tmp_path, step("exit 0", fails=True)).play(1)


def test_all_that_was_printed_is_kept_and_shown(tmp_path: Path) -> None:
    one = player(tmp_path, step("echo '<out>'; echo err >&2"), step("pwd"))
    assert one.play(1)
    assert (tmp_path / "01.txt").read_text() == "<out>\nerr\n"
    page = write_page(tmp_path, one.session, one.played).read_text()
    assert "&lt;out&gt;" in page
    assert str(tmp_path) in page


def test_a_step_that_does_not_end_is_ended_and_the_demo_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frog.demo.play._GRACE_S", 1)
    one = player(tmp_path, step("sleep 1000 & sleep 1000", timeout_s=1), step("echo after"))
    assert not one.play(1)
    assert one.played[0].code != 0
    assert one.played[1].is_right


def test_ctrl_c_ends_the_step_and_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the keyboard: Enter runs it, Ctrl-C ends it, s goes on without it."""
    answers = iter(["", "s", ""])
    one = player(tmp_path, step("echo begun > begun; sleep 1000"), step("echo after"), auto=False)
    monkeypatch.setattr("frog.demo.play.read_line", lambda _: next(answers))

    def interrupt() -> None:
        while not (tmp_path / "begun").exists():
            pass
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert not one.play(1)
    thread.join()
    assert one.played[1].is_right


def test_a_demo_needs_the_repository_and_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"here is no train\.py"):
        _folder(tmp_path / "new", 1)
    with pytest.raises(UsageError, match="there is no"):
        _folder(tmp_path / "new", 2)


def test_runs_that_are_not_a_demos_are_not_removed(tmp_path: Path) -> None:
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    with pytest.raises(UsageError, match="is no demo's folder"):
        _folder(tmp_path, 2)


@pytest.mark.slow
@pytest.mark.timeout(2700)
@pytest.mark.parametrize("name", NAMES)
def test_a_session_runs_unattended(name: Name, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "frog"), "demo", name, "--auto", "--out", str(tmp_path / "demo")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE * 880)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    session = read_session(name)
    assert len(list((tmp_path / "demo").glob("[0-9][0-9].txt"))) == len(session.steps)
    assert "runs/" in (tmp_path / "demo" / "index.html").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_demo_takes_the_minutes_of_the_run_sheet(name: Name) -> None:
    sheet = (ROOT / "docs" / "teach" / f"session-{name}.md").read_text()
    assert f"## The demo, {read_session(name).minutes} minutes" in sheet
