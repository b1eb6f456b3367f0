"""Play a demo: announce each step, wait for a key, run the command, keep its output, and survive its failure."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, Self

from rich.console import Console
from rich.markup import escape

from frog.core.env import child_env
from frog.core.errors import LaunchError
from frog.core.machine import free_port
from frog.core.terminal import discard_typed_ahead, printable_lines, read_line, wrapped_lines
from frog.learn.demo.demo_page import write_page
from frog.learn.demo.demo_session import FREE_PORT, Session, Step
from frog.learn.demo.records import Played, output_path, write_record

_GRACE_S = 15
_MOST_TRIES = 20
_INDENT = 8
_MOST_KEPT_BYTES = 1 << 20
"""Number of bytes kept from the end of an output of which only the last lines are shown."""

Answer = Literal["run", "skip", "quit"]


@dataclass
class Player:
    """Plays a session in its own folder."""

    session: Session
    folder: Path
    auto: bool
    console: Console
    played: dict[int, Played] = field(default_factory=dict)
    """Steps played in this process, by number; the folder also contains those of earlier processes."""

    def play(self, first: int) -> bool:
        """Play all steps from number `first`. Return True if each played step ended as intended."""
        write_page(self.folder, self.session)
        for number, step in enumerate(self.session.steps, 1):
            if number >= first and not self._step(number, step):
                break
        return all(played.is_right for played in self.played.values())

    def _step(self, number: int, step: Step) -> bool:
        """Play one step. Return False to end the demo."""
        command = step.run.strip().replace(FREE_PORT, str(free_port()))
        self._announce(number, step, command)
        answer = self._ask("Enter: run it   s: skip   q: quit", {"": "run", "s": "skip", "q": "quit"})
        tries = 0
        while answer == "run":
            tries += 1
            self.console.print()
            played = self._run(number, step, command)
            self._keep(played)
            self.console.print()
            if played.is_right:
                if step.ask and self._ask("Enter: the answer   q: quit", {"": "run", "q": "quit"}) == "quit":
                    return False
                self._say("look", step.look)
                self.console.print()
                return True
            self.console.print(f"  step {number} ended with exit code {played.code}", soft_wrap=True)
            self.console.print(f"  its output: {output_path(self.folder, number)}", soft_wrap=True)
            if self.auto and tries == 2:
                return True
            answer = self._ask("r: try again   s: next step   q: quit", {"r": "run", "s": "skip", "q": "quit"})
        return answer != "quit"

    def _announce(self, number: int, step: Step, command: str) -> None:
        steps = self.session.steps
        begins = sum(earlier.minutes for earlier in steps[: number - 1])
        self.console.rule(f"{number}/{len(steps)}  {step.title}", align="left")
        self._say("time", f"minutes {begins} to {begins + step.minutes} of {self.session.minutes}")
        self._say("say", step.say)
        lines = command.replace("\n", "\n" + " " * _INDENT)
        self.console.print(f"  [bold]$[/]{'':{_INDENT - 3}}{escape(lines)}", soft_wrap=True, markup=True)
        if step.ask:
            self._say("ask", step.ask)

    def _say(self, label: str, text: str) -> None:
        """Print a label and a wrapped text next to it."""
        wrapped = textwrap.wrap(text, max(20, self.console.width - _INDENT))
        lines = escape(("\n" + " " * _INDENT).join(wrapped))
        self.console.print(f"  [bold]{label:{_INDENT - 2}}[/]{lines}", soft_wrap=True, markup=True)

    def _ask(self, keys: str, answers: dict[str, Answer]) -> Answer:
        if self.auto:
            return next(iter(answers.values()))
        discard_typed_ahead()  # an Enter typed during the last step must not start the next one
        for _ in range(_MOST_TRIES):
            try:
                text = read_line(f"  {keys} > ").strip().lower()
            except (EOFError, KeyboardInterrupt):
                return "quit"
            if text in answers:
                return answers[text]
        return "quit"

    def _keep(self, played: Played) -> None:
        self.played[played.number] = played
        write_record(self.folder, played)
        write_page(self.folder, self.session)

    def _run(self, number: int, step: Step, command: str) -> Played:
        """Run the command; copy its output to the screen and to a file."""
        for name in step.makes:
            shutil.rmtree(self.folder / "runs" / name, ignore_errors=True)
        output, start = output_path(self.folder, number), time.monotonic()
        with _Stop(step.timeout_s) as stop, open(output, "wb") as file:
            with subprocess.Popen(
                ["bash", "-o", "pipefail", "-c", command],
                cwd=self.folder,
                env=self._env(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process:
                stop.may_end(process)
                self._follow(process, file, step.show_last)
            seconds = time.monotonic() - start
            return Played(number=number, step=step, command=command, code=process.returncode, seconds=seconds)

    def _env(self) -> dict[str, str]:
        """Return a command's environment: this Python's programs, one thread per rank, no browser with --auto."""
        env = child_env(PATH=f"{Path(sys.executable).parent}{os.pathsep}{child_env()['PATH']}")
        env.setdefault("OMP_NUM_THREADS", "1")  # otherwise torchrun sets it, with a four-line warning
        return {**env, "BROWSER": "none"} if self.auto else env

    def _follow(self, process: subprocess.Popen[bytes], file: BinaryIO, show_last: int | None) -> None:
        """Show and keep the process's output until it ends."""
        assert process.stdout is not None
        if show_last is not None:
            self.console.print(f"  (only the last {show_last} lines of output will be shown)")
        rest, end, num_lines = b"", b"", 0
        while data := os.read(process.stdout.fileno(), 1 << 16):
            file.write(data)
            num_lines += data.count(b"\n")
            if show_last is None:
                lines, newline, rest = (rest + data).rpartition(b"\n")
                self._show(lines + newline)
            else:
                end = (end + data)[-_MOST_KEPT_BYTES:]
        if show_last is not None:
            file.flush()
            last = deque(end.splitlines(keepends=True), show_last)
            if num_lines > len(last):
                self.console.print(f"  ... {num_lines - len(last)} earlier lines are in {file.name}", soft_wrap=True)
            rest = b"".join(last)
        self._show(rest)

    def _show(self, data: bytes) -> None:
        """Show whole lines; on a terminal, those that are too long break between words."""
        text = printable_lines(data.decode(errors="replace"))
        self.console.file.write(wrapped_lines(text, self.console.width if self.console.is_terminal else None))
        self.console.file.flush()


class _Stop:
    """Makes Ctrl-C or a timeout end the step instead of the demo: with SIGINT first, then with SIGKILL."""

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
        """Register the step's process; end it immediately if the user has already pressed Ctrl-C."""
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
            raise LaunchError(
                "a step left processes that still have its output open", "find them with ps and kill them"
            )
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGINT if self._asked == 1 else signal.SIGKILL)
        signal.alarm(_GRACE_S)
