"""`frog learn start`: the program it runs, what it reads from a run, and the whole tour in a real terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness import LIMIT_S, all_gone, wait_until

from frog.core.errors import UsageError
from frog.learn.folder import LearnerFolder, create_folder
from frog.learn.grader.exercise import LABS
from frog.learn.standing import standing_in, summary_lines
from frog.learn.start.tour import PROGRAM, REDUCES, STEPS, Tour
from frog.learn.start.what_happened import WhatHappened
from frog.learn.text import Style
from frog.learn.tour_record import FOLDER, RECORD, STEP_NAMES, is_finished, read_finished

STEP = "2026-11-29 20:33:53.363 rank {rank} | step {step}  samples [{rank}, 2]  loss 4.71{rank}0  weight {weight}\n"


@pytest.fixture
def tour(tmp_path: Path) -> Tour:
    return Tour(create_folder(tmp_path / "mine", learner="Ada").path, LABS, Style(80))


def write_run(folder: Path, weights: tuple[str, str], events: list[dict[str, object]]) -> WhatHappened:
    for rank, weight in enumerate(weights):
        log = folder / "logs" / f"rank_{rank}" / "train.log"
        log.parent.mkdir(parents=True)
        log.write_text("".join(STEP.format(rank=rank, step=step, weight=weight) for step in (1, 2)) + "Traceback\n")
    (folder / "events").mkdir()
    lines = [json.dumps({"unix_ns": 1, "node": 0, "node_rank": 0, "attempt": 0, **event}) for event in events]
    (folder / "events" / "launcher.jsonl").write_text("\n".join(lines) + "\n")
    return WhatHappened(folder)


def test_program_fits_a_terminal_and_has_the_lines_that_the_tour_names(tour: Tour) -> None:
    lines = tour.original.splitlines()
    assert max(map(len, lines)) <= 74
    assert len(lines) <= 35
    assert "init_process_group" in lines[8]  # "They meet in line 9"
    assert sum(REDUCES in line for line in lines) == 1
    assert lines[tour.line - 1].strip() == REDUCES
    assert tuple(step.name for step in STEPS) == STEP_NAMES


def test_equal_columns_are_those_that_agree_in_every_step(tmp_path: Path) -> None:
    assert write_run(tmp_path / "equal", ("0.207217", "0.207217"), []).equal_columns() == {"weight"}
    drifted = write_run(tmp_path / "drifted", ("0.207217", "0.207218"), [])
    assert drifted.equal_columns() == set()
    assert drifted.steps() == [1, 2]
    assert WhatHappened(tmp_path / "none").equal_columns() == set()


def test_killed_rank_is_the_one_that_sigkill_ended(tmp_path: Path) -> None:
    gone = {"event": "exit", "rank": 0, "pid": 5, "error": None, "traceback": None}
    world = {"event": "world", "ranks": [0, 1], "world_size": 2, "master_addr": "", "master_port": 1, "pids": [5, 6]}
    run = write_run(tmp_path / "killed", ("0.1", "0.1"), [world, {**gone, "code": 1}, {**gone, "rank": 1, "code": -9}])
    assert (run.killed(), run.failed(), run.pids()) == (1, {0, 1}, [5, 6])
    run = write_run(tmp_path / "failed", ("0.1", "0.1"), [world, {**gone, "code": 1}])
    assert (run.killed(), run.failed()) == (None, {0})


def test_changed_program_is_kept_when_it_is_restored(tour: Tour) -> None:
    tour.folder.mkdir()
    tour.restore()
    assert tour.is_original()
    tour.program.write_text("mine\n")
    tour.start_from_original()
    assert tour.is_original()
    assert (tour.folder / "first.py.yours").read_text() == "mine\n"


def test_first_screen_offers_the_tour_until_it_is_finished(tour: Tour) -> None:
    def last_line() -> str:
        folder = LearnerFolder(tour.course)
        return summary_lines(standing_in(folder), folder, Style(80))[-1]

    assert last_line() == "next: frog learn start (ten minutes with two ranks); then: frog learn watch"
    tour.folder.mkdir()
    record = tour.folder / RECORD
    record.write_text(json.dumps({"format": 1, "runs": dict.fromkeys(STEP_NAMES[:3], "first")}))
    assert last_line().startswith("next: frog learn start")
    record.write_text(json.dumps({"format": 1, "runs": dict.fromkeys(STEP_NAMES, "first")}))
    assert last_line() == "next: frog learn watch"
    assert is_finished(tour.course)
    record.write_text("{")
    with pytest.raises(UsageError, match=RECORD):
        read_finished(tour.course)


class Terminal:
    """A terminal in which `frog learn start` runs."""

    def __init__(self, course: Path) -> None:
        self.keyboard, self._screen = pty.openpty()
        termios.tcsetwinsize(self.keyboard, (24, 80))
        self.course, self.all = course, ""
        self._place = 0
        words = [sys.executable, "-P", "-m", "frog", "learn", "start"]
        env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        env["NO_COLOR"] = "1"
        ends = {"stdin": self._screen, "stdout": self._screen, "stderr": self._screen}
        self.process = subprocess.Popen(words, cwd=course, env=env, start_new_session=True, **ends)

    def wait_for(self, text: str) -> None:
        """Wait until this text appears after the last one; line breaks count as spaces."""

        def is_seen() -> bool:
            if select.select([self.keyboard], [], [], 0)[0]:
                self.all += os.read(self.keyboard, 65536).decode(errors="replace").replace("\r", "")
            return text in self.all[self._place :].replace("\n", " ")

        wait_until(is_seen, text, seen=lambda: self.all[self._place :])
        self._place += self.all[self._place :].replace("\n", " ").index(text) + len(text)

    def answer(self, prompt: str, text: str = "") -> None:
        self.wait_for(prompt)
        os.write(self.keyboard, f"{text}\n".encode())

    def edit(self, before: str, after: str) -> None:
        program = self.course / FOLDER / PROGRAM
        text = program.read_text()
        assert before in text
        program.write_text(text.replace(before, after))

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.keyboard)
        os.close(self._screen)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


@pytest.mark.slow
def test_learner_takes_the_tour_stops_it_and_continues(tmp_path: Path, terminals: list[Terminal]) -> None:
    course = create_folder(tmp_path / "mine", learner="Ada").path
    terminals.append(Terminal(course))
    first = terminals[0]
    first.answer("Enter: run it")
    first.answer("a letter", "b")
    first.wait_for("Look again.")
    first.answer("a letter", "c")
    first.wait_for("Right: the weight is")
    first.answer("a letter", "c")
    first.answer("Enter: run it")
    first.wait_for("Enter: kill rank 1")
    family = first.family()
    assert len(family) >= 4  # frog run, its agent, two ranks
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(LIMIT_S) == 128 + signal.SIGTERM
    wait_until(lambda: all_gone(family), "the end of all processes")
    assert read_finished(course).runs.keys() == {"two-ranks"}

    terminals.append(Terminal(course))
    again = terminals[1]
    again.wait_for("[2 of 4]")
    again.answer("a letter", "a")
    again.answer("Enter: run it")
    again.answer("Enter: kill rank 1")
    again.wait_for("was killed by SIGKILL")
    again.wait_for("The launcher saw the process of rank 1 end with SIGKILL. ")
    again.wait_for("[3 of 4]")
    shown = again.all.replace("\n", " ")  # on a busy machine the launcher may be faster than gloo
    assert ("Rank 0 noticed it at first.py:" in shown) is not ("It ended rank 0 before" in shown)
    again.answer("a letter", "a")
    again.answer("Enter: saved")
    again.wait_for("The file has not changed.")
    again.edit(f"    {REDUCES}", f"    {REDUCES}  # mine")  # a change that breaks nothing
    again.answer("Enter: saved")
    again.answer("Enter: run it")
    again.wait_for("no rank waited for one that never came")
    again.answer("Enter: try again")
    again.wait_for("open")
    again.edit(f"    {REDUCES}", f"    if rank == 0: {REDUCES}")
    again.answer("Enter: saved")
    again.answer("Enter: run it")
    again.answer("Enter: run it")
    again.wait_for("which rank 1 never calls")
    again.wait_for("As you predicted. Rank 0 waited at first.py:")
    again.wait_for("[4 of 4]")
    again.answer("a letter", "b")
    again.wait_for("open")
    again.edit(f"    {REDUCES}", f"#    {REDUCES}")
    again.answer("Enter: saved")
    again.answer("Enter: run it")
    again.wait_for("1 rule is broken")
    again.wait_for("two models, each trained on half of the data")
    named = next(
        n for n, line in enumerate((course / FOLDER / PROGRAM).read_text().splitlines(), 1) if "backward" in line
    )
    again.answer("a number", "3")
    again.answer("a number", str(named))
    again.wait_for("Right: `loss.backward()`")
    again.wait_for("next: frog learn")
    assert again.process.wait(LIMIT_S) == 0
    assert is_finished(course)
    assert (course / FOLDER / PROGRAM).read_text() == (LABS / FOLDER / PROGRAM).read_text()
    if (course / ".git").exists():
        changed = subprocess.check_output(["git", "status", "--short", "--", "start/runs"], cwd=course, text=True)
        assert changed == ""
