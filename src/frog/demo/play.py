"""The player: says what will be run, waits for a key, runs it, keeps what it printed, gets over a step that fails."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, Self

from rich.console import Console
from rich.markup import escape

from frog.core.env import child_env
from frog.core.errors import LaunchError
from frog.core.printable import printable_lines
from frog.core.streams import read_line
from frog.demo.session import Session, Step

_GRACE_S = 15
_MOST_TRIES = 20

Answer = Literal["run", "skip", "quit"]


@dataclass(frozen=True)
class Played:
    """How a step went."""

    number: int
    step: Step
    code: int
    seconds: float
    output: Path

    @property
    def is_right(self) -> bool:
        """Whether it ended as it was to."""
        return (self.code != 0) is self.step.fails


@dataclass
class Player:
    """Plays a session in a folder of its own."""

    session: Session
    folder: Path
    auto: bool
    console: Console
    played: list[Played] = field(default_factory=list)

    def play(self, first: int) -> bool:
        """All steps from the `first`-th on; whether all that were played ended as they were to."""
        for number, step in enumerate(self.session.steps, 1):
            if number >= first and not self._step(number, step):
                break
        return all(played.is_right for played in self.played)

    def _step(self, number: int, step: Step) -> bool:
        """One step; False if the demo is to end here."""
        self._announce(number, step)
        answer = self._ask("Enter: run it   s: skip   q: quit", {"": "run", "s": "skip", "q": "quit"})
        tries = 0
        while answer == "run":
            tries += 1
            played = self._run(number, step)
            if played.is_right:
                self.played.append(played)
                self.console.print(f"  [bold]look[/] {escape(step.look)}\n", markup=True)
                return True
            self.console.print(f"  the step ended with exit code {played.code}; its output is in {played.output}")
            if self.auto and tries == 2:
                self.played.append(played)
                return True
            answer = self._ask("r: try again   s: go on without   q: quit", {"r": "run", "s": "skip", "q": "quit"})
            if answer != "run":
                self.played.append(played)
        return answer != "quit"

    def _announce(self, number: int, step: Step) -> None:
        self.console.rule(f"{number}/{len(self.session.steps)}  {step.title}", align="left")
        self.console.print(f"  [bold]say[/]  {escape(step.say)}", markup=True)
        self.console.print(f"  [bold]$[/] {escape(step.run)}", soft_wrap=True, markup=True)

    def _ask(self, keys: str, answers: dict[str, Answer]) -> Answer:
        if self.auto:
            return next(iter(answers.values()))
        for _ in range(_MOST_TRIES):
            try:
                text = read_line(f"  {keys} > ").strip().lower()
            except (EOFError, KeyboardInterrupt):
                return "quit"
            if text in answers:
                return answers[text]
        return "quit"

    def _run(self, number: int, step: Step) -> Played:
        """Run the command; what it prints goes to the screen and to a file."""
        for name in step.makes:
            shutil.rmtree(self.folder / "runs" / name, ignore_errors=True)
        output, start = self.folder / f"{number:02}.txt", time.monotonic()
        path = f"{Path(sys.executable).parent}{os.pathsep}{child_env()['PATH']}"
        with _Stop(step.timeout_s) as stop, open(output, "wb") as file:
            with subprocess.Popen(
                ["bash", "-c", step.run],
                cwd=self.folder,
                env=child_env(PATH=path),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process:
                stop.may_end(process)
                self._follow(process, file)
            return Played(number, step, process.returncode, time.monotonic() - start, output)

    def _follow(self, process: subprocess.Popen[bytes], file: BinaryIO) -> None:
        """Show and keep what it prints until it ends."""
        assert process.stdout is not None
        while data := os.read(process.stdout.fileno(), 1 << 16):
            file.write(data)
            self.console.file.write(printable_lines(data.decode(errors="replace")))
            self.console.file.flush()


class _Stop:
    """Ctrl-C, or the end of its time, ends the step and not the demo: first as Ctrl-C would, then for certain."""

    def __init__(self, timeout_s: int) -> None:
        self._timeout_s, self._asked = timeout_s, 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._before = [(number, signal.signal(number, self._ask)) for number in (signal.SIGINT, signal.SIGALRM)]
        signal.alarm(self._timeout_s)
        return self

    def __exit__(self, *of_an_error: object) -> None:
        signal.alarm(0)
        for number, handler in self._before:
            signal.signal(number, handler)

    def may_end(self, process: subprocess.Popen[bytes]) -> None:
        """This is the step's process; it is ended at once if that was asked for already."""
        self._process = process
        if self._asked:
            self._end()

    def _ask(self, number: int, frame: object) -> None:
        self._asked += 1
        if self._process is not None:
            self._end()

    def _end(self) -> None:
        assert self._process is not None
        if self._asked > 2:
            raise LaunchError("a step has left processes that hold its output", "look for them with ps, and end them")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGINT if self._asked == 1 else signal.SIGKILL)
        signal.alarm(_GRACE_S)
