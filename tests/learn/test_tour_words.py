"""What `frog learn start` asks and says, of runs that were recorded before: tour_words.json has every line.

test_start_tour.py takes the tour with real ranks, which is slow. After a change that is meant: FROG_REWRITE_GOLDEN=1
pytest -n 0 tests/learn/test_tour_words.py, and read the difference.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from core.runs.test_observed_files import STATUS, write
from harness import LIMIT_S
from learn.test_start_tour import write_run
from observe.check.check_records import two_ranks

from frog.learn.folder import create_folder
from frog.learn.grader.exercise import LABS
from frog.learn.start import tour as tour_module
from frog.learn.start.shown_command import ShownCommand, ends_on_signals
from frog.learn.start.tour import PROGRAM, REDUCES, Tour, _Gate, _is_of_a_step, _Until
from frog.learn.start.what_happened import Noticed, WhatHappened, newest_run
from frog.learn.text import Style
from frog.learn.tour_record import FOLDER, STEP_NAMES, read_finished

KEPT = Path(__file__).with_name("tour_words.json")
REWRITE = "FROG_REWRITE_GOLDEN" in os.environ
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:9. This may be"
EXIT: dict[str, Any] = {"event": "exit", "pid": 5, "error": None, "traceback": None}
WORLD = {"event": "world", "ranks": [0, 1], "world_size": 2, "master_addr": "", "master_port": 1, "pids": [5, 6]}
EQUAL, DRIFTED = ("0.207217", "0.207217"), ("0.207217", "0.3")
Typed = str | Callable[[], None]


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, list[str]]]:
    known: dict[str, list[str]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    yield known
    if REWRITE:
        KEPT.write_text(json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False) + "\n")


class Learner(io.StringIO):
    """A learner who types one answer after another, or edits the program and presses Enter."""

    def __init__(self, *typed: Typed) -> None:
        super().__init__()
        self._typed = iter(typed)

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        answer = next(self._typed, None)
        if callable(answer):
            answer()
            answer = ""
        return "" if answer is None else f"{answer}\n"


class Recorded(Tour):
    """The tour with runs that were recorded before."""

    def __init__(self, course: Path, labs: Path, style: Style) -> None:
        super().__init__(course, labs, Style(9999))  # no line is wrapped, since a path may be of any length
        self.recorded = _recorded(course / FOLDER / "runs")

    def run(
        self, words: list[str], shows: Callable[[str], bool] = lambda line: True
    ) -> tuple[WhatHappened | None, int]:
        self.announce(words)
        return (None, 0) if words[0] == "diagnose" else self.next_run()

    def next_run(self) -> tuple[WhatHappened | None, int]:
        return next(self.recorded)


def _recorded(runs: Path) -> Iterator[tuple[WhatHappened | None, int]]:
    """Yield the runs of a learner, who in each step fails at first."""

    def observed(name: str, called: tuple[int, int], failed: int | None = None) -> None:
        for rank, number in enumerate(called):
            groups = [{"group": "0", "enqueued": number, "completed": 0}] if number else []
            write(runs / name, "status.json", {**STATUS, "rank": rank, "groups": groups}, rank=rank)
        if failed is not None:
            line = {"file": f"/home/me/{PROGRAM}", "line": 24}
            error = {"format": 1, "rank": failed, "pid": 7, "unix_ns": 9, "type": "RuntimeError", "message": GLOO}
            write(runs / name, "error.json", {**error, "line": line}, rank=failed)

    yield None, 1
    yield write_run(runs / "stopped", EQUAL, []), 1
    yield write_run(runs / "first", EQUAL, []), 0
    yield write_run(runs / "not-killed", EQUAL, [WORLD]), 0
    killed = write_run(runs / "killed", EQUAL, [WORLD, {**EXIT, "rank": 1, "code": -signal.SIGKILL}])
    observed("killed", (2, 2), failed=0)
    yield killed, 137
    observed("waits-for-none", (4, 4))
    yield write_run(runs / "waits-for-none", EQUAL, [WORLD]), 0
    observed("skipped", (1, 0), failed=0)
    yield write_run(runs / "skipped", EQUAL, [WORLD, {**EXIT, "rank": 0, "code": 1}]), 1
    yield write_run(runs / "stays-equal", EQUAL, [WORLD]), 0
    two_ranks(runs / "taken-out", gradients=[[5, 2.0]], weights=[[5, 3.0]], backwards=[{"bits": {"0": [5]}}])
    for path in (runs / "taken-out").rglob("checks.jsonl"):
        path.write_text(path.read_text().replace("/home/one/train.py", PROGRAM))
    yield write_run(runs / "taken-out", DRIFTED, [WORLD]), 1


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    course = create_folder(tmp_path / "mine", learner="Ada").path
    monkeypatch.chdir(course)
    monkeypatch.setattr(tour_module, "Tour", Recorded)
    monkeypatch.setattr(tour_module, "_run_and_kill", lambda tour: tour.next_run()[0])
    return course


def test_no_line_of_the_tour_changes_unnoticed(
    course: Path,
    kept: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def edit(before: str, after: str) -> Callable[[], None]:
        program = course / FOLDER / PROGRAM

        def write_it() -> None:
            program.write_text(program.read_text().replace(before, after))

        return write_it

    def say(name: str, code: int, *typed: Typed, again: bool = False) -> None:
        monkeypatch.setattr("sys.stdin", Learner(*typed))
        assert tour_module.start(argparse.Namespace(again=again)) == code
        lines = [line.rstrip() for line in capsys.readouterr().out.replace(str(course), "COURSE").splitlines()]
        if REWRITE:
            kept[name] = lines
        assert lines == kept[name], "if the change is meant, rewrite tour_words.json: see above"

    damaged = edit(REDUCES, f"{REDUCES}  # mine")
    skips = edit(f"    {REDUCES}", f"    if rank == 0: {REDUCES}")
    out = edit(f"    {REDUCES}", f"#    {REDUCES}")
    two_ranks = ("", "", "", "", "", "d", "A", "2", "c")
    kill = ("c", "")
    skip = ("b", "", damaged, "", "", skips, "", "")
    take_out = ("C", damaged, "", "", out, "", "1", "7")
    say("all steps", 0, *two_ranks, *kill, *skip, *take_out)
    assert read_finished(course).runs == dict(zip(STEP_NAMES, ("first", "killed", "skipped", "taken-out"), strict=True))
    assert (course / FOLDER / PROGRAM).read_text() == (LABS / FOLDER / PROGRAM).read_text()
    say("finished", 0)
    (course / FOLDER / PROGRAM).write_text("mine\n")
    say("once more", 1, "q", again=True)
    assert read_finished(course).runs == {}


def test_numbers_of_a_run_and_who_noticed_come_from_its_folder(tmp_path: Path) -> None:
    runs = list(_recorded(tmp_path))
    found = {shown.name: shown for shown, _ in runs if shown is not None}
    assert found["killed"].noticed(0) == Noticed("RuntimeError: Connection closed by peer [127.0.0.1]:9", "first.py:24")
    assert (found["killed"].noticed(1), found["first"].noticed(0), found["first"].pids()) == (None, None, [])
    assert [found["skipped"].num_collectives(rank) for rank in (0, 1, 2)] == [1, 0, 0]
    assert found["first"].rows(1)[2] == {"samples": "[1, 2]", "loss": "4.7110", "weight": "0.207217"}
    assert newest_run(tmp_path, set()) is None
    for second, name in enumerate(("killed", "first", "skipped")):
        (tmp_path / name / "run.json").touch()
        os.utime(tmp_path / name / "run.json", (second, second))
    newest = newest_run(tmp_path, {"skipped"})
    assert newest is not None
    assert newest.name == "first"


def test_lines_of_steps_are_hidden_once_both_ranks_train() -> None:
    gate = _Gate()
    shown = [gate("a"), gate("b")]
    gate.is_open = False
    assert ([*shown, gate("c")], gate.num_seen) == ([True, True, False], 2)
    lines = ("rank 0 | step 3 ", "rank 0 | Traceback", "error: | step 3 ")
    assert [_is_of_a_step(line) for line in lines] == [True, False, False]
    until = _Until("Held:")
    assert [until(line) for line in ("a", "  Held: x", "Held: x", "b")] == [True, True, False, False]


def test_lines_of_a_command_appear_wrapped_and_nothing_of_it_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ShownCommand(
        ["world", "--network", "rate=1mbit"], tmp_path, Style(60), shows=lambda line: "try" not in line
    ) as command:
        assert command.wait_for(lambda lines: bool(lines), LIMIT_S)
        assert not command.kill_rank(os.getpid())
        assert command.wait(LIMIT_S) == 2
        assert not command.wait_for(lambda lines: "no such line" in lines, LIMIT_S)
        assert not command.is_running()
    assert command.lines == [
        "error: --network needs several nodes: a single node has no link", "  try: --nodes 2x2"
    ]  # fmt: skip
    assert capsys.readouterr().out.splitlines() == [
        "  error: --network needs several nodes: a single node has no", "    link"
    ]  # fmt: skip


def test_command_that_waits_is_ended_with_the_block_and_by_a_signal(tmp_path: Path) -> None:
    course = create_folder(tmp_path / "mine", learner="Ada").path

    def run() -> None:
        with (
            ends_on_signals(),
            ShownCommand(["world", "--nproc", "1"], course, Style(80), shows=lambda line: True) as command,
        ):
            commands.append(command)
            assert command.wait(0) is None
            assert command.is_running()
            signal.raise_signal(signal.SIGTERM)

    commands: list[ShownCommand] = []
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
        run()
    assert not commands[0].is_running()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
