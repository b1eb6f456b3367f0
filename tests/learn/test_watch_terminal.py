"""`frog learn watch` in a real terminal: a save changes the verdict, keys work, and the terminal is restored."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest
from harness import LIMIT_S, wait_until
from small_course import SOLUTION, FakeGrader, write_course
from terminal_screen import shown_by

from frog.learn.folder import LearnerFolder, create_folder
from frog.learn.grader.exercise import find_exercise
from frog.learn.screen import screen_lines
from frog.learn.session import Session
from frog.learn.terminal import Event, draw, keys_in
from frog.learn.text import Style


class Shell:
    """A terminal with 24 rows that runs the watch."""

    def __init__(self, folder: LearnerFolder, columns: int = 80) -> None:
        self.keyboard, screen = pty.openpty()
        termios.tcsetwinsize(self.keyboard, (24, columns))
        self.before = termios.tcgetattr(self.keyboard)
        self.columns = columns
        self.all = self.seen = ""
        words = [sys.executable, str(Path(__file__).parent / "watched.py"), str(folder.path), str(folder.labs)]
        env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            words, stdin=screen, stdout=screen, stderr=screen, env={**env, "TERM": "xterm"}, start_new_session=True
        )
        self.screen = screen  # stays open, so that the last output can be read after the end

    def wait_for(self, text: str) -> None:
        """Wait until the screen shows this text after the previous call."""
        self.wait_until(lambda: text in self.seen, text)
        self.seen = self.seen.partition(text)[2]

    def wait_until(self, is_true: Callable[[], bool], what: str) -> None:
        def is_seen() -> bool:
            if select.select([self.keyboard], [], [], 0)[0]:
                data = os.read(self.keyboard, 65536).decode(errors="replace")
                self.seen += data
                self.all += data
            return is_true()

        wait_until(is_seen, what, seen=lambda: self.seen)

    @property
    def rows(self) -> list[str]:
        """The screen's content."""
        return shown_by(self.all, self.columns)

    def press(self, keys: str) -> None:
        os.write(self.keyboard, keys.encode())

    def end(self) -> int:
        """Wait for the watch to end and check that it restored the terminal; return the exit code."""
        self.wait_until(lambda: self.process.poll() is not None, "its end")
        self.wait_for("\x1b[?1049l")
        assert termios.tcgetattr(self.keyboard) == self.before
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.keyboard)
        os.close(self.screen)


@pytest.fixture
def folder(tmp_path: Path) -> LearnerFolder:
    return create_folder(tmp_path / "mine", write_course(tmp_path / "labs"))


@pytest.fixture
def shell(folder: LearnerFolder) -> Iterator[Shell]:
    found = Shell(folder)
    yield found
    found.close()


@pytest.mark.parametrize("columns", [40, 80, 100, 120])
def test_full_rows_are_drawn_completely(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    full = [f"{row:<{columns - 1}}|" for row in range(24)]
    draw(full)
    first = capsys.readouterr().out
    assert shown_by(first, columns) == full
    draw(["less", *[""] * 22, full[-1]])
    assert shown_by(first + capsys.readouterr().out, columns) == ["less", *[""] * 22, full[-1]]


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_terminal_shows_the_whole_watch_screen(folder: LearnerFolder, columns: int) -> None:
    readme = folder.labs / "lab1" / "01_first" / "README.md"
    readme.write_text("# title\n\n" + " ".join(f"word{number}" for number in range(60)))
    shell = Shell(folder, columns)
    try:
        shell.wait_until(lambda: any("checked" in row for row in shell.rows), "a check")
        wide = min(columns, 100)
        expected = screen_of(folder, wide)
        assert [row for row in shell.rows if "checked" not in row] == [r for r in expected if "checked" not in r]
        assert [len(row) for row in shell.rows if row.startswith("--")] == [wide, wide]
    finally:
        shell.close()


def screen_of(folder: LearnerFolder, columns: int) -> list[str]:
    """Return the screen that the watch should draw after its first check."""
    events: SimpleQueue[Event] = SimpleQueue()
    session = Session(folder, find_exercise("1.1", folder.labs), FakeGrader, events)
    session.handle(("look", None))
    session.handle(events.get(timeout=LIMIT_S))
    return screen_lines(session, Style(columns), 24)


def test_keys_of_several_bytes_are_named() -> None:
    assert keys_in(b"a\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[Hb") == ["a", "up", "down", "pageup", "pagedown", "b"]
    assert keys_in(b"\x1b") == ["\x1b"]
    assert keys_in("é\t".encode()) == ["é", "\t"]


def test_watch_reacts_to_a_save_and_to_keys_in_a_terminal(shell: Shell, folder: LearnerFolder) -> None:
    shell.wait_for("not solved yet")
    step = folder.path / "exercises" / "lab1" / "01_first" / "step.py"
    step.with_name(".step.py.new").write_text(SOLUTION)
    step.with_name(".step.py.new").rename(step)  # as editors save
    shell.wait_for("passed")
    shell.press("h")
    shell.wait_for("hint 1 of 3")
    shell.press("l")
    shell.wait_for("> 1.1")
    shell.press("n")
    shell.wait_for("lab 1.2")
    shell.wait_for("not solved yet")
    shell.press("l\x1b[A")
    shell.wait_for("> 1.1")
    shell.press("\x1b[B\r")
    shell.wait_for("not solved yet")
    shell.press("rn")
    shell.wait_for("nothing was reset")
    os.kill(shell.process.pid, signal.SIGWINCH)
    shell.wait_for("q quit")
    shell.press("q")
    assert shell.end() == 0


@pytest.mark.parametrize(
    ("number", "codes"), [(signal.SIGINT, (1, 130, -2)), (signal.SIGTERM, (143,)), (signal.SIGHUP, (129,))]
)
def test_terminal_is_restored_on_every_exit(shell: Shell, number: signal.Signals, codes: tuple[int, ...]) -> None:
    shell.wait_for("not solved yet")
    os.kill(shell.process.pid, number)
    assert shell.end() in codes


def test_ctrl_z_restores_the_terminal_until_fg(shell: Shell) -> None:
    shell.wait_for("not solved yet")
    os.kill(shell.process.pid, signal.SIGTSTP)
    shell.wait_for("\x1b[?1049l")
    shell.wait_until(lambda: psutil.Process(shell.process.pid).status() == psutil.STATUS_STOPPED, "the stop")
    os.kill(shell.process.pid, signal.SIGCONT)
    shell.wait_for("not solved yet")
    shell.press("q")
    assert shell.end() == 0


def test_watch_without_a_terminal_prints_each_verdict(folder: LearnerFolder) -> None:
    words = [sys.executable, str(Path(__file__).parent / "watched.py"), str(folder.path), str(folder.labs)]
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **options) as process:
        assert process.stdout is not None
        seen = next(line for line in process.stdout if "lab 1.1" in line)
        assert "not solved yet" in seen
        assert "\x1b" not in seen
        (folder.path / "exercises" / "lab1" / "01_first" / "step.py").write_text(SOLUTION)
        assert "passed" in next(line for line in process.stdout if "lab 1.1" in line)
        process.kill()
