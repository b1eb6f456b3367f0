"""The player: says what will be run, waits for a key, runs it, keeps what it printed, gets over a step that fails."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.markup import escape

from frog.core.env import child_env
from frog.demo.session import Session, Step

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
                self.console.print(f"  [bold]look[/] {escape(step.look)}\n")
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
        self.console.rule(f"{number}/{len(self.session.steps)}  {escape(step.title)}", align="left")
        self.console.print(f"  [bold]say[/]  {escape(step.say)}")
        self.console.print(f"  [bold]$[/] {escape(step.run)}", soft_wrap=True)

    def _ask(self, keys: str, answers: dict[str, Answer]) -> Answer:
        if self.auto:
            return next(iter(answers.values()))
        while True:
            try:
                text = self.console.input(f"  {keys} > ").strip().lower()
            except (EOFError, KeyboardInterrupt):
                return "quit"
            if text in answers:
                return answers[text]

    def _run(self, number: int, step: Step) -> Played:
        """Run the command; what it prints goes to the screen and to a file."""
        for name in step.makes:
            shutil.rmtree(self.folder / "runs" / name, ignore_errors=True)
        output, start = self.folder / f"{number:02}.txt", time.monotonic()
        path = f"{Path(sys.executable).parent}{os.pathsep}{child_env()['PATH']}"
        process = subprocess.Popen(
            ["bash", "-c", step.run],
            cwd=self.folder,
            env=child_env(PATH=path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = self._follow(process, output, step.timeout_s)
        return Played(number, step, code, time.monotonic() - start, output)

    def _follow(self, process: subprocess.Popen[bytes], output: Path, timeout_s: float) -> int:
        """Show and keep what it prints until it ends; Ctrl-C, or its time, ends the step and not the demo."""
        assert process.stdout is not None
        previous = signal.signal(signal.SIGALRM, _interrupt)
        signal.alarm(int(timeout_s))
        try:
            with open(output, "wb") as file:
                while data := process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
                    file.write(data)
                    self.console.file.write(data.decode(errors="replace"))
                    self.console.file.flush()
            return process.wait()
        except KeyboardInterrupt:
            return _end(process)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, previous)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a step and all that it has started: first as Ctrl-C would."""
    for number, grace_s in ((signal.SIGINT, 15), (signal.SIGKILL, 15)):
        try:
            os.killpg(process.pid, number)
            process.wait(grace_s)
            break
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    return process.wait()
