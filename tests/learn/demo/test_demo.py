"""The sessions' demos: they cover the curriculum, survive failing steps, and run unattended."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from harness import wait_until
from rich.console import Console
from warm_frog import warm_env

from frog.core.errors import UsageError
from frog.core.terminal import wrapped_lines
from frog.learn.demo.demo_page import page_path
from frog.learn.demo.demo_session import NAMES, Name, Session, Step, read_session
from frog.learn.demo.folders import new_folder, old_folder
from frog.learn.demo.play import Player

ROOT = Path(__file__).parents[3]
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
    "d": (),
    "e": (),
}
"""The curriculum's demo lists; sessions D and E are not in it."""
SCREEN_ROWS = 32
"""The most rows of 100 columns that a step may show, for a projector."""


@pytest.mark.parametrize("name", NAMES)
def test_every_point_of_the_curriculum_is_a_demo_step(name: Name) -> None:
    titles = "\n".join(step.title for step in read_session(name).steps)
    assert [words for words in LISTED[name] if words not in titles] == []


@pytest.mark.parametrize("name", NAMES)
def test_demo_commands_are_valid_shell(name: Name) -> None:
    for step in read_session(name).steps:
        subprocess.run(["bash", "-n", "-c", step.run], check=True)


@pytest.mark.parametrize("name", NAMES)
def test_step_title_fits_on_one_line(name: Name) -> None:
    steps = read_session(name).steps
    assert [step.title for step in steps if len(f"{len(steps)}/{len(steps)}  {step.title}") > 78] == []


@pytest.mark.parametrize("name", NAMES)
def test_command_lines_fit_a_screen_of_80_columns(name: Name) -> None:
    """The player indents them by 8 columns, and does not wrap them, so that they can be copied."""
    lines = [line for step in read_session(name).steps for line in step.run.splitlines()]
    assert [line for line in lines if len(line) > 72] == []


@pytest.mark.parametrize("name", NAMES)
def test_demo_steps_ask_questions_without_giving_the_answer(name: Name) -> None:
    """Each step except the last has a question, and no answer contains a question."""
    *steps, _ = read_session(name).steps
    assert [step.title for step in steps if not step.ask.rstrip(".").endswith("?") and "?" not in step.ask] == []
    assert [step.title for step in steps if not step.look] == []


def player(folder: Path, *steps: Step, auto: bool = True, width: int = 100) -> Player:
    session = Session(title="a session", steps=steps)
    return Player(session, folder, auto, Console(file=io.StringIO(), width=width))


def step(run: str, **more: object) -> Step:
    texts = {"title": "title", "say": "say [this]", "look": "look", "minutes": 1}
    return Step(run=run, **{**texts, **more})  # type: ignore[arg-type]


def shown(one: Player) -> str:
    assert isinstance(one.console.file, io.StringIO)
    return one.console.file.getvalue()


def test_retrying_a_failed_step_first_removes_its_runs(tmp_path: Path) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    one = player(
        tmp_path, step("test -e runs/one && exit 3; mkdir -p runs/one; echo tried >> tries; exit 4", makes=("one",))
    )
    assert not one.play(1)
    assert (tmp_path / "tries").read_text() == "tried\ntried\n"
    assert one.played[1].code == 4


def test_step_marked_fails_is_right_only_if_it_fails(tmp_path: Path) -> None:
    assert player(tmp_path, step("exit 1", fails=True)).play(1)
    assert not player(tmp_path, step("exit 0", fails=True)).play(1)


def test_step_fails_if_any_command_of_a_pipeline_fails(tmp_path: Path) -> None:
    """Such as grep in `grep ... | cut ...`, which finds nothing after a skipped step."""
    assert not player(tmp_path, step("false | true")).play(1)


def test_step_output_is_shown_and_stored(tmp_path: Path) -> None:
    one = player(tmp_path, step("echo '<out>'; echo err >&2"), step("pwd"))
    assert one.play(1)
    assert (tmp_path / "01.txt").read_text() == "<out>\nerr\n"
    assert "<out>\nerr\n" in shown(one)
    page = page_path(tmp_path).read_text()
    assert "&lt;out&gt;" in page
    assert str(tmp_path) in page


def test_player_prints_question_then_output_then_answer(tmp_path: Path) -> None:
    one = player(tmp_path, step("echo output", ask="how many?", look="seven"))
    one.play(1)
    words = [word for word in shown(one).split() if word in ("many?", "output", "seven")]
    assert words == ["output", "many?", "output", "seven"]  # the first is in the command


def test_player_waits_between_output_and_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []
    one = player(tmp_path, step("echo output", ask="how many?", look="seven"), step("true"), auto=False)

    def press_enter(prompt: str) -> str:
        asked.append((prompt.split(" ")[3], "seven" in shown(one)))
        return ""

    monkeypatch.setattr("frog.learn.demo.play.read_line", press_enter)
    assert one.play(1)
    assert asked == [("run", False), ("the", False), ("run", True)], "run it, the answer, run it"


def test_quit_before_the_answer_ends_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["", "q"])
    monkeypatch.setattr("frog.learn.demo.play.read_line", lambda _: next(answers))
    one = player(tmp_path, step("echo output", ask="how many?", look="seven"), step("touch second"), auto=False)
    assert one.play(1)
    assert "seven" not in shown(one)
    assert not (tmp_path / "second").exists()


def test_terminal_breaks_long_output_lines_between_words(tmp_path: Path) -> None:
    """Also where a line or a character comes in two parts, since a pipe holds 64 KiB."""
    line = " ".join(["zwölf"] * 40)
    (tmp_path / "text").write_text(f"{line}\n" * 1000 + line)
    one = player(tmp_path, step("cat text"))
    one.console = Console(file=io.StringIO(), width=60, force_terminal=True)
    assert one.play(1)
    rows = [row for row in shown(one).splitlines() if "zw" in row]
    assert max(map(len, rows)) <= 60
    assert " ".join(rows).split() == ["zwölf"] * 40 * 1001
    assert (tmp_path / "01.txt").read_text() == (tmp_path / "text").read_text()


def test_step_text_is_wrapped_next_to_its_label(tmp_path: Path) -> None:
    one = player(tmp_path, step("true", say="word " * 40, look="look"), width=60)
    one.play(1)
    said = [line for line in shown(one).splitlines() if "word" in line]
    assert len(said) > 2
    assert max(map(len, said)) <= 60
    assert {line[:8] for line in said[1:]} == {" " * 8}


def test_show_last_shows_the_end_of_an_output_and_stores_all(tmp_path: Path) -> None:
    one = player(tmp_path, step("seq 1000 1999", show_last=3))
    assert one.play(1)
    assert "1997\n1998\n1999\n" in shown(one)
    assert "1996" not in shown(one)
    assert "997 earlier lines are in" in shown(one)
    assert len((tmp_path / "01.txt").read_text().splitlines()) == 1000
    assert "1000\n" in page_path(tmp_path).read_text()


def test_continued_demo_keeps_earlier_steps_on_the_page(tmp_path: Path) -> None:
    steps = step("echo first"), step("echo second"), step("echo third")
    player(tmp_path, *steps).play(1)
    again = player(tmp_path, steps[0], step("echo another"), step("exit 1"))
    assert not again.play(2)
    page = page_path(tmp_path).read_text()
    assert [word in page for word in ("<pre>first", "<pre>another", "<pre>second", "<pre>third")] == [
        *(True, True),
        *(False, False),
    ]
    assert "this step went wrong" in page


def test_demo_page_is_written_after_each_step(tmp_path: Path) -> None:
    """An interrupted demo leaves a page with the steps played so far."""
    one = player(tmp_path, step("echo first"), step("cat index.html"))
    one.play(1)
    assert "<pre>first" in (tmp_path / "02.txt").read_text()


def test_demo_command_gets_a_free_port(tmp_path: Path) -> None:
    one = player(tmp_path, step("echo port FREE_PORT"))
    one.play(1)
    port = int((tmp_path / "01.txt").read_text().split()[1])
    assert 1024 < port < 65536
    assert f"echo port {port}" in shown(one)
    assert f"echo port {port}" in page_path(tmp_path).read_text()


def test_step_past_its_timeout_is_killed_and_the_demo_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frog.learn.demo.play._GRACE_S", 1)
    one = player(tmp_path, step("sleep 1000 & sleep 1000", timeout_s=1), step("echo after"))
    assert not one.play(1)
    assert one.played[1].code != 0
    assert one.played[2].is_right


def test_ctrl_c_ends_a_demo_step_and_asks_how_to_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The presenter presses Enter to start a step, Ctrl-C to end it, and s to continue with the next step."""
    answers = iter(["", "s", ""])
    one = player(tmp_path, step("echo begun > begun; sleep 1000"), step("echo after"), auto=False)
    monkeypatch.setattr("frog.learn.demo.play.read_line", lambda _: next(answers))

    def interrupt() -> None:
        wait_until((tmp_path / "begun").exists, "the step")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert not one.play(1)
    thread.join()
    assert one.played[2].is_right


def test_demo_outside_the_repository_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"does not contain train\.py"):
        new_folder("a", None)


def test_demo_creates_numbered_folders_and_from_uses_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("scripts", "config"):
        (tmp_path / name).mkdir()
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError, match="found no demo-a here to continue"):
        old_folder("a", None)
    assert [str(new_folder("a", None)) for _ in range(11)] == ["demo-a", *(f"demo-a-{n}" for n in range(2, 12))]
    (tmp_path / "demo-a-99").mkdir()  # not a demo folder
    assert str(old_folder("a", None)) == "demo-a-11"
    assert str(new_folder("a", None)) == "demo-a-100"
    assert str(new_folder("b", None)) == "demo-b"
    assert str(new_folder("a", Path("here/mine"))) == "here/mine"
    with pytest.raises(UsageError, match="here/mine: already exists"):
        new_folder("a", Path("here/mine"))
    assert str(old_folder("a", Path("demo-a-2"))) == "demo-a-2"


def test_demo_never_removes_runs_outside_a_demo_folder(tmp_path: Path) -> None:
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    with pytest.raises(UsageError, match="not a demo folder"):
        old_folder("a", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(2700)
@pytest.mark.parametrize("name", NAMES)
def test_demo_runs_unattended(name: Name, tmp_path: Path) -> None:
    """The shell of each step finds the quick programs of tests/warm_frog first."""
    shell = tmp_path / "warm.sh"
    lines = [f"export {variable}={shlex.quote(value)}\n" for variable, value in warm_env().items()]
    shell.write_text("".join([*lines, "unset BASH_ENV\n"]))
    command = [str(Path(sys.executable).parent / "frog"), "demo", name, "--auto", "--out", str(tmp_path / "demo")]
    env = {**os.environ, "BASH_ENV": str(shell)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=2640)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    session = read_session(name)
    outputs = {path.name: path.read_text() for path in (tmp_path / "demo").glob("[0-9][0-9].txt")}
    assert len(outputs) == len(session.steps)
    assert "runs/" in (tmp_path / "demo" / "index.html").read_text()
    steps = re.split(r"^\d+/\d+  .* ─+$", done.stdout, flags=re.MULTILINE)[1:]
    assert len(steps) == len(session.steps)
    whole = {f"{number:02}.txt" for number, step in enumerate(session.steps, 1) if step.show_last is None}
    rows = {name: wrapped_lines(outputs[name], 100).count("\n") for name in whole}
    assert {name: count for name, count in rows.items() if count > SCREEN_ROWS} == {}


@pytest.mark.parametrize("name", NAMES)
def test_run_sheet_matches_the_demos_minutes_and_questions(name: Name) -> None:
    sheet = (ROOT / "docs" / "teach" / f"session-{name}.md").read_text()
    session = read_session(name)
    assert f"## The demo, {session.minutes} minutes" in sheet
    rows = [f"| {number} {step.title} | {step.minutes} | {step.ask} |" for number, step in enumerate(session.steps, 1)]
    assert [row for row in rows if row not in sheet] == []
