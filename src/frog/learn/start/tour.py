"""`frog learn start`: run two ranks, see what differs between them, break them three times, and read who noticed.

Each step runs real commands in `start/` of the course folder and judges the learner's answer by what the run's folder
shows. A step is done once its run showed it; a later `frog learn start` continues with the next one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from frog.core.env import child_env
from frog.core.files import write_atomic
from frog.core.schema import write_typed
from frog.core.terminal import print_coloured
from frog.core.units import count
from frog.learn.actions import learner_here
from frog.learn.grader.exercise import LABS
from frog.learn.start.shown_command import ShownCommand, ends_on_signals, show_line
from frog.learn.start.what_happened import WhatHappened, newest_run
from frog.learn.text import Style, style_of_output
from frog.learn.tour_record import FOLDER, RECORD, STEP_NAMES, Finished, is_finished, read_finished
from frog.learn.typed import read_answer, read_answers

PROGRAM = "first.py"
REDUCES = "dist.all_reduce(gradient)"
"""The call in `first.py` that the learner takes out and puts behind a condition."""
_TIMEOUT_S, _KILLED_S, _LONG = 180.0, 120.0, 1000
_RUN = ["run", "--nproc", "2", "--", PROGRAM]


class Quit(Exception):
    """The learner quits, or the input has ended."""


@dataclass(frozen=True)
class Step:
    """A step of the tour."""

    name: str
    title: str
    take: Callable[[Tour], WhatHappened]
    """Takes the step with the learner and returns the run that showed it."""


class Tour:
    """The tour in one course folder."""

    def __init__(self, course: Path, labs: Path, style: Style) -> None:
        self.course, self.folder, self.style = course, course / FOLDER, style
        self.original = (labs / FOLDER / PROGRAM).read_text()
        self.line = 1 + next(n for n, line in enumerate(self.original.splitlines()) if REDUCES in line)
        """Number of the line that calls all-reduce."""
        self.meeting = self.original[: self.original.index("init_process_group")].count("\n") + 1
        """Number of the line in which the ranks meet."""

    @property
    def program(self) -> Path:
        return self.folder / PROGRAM

    def take(self) -> bool:
        """Take the remaining steps. Return True if all are done."""
        self.folder.mkdir(exist_ok=True)
        if not self.program.exists():
            self.restore()
        for number, step in enumerate(STEPS, 1):
            finished = read_finished(self.course)
            if step.name in finished.runs:
                continue
            self.say("")
            self.say(f"[{number} of {len(STEPS)}] {step.title}", "strong")
            shown = step.take(self)
            write_typed(self.folder / RECORD, Finished(runs={**finished.runs, step.name: shown.name}))
        return True

    def say(self, text: str, *paint: str) -> None:
        for paragraph in text.split("\n"):
            for line in self.style.wrap(paragraph, indent=0) or [""]:
                print_coloured(self.style.paint(line, *paint) if paint else line)

    def restore(self) -> None:
        """Write the original program; keep a changed one as first.py.yours."""
        if self.program.exists() and self.program.read_text(errors="replace") != self.original:
            write_atomic(self.program.with_suffix(".py.yours"), self.program.read_bytes())
        write_atomic(self.program, self.original)

    def is_original(self) -> bool:
        return self.program.is_file() and self.program.read_text(errors="replace") == self.original

    def start_from_original(self) -> None:
        if not self.is_original():
            self.restore()
            self.say(f"{FOLDER}/{PROGRAM} is the original again; your changes are in {PROGRAM}.yours.")

    def enter(self, does: str) -> None:
        """Wait for Enter. Raises Quit."""
        if read_answer(f"Enter: {does}   q: quit > ") is None:
            raise Quit

    def choose(self, question: str, choices: Sequence[str]) -> int:
        """Ask until the learner names a choice. Return its index. Raises Quit."""
        self.say("")
        self.say(question, "strong")
        letters = "abcdef"[: len(choices)]
        for letter, choice in zip(letters, choices, strict=True):
            print("\n".join(self.style.wrap(choice, first=f"{letter}  ")))
        for text in read_answers(f"a letter, {letters[0]} to {letters[-1]}   q: quit > "):
            if len(text) == 1 and text.lower() in letters:
                return letters.index(text.lower())
        raise Quit

    def run(
        self, words: list[str], shows: Callable[[str], bool] = lambda line: True
    ) -> tuple[WhatHappened | None, int]:
        """Run a command after Enter. Return the run that it created, and its exit code."""
        self.announce(words)
        before = self.run_names()
        with ShownCommand(words, self.folder, self.style, shows=shows) as command:
            code = command.wait(_TIMEOUT_S)
        print()
        if code is None:
            self.say(f"The command did not end within {_TIMEOUT_S:g} s, so it was ended.")
        return newest_run(self.folder / "runs", before), 1 if code is None else code

    def announce(self, words: list[str]) -> None:
        self.say("")
        self.say(f"$ cd {FOLDER} && frog {' '.join(words)}", "strong")
        self.enter("run it")

    def run_names(self) -> set[str]:
        return {folder.name for folder in (self.folder / "runs").glob("*")}

    def ask_to_edit(self, what: str) -> None:
        """Ask for a change of the program until the file has one."""
        self.say("")
        self.say(f"Now open {self.program} in your editor. {what} Save the file.")
        before = self.program.read_text(errors="replace")
        self.enter("saved")
        while self.program.read_text(errors="replace") == before:
            self.say(f"The file has not changed. Line {self.line} is still `{self.line_now()}`.")
            self.enter("saved")

    def line_now(self) -> str:
        lines = self.program.read_text(errors="replace").splitlines()
        return lines[self.line - 1].strip() if len(lines) >= self.line else ""

    def try_again(self, why: str) -> None:
        """Say why a run did not show what the step is about, and offer another try. Raises Quit."""
        self.say(why)
        self.start_from_original()
        self.enter("try again")


def start(args: argparse.Namespace) -> int:
    """Take the tour. Return exit code 0 once all steps are done."""
    folder, _ = learner_here()
    tour = Tour(folder.path, LABS, style_of_output())
    if args.again and tour.folder.exists():
        (tour.folder / RECORD).unlink(missing_ok=True)
        tour.start_from_original()
    if is_finished(folder.path):
        tour.say("You have finished these first ten minutes. Once more: frog learn start --again")
        return 0
    tour.say(
        "The first ten minutes: you run a training program on two ranks, break it three times, and read who "
        "noticed. Everything runs on this machine. q quits; frog learn start continues where you left."
    )
    try:
        with ends_on_signals():
            tour.take()
    except Quit:
        tour.say("To continue: frog learn start")
        return 1
    tour.say(_END)
    return 0


_END = f"""
You saw a crash that others noticed, a wait that one line explains, and a mistake that no process noticed: only a \
comparison of the ranks showed it. Lab 2 takes each apart. The page of lab 0 is docs/labs/lab0.md.
The folder {FOLDER}/ is yours: change the program, run it again, or delete it. No process still runs.
next: frog learn"""


def _two_ranks(tour: Tour) -> WhatHappened:
    tour.start_from_original()
    tour.say(
        f"This is {FOLDER}/{PROGRAM}. `frog run --nproc 2` starts it twice, as two processes: rank 0 and rank 1. "
        f"They meet in line {tour.meeting}, and each trains its own copy of the model."
    )
    print()
    for number, text in enumerate(tour.original.splitlines(), 1):
        print(tour.style.cut(f"  {number:2}  {text}", tour.style.columns))
    shown, code = tour.run(_RUN)
    while shown is None or code or not shown.steps():
        tour.try_again(
            "This run did not complete: read its last lines above. `frog doctor --lab 2` checks the machine."
        )
        shown, code = tour.run(_RUN)
    equal = shown.equal_columns()
    choices = ("the samples", "the loss", "the weight")
    names = ("samples", "loss", "weight")
    while True:
        chosen = names[tour.choose("Compare both ranks in the same step. What is equal?", choices)]
        first = [shown.rows(rank)[1][chosen] for rank in (0, 1)]
        if chosen in equal:
            break
        tour.say(f"In step 1 rank 0 printed {chosen} {first[0]}, and rank 1 {first[1]}. Look again.")
    others = [column for column in names if column not in equal]
    tour.say(
        f"Right: the {chosen} is {first[0]} on both ranks after step 1, and equal in all {len(shown.steps())} "
        f"steps of {shown.name}. The {' and the '.join(others)} differ: each rank has its own half of the data. "
        f"Line {tour.line} adds up the ranks' gradients, so both take the same step."
    )
    return shown


def _kill_one(tour: Tour) -> WhatHappened:
    tour.start_from_original()
    choices = (
        "no process: rank 0 trains on alone",
        "only the launcher, `frog run`",
        "the launcher, and rank 0",
    )
    guess = tour.choose("You will kill rank 1 while it trains. Who will notice?", choices)
    while True:
        shown = _run_and_kill(tour)
        if shown is not None and (killed := shown.killed()) is not None:
            break
        tour.try_again("No rank was killed in this run.")
    other = 1 - killed
    noticed = shown.noticed(other)
    by = 2 if noticed else 1
    tour.say(
        f"{_verdict(guess == by)} The launcher saw the process of rank {killed} end with SIGKILL."
        + (
            f" Rank {other} noticed it at {noticed.line}: {noticed.text}."
            if noticed
            else f" It ended rank {other} before that one could notice."
        )
    )
    if noticed:
        tour.say(
            "A rank notices a lost rank only where it communicates with it. Between two collectives, it computes "
            "on and knows nothing."
        )
    return shown


def _run_and_kill(tour: Tour) -> WhatHappened | None:
    """Run the program for long, and kill rank 1 when the learner says so."""
    words = [*_RUN, str(_LONG)]
    tour.announce(words)
    before, gate = tour.run_names(), _Gate()
    with ShownCommand(words, tour.folder, tour.style, shows=gate) as command:
        if not command.wait_for(
            lambda lines: all(any(f"rank {r} | step 3 " in x for x in lines) for r in (0, 1)), _TIMEOUT_S
        ):
            command.wait(1)
            return newest_run(tour.folder / "runs", before)
        gate.is_open = False
        shown = newest_run(tour.folder / "runs", before)
        pids = shown.pids() if shown else []
        if len(pids) != 2:
            return None
        tour.say(
            f"Both ranks train on. (Their lines are no longer shown.) Rank 1 is process {pids[1]}. In another "
            "terminal you could type it; Enter does the same:"
        )
        tour.say(f"$ kill -9 {pids[1]}", "strong")
        tour.enter("kill rank 1")
        if command.is_running():
            command.kill_rank(pids[1])
        if command.wait(_KILLED_S) is None:
            tour.say(f"The launcher did not end within {_KILLED_S:g} s.")
    for line in command.lines[gate.num_seen :]:
        if not _is_of_a_step(line):
            show_line(line, tour.style)
    print()
    return shown


class _Gate:
    """Shows lines until it is closed, and counts them."""

    def __init__(self) -> None:
        self.is_open, self.num_seen = True, 0

    def __call__(self, line: str) -> bool:
        self.num_seen += self.is_open
        return self.is_open


def _is_of_a_step(line: str) -> bool:
    return line.startswith("rank ") and " | step " in line


def _skip_it(tour: Tour) -> WhatHappened:
    tour.start_from_original()
    tour.say(
        "All ranks must call an all-reduce, or none. A condition around one is a common mistake, for example to "
        "log something on rank 0 only."
    )
    guess = tour.choose(
        f"Line {tour.line} becomes `if rank == 0: {REDUCES}`. What will happen?",
        ("rank 0 waits for rank 1 in the all-reduce", "rank 1 waits for rank 0", "no rank waits: both end normally"),
    )
    while True:
        tour.ask_to_edit(
            f"Change line {tour.line}: write `if rank == 0: ` in front of `{REDUCES}`, and leave the "
            "spaces at the beginning of the line."
        )
        shown, _ = tour.run(_RUN)
        called = [shown.num_collectives(rank) for rank in (0, 1)] if shown else [0, 0]
        if shown is not None and called[0] != called[1] and shown.failed():
            break
        tour.try_again(
            f"In this run, rank 0 called {called[0]} collectives and rank 1 {called[1]}: no rank waited for "
            f"one that never came. Line {tour.line} was `{tour.line_now()}`."
        )
    tour.run(["diagnose", shown.name])
    waited = 0 if called[0] > called[1] else 1
    noticed = shown.noticed(waited)
    where = f" at {noticed.line}" if noticed else ""
    tour.say(
        f"{_verdict(guess == waited)} Rank {waited} waited{where} in all-reduce {called[waited]}. Rank "
        f"{1 - waited} called {called[1 - waited] or 'none'}, took its own steps, and ended without an error: "
        f"it completed {count(len(shown.rows(1 - waited)), 'step')}, rank {waited} {len(shown.rows(waited))}. "
        "`frog diagnose` names both from what each rank recorded, and the line with the condition."
    )
    return shown


def _take_it_out(tour: Tour) -> WhatHappened:
    tour.start_from_original()
    guess = tour.choose(
        f"Now line {tour.line} is taken out on both ranks, so no gradient is added up. What will happen?",
        (
            "the program stops with an error",
            "it runs, and the weights stay equal, since they began equal",
            "it runs, and the weights of the ranks drift apart",
        ),
    )
    while True:
        tour.ask_to_edit(f"Put a # at the beginning of line {tour.line}.")
        shown, _ = tour.run(["check", "--nproc", "2", "--", PROGRAM], shows=_Until("Held:"))
        if shown is not None and shown.steps() and "weight" not in shown.equal_columns():
            break
        tour.try_again(f"In this run the weights did not drift apart. Line {tour.line} was `{tour.line_now()}`.")
    steps, drifted = shown.steps(), 2
    last = [shown.rows(rank)[steps[-1]] for rank in (0, 1)]
    tour.say(
        f"{_verdict(guess == drifted)} All {len(steps)} steps ran without an error. After step {steps[-1]} the "
        f"weight is {last[0]['weight']} on rank 0 and {last[1]['weight']} on rank 1: two models, each trained on "
        f"half of the data. No process noticed."
    )
    named = _named_line(tour, shown)
    if named is not None:
        tour.say("")
        tour.say("`frog check` noticed, because it compares the ranks.")
        tour.say(f"Which line of {PROGRAM} does `frog check` name?", "strong")
        for text in read_answers("a number   q: quit > "):
            if text == str(named):
                break
            tour.say(f"Look for the word `line` above, and the number after {PROGRAM}:.")
        else:
            raise Quit
        code_there = tour.program.read_text(errors="replace").splitlines()[named - 1].strip()
        tour.say(f"Right: `{code_there}`. The gradients come from there, and nothing added the other rank's to them.")
    tour.start_from_original()
    return shown


def _named_line(tour: Tour, shown: WhatHappened) -> int | None:
    """Return the line of the program that the first broken rule names."""
    words = [sys.executable, "-P", "-m", "frog", "check", "--run", shown.name, "--json"]
    done = subprocess.run(
        words, cwd=tour.folder, env=child_env(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    rules = json.loads(done.stdout)["rules"] if done.stdout else []
    lines = [rule["line"] for rule in rules if rule["outcome"] == "broken" and rule.get("line")]
    place, _, number = lines[0].rpartition(":") if lines else ("", "", "")
    return int(number) if place.endswith(PROGRAM) else None


class _Until:
    """Shows the lines before the first one that begins with a word."""

    def __init__(self, word: str) -> None:
        self._word, self._is_past = word, False

    def __call__(self, line: str) -> bool:
        self._is_past = self._is_past or line.startswith(self._word)
        return not self._is_past


def _verdict(is_right: bool) -> str:
    return "As you predicted." if is_right else "Not as you predicted."


_TAKEN = (
    ("Two ranks, one model", _two_ranks),
    ("Kill one", _kill_one),
    ("Let one skip a collective", _skip_it),
    ("Take the collective out", _take_it_out),
)
STEPS = tuple(Step(name, *taken) for name, taken in zip(STEP_NAMES, _TAKEN, strict=True))
