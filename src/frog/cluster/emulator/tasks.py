"""Tasks of a step as processes of srun: start them, forward output and signals, report their ends."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from frog.cluster.emulator.notation import compress_numbers
from frog.cluster.emulator.processes import MARK, enter, kill_marked, signal_marked
from frog.cluster.emulator.refusal import SlurmRefusal
from frog.cluster.emulator.taskfiles import TaskFiles, broadcast, pump
from frog.cluster.emulator.variables import task_environment
from frog.cluster.emulator.wire import Conversation
from frog.cluster.node_names import NodeNames
from frog.core.errors import shell_code, signal_code

_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGQUIT)
_FORCING = (signal.SIGTERM, signal.SIGHUP)
_TOGETHER_S = 0.3
"""Seconds within which ends of tasks share one line of the report."""


class StepRun:
    """One step, from the start of its first task to the end of its last task."""

    def __init__(
        self,
        answer: Mapping[str, Any],
        options: Mapping[str, str | None],
        program: Sequence[str],
        base: Mapping[str, str],
        conversation: Conversation,
    ) -> None:
        self._answer = answer
        self._options = options
        self._program = list(program)
        self._base = base
        self._conversation = conversation
        self._tasks: list[dict[str, Any]] = list(answer["tasks"])
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._pumps: list[threading.Thread] = []
        self._happened: queue.SimpleQueue[tuple[str, Any, int]] = queue.SimpleQueue()
        self._codes: dict[int, int] = {}
        self._aborted = False
        self._kill_at: float | None = None
        self._interrupted_at: float | None = None
        self._groups: list[int] = []

    @property
    def _name(self) -> str:
        return f"StepId={self._answer['job']}.{self._answer['step']}"

    @property
    def _mark(self) -> str:
        return str(self._answer["variables"][MARK])

    def run(self) -> int:
        """Run the step to its end; return the highest exit code, 128 + number for a signal."""
        for number in (*_FORWARDED, *_FORCING, signal.SIGINT):
            signal.signal(number, lambda number, _: self._happened.put(("signal", number, 0)))
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._start()
        threading.Thread(target=self._listen, daemon=True).start()
        while len(self._codes) < len(self._tasks):
            self._handle(self._next())
        for thread in self._pumps:  # an orphan of a task may still write
            while thread.is_alive():
                self._handle(self._next(timeout=0.05))
        signals = {signal_code(signal.SIGTERM), signal_code(signal.SIGKILL)}
        if not self._aborted and signals & set(self._codes.values()):
            self._say(f"Force Terminated {self._name}")
        self._leave()
        return max(self._codes.values())

    # ---- start

    def _start(self) -> None:
        folder = Path(self._options.get("chdir") or ".").resolve()
        files = TaskFiles(self._answer, self._options, folder)
        inputs: list[int] = []
        try:
            for task in self._tasks:
                self._start_task(task, files, folder, inputs)
        finally:
            files.close()
        if inputs:
            broadcast(0, inputs)
        with contextlib.suppress(OSError):
            self._conversation.send(groups=self._groups)
        for rank, process in self._processes.items():
            threading.Thread(target=self._wait, args=(rank, process), daemon=True).start()

    def _start_task(self, task: Mapping[str, Any], files: TaskFiles, folder: Path, inputs: list[int]) -> None:
        rank, with_gpus = int(task["rank"]), bool(self._answer["with_gpus"])
        env = task_environment(self._base, self._answer["variables"], task["variables"], with_gpus=with_gpus)
        label = self._label(rank)
        work_dir, said = enter(folder)
        for line in said.splitlines() * (1 if task["variables"]["SLURM_LOCALID"] != "0" else 2):
            print(f"{label}{line}", file=sys.stderr, flush=True)
        given_in, given_out, given_err = files.input(task), files.output(task), files.error(task)
        try:
            process = subprocess.Popen(
                self._program,
                cwd=work_dir,
                env=env,
                stdin=subprocess.PIPE if given_in is None else given_in,
                stdout=subprocess.PIPE if label or given_out is None else given_out,
                stderr=subprocess.PIPE if label or given_err is None else given_err,
                start_new_session=True,
                preexec_fn=self._node_entrance(str(task["node"])),
            )
        except OSError as error:
            name = f"{folder}/{self._program[0]}" if "/" in self._program[0] else self._program[0]
            self._say(f"execve(): {name}: {error.strerror}", who=f"{label}slurmstepd: error")
            self._happened.put(("exit", rank, error.errno or 1))
            return
        self._processes[rank] = process
        self._groups.append(process.pid)
        if process.stdin is not None:
            inputs.append(os.dup(process.stdin.fileno()))
            process.stdin.close()
        for stream, own, given in ((process.stdout, 1, given_out), (process.stderr, 2, given_err)):
            if stream is not None:
                target = os.dup(own if given is None else given)
                self._pumps.append(pump(os.dup(stream.fileno()), target, label))
                stream.close()

    def _node_entrance(self, node: str) -> Callable[[], None] | None:
        """Return the function that gives a new process its node's host name, and the names of the others."""
        hosts = self._answer["hosts"]
        return None if hosts is None else partial(NodeNames(Path(hosts)).enter_if_possible, node)

    def _label(self, rank: int) -> str:
        return f"{rank:{len(str(len(self._tasks) - 1))}d}: " if "label" in self._options else ""

    # ---- while it runs

    def _wait(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        self._happened.put(("exit", rank, process.wait()))

    def _listen(self) -> None:
        """Handle the daemon's messages until it disconnects."""
        with contextlib.suppress(SlurmRefusal, ValueError, OSError):
            while True:
                answer = self._conversation.hear()
                if answer.get("closed"):
                    self._happened.put(("closed", "", 0))
                    return
                if "notice" in answer:
                    self._happened.put(("notice", answer["notice"], 0))
        self._happened.put(("lost", "", 0))

    def _next(self, timeout: float | None = None) -> tuple[str, Any, int] | None:
        if self._kill_at is not None:
            left = max(0.0, self._kill_at - time.monotonic())
            timeout = left if timeout is None else min(left, timeout)
        try:
            return self._happened.get(timeout=timeout)
        except queue.Empty:
            return None

    def _handle(self, event: tuple[str, Any, int] | None) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            kill_marked(self._mark, self._groups)
        if event is None:
            return
        kind, what, code = event
        if kind == "exit":
            self._on_exits(what, code)
        elif kind == "signal":
            self._on_signal(what)
        elif kind == "notice":
            self._abort(what)
        elif kind == "lost":
            self._say("error: the emulator's daemon has ended, which ends this step")
            kill_marked(self._mark, self._groups)

    def _on_exits(self, rank: int, code: int) -> None:
        """Record ended tasks, grouped by time; end the others if one failed."""
        ended = {rank: code}
        deadline = time.monotonic() + _TOGETHER_S
        later = []
        while len(self._codes) + len(ended) < len(self._tasks) and (left := deadline - time.monotonic()) > 0:
            event = self._next(timeout=left)
            if event is not None and event[0] == "exit":
                ended[event[1]] = event[2]
            elif event is not None:
                later.append(event)
        for event in later:
            self._happened.put(event)
        self._codes |= {rank: shell_code(code) for rank, code in ended.items()}
        self._report_codes({rank: code for rank, code in ended.items() if code})
        if any(ended.values()) and self._kills_on_bad_exit() and len(self._codes) < len(self._tasks):
            self._say(f"launch/slurm: _step_signal: Terminating {self._name}")
            self._abort(
                f"slurmstepd: error: *** STEP {self._name[7:]} ON {self._tasks[0]['node']} CANCELLED ***", quiet=True
            )
            for number in (signal.SIGCONT, signal.SIGTERM):
                signal_marked(self._mark, number, leaders=self._living())
            self._kill_at = time.monotonic() + float(self._answer["kill_wait_s"])
        self._wait_after_first_end()

    def _living(self) -> list[int]:
        return [process.pid for rank, process in self._processes.items() if rank not in self._codes]

    def _kills_on_bad_exit(self) -> bool:
        return "kill-on-bad-exit" in self._options and self._options["kill-on-bad-exit"] != "0"

    def _wait_after_first_end(self) -> None:
        """With --wait=S, end the other tasks S seconds after the first task's end."""
        seconds = int(self._options.get("wait") or 0)
        if seconds and self._kill_at is None and len(self._codes) < len(self._tasks):
            self._kill_at = time.monotonic() + seconds

    def _on_signal(self, number: int) -> None:
        if number in _FORCING:
            self._say("forcing job termination")
            self._abort("")
            kill_marked(self._mark, self._groups)
        elif number == signal.SIGINT:
            self._on_interrupt()
        else:
            signal_marked(self._mark, number, leaders=self._living())

    def _on_interrupt(self) -> None:
        """Handle Ctrl-C: once prints the step's state, twice within a second forwards it, three times ends the step."""
        now = time.monotonic()
        before, self._interrupted_at = self._interrupted_at, now
        if before is None or now - before > 1:
            ranks = [task["rank"] for task in self._tasks if task["rank"] not in self._codes]
            self._say("interrupt (one more within 1 sec to abort)")
            self._say(f"{self._name} task{_several(ranks)}: running")
        elif not self._aborted:
            self._say(f"sending Ctrl-C to {self._name}")
            self._aborted = True
            signal_marked(self._mark, signal.SIGINT, leaders=self._living())
            self._kill_at = now + 1
        else:
            kill_marked(self._mark, self._groups)

    def _abort(self, notice: str, *, quiet: bool = False) -> None:
        if not self._aborted and not quiet:
            self._say(
                f"Job step aborted: Waiting up to {self._answer['kill_wait_s'] + 2:.0f} seconds for job step to finish."
            )
        self._aborted = True
        if notice:
            print(notice, file=sys.stderr, flush=True)

    # ---- the end

    def _report_codes(self, codes: Mapping[int, int]) -> None:
        nodes = {task["rank"]: task["node"] for task in self._tasks}
        for (node, code), group in groupby(sorted(codes), key=lambda rank: (nodes[rank], codes[rank])):
            said = f"Exited with exit code {code}" if code > 0 else (signal.strsignal(-code) or "").split(":")[0]
            self._say(f"error: {node}: task{_several(list(group))}: {said}")

    def _leave(self) -> None:
        """Report the end to the daemon, and wait until it has cleaned up the step."""
        with contextlib.suppress(OSError):
            self._conversation.send(ended=True)
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                event = self._next(timeout=1.0)
                if event is not None and event[0] in ("closed", "lost"):
                    return

    def _say(self, text: str, who: str = "srun") -> None:
        with contextlib.suppress(OSError):
            print(f"{who}: {text}", file=sys.stderr, flush=True)


def _several(ranks: Sequence[int]) -> str:
    return f"{'' if len(ranks) == 1 else 's'} {compress_numbers(ranks)}"
