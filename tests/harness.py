"""The harness of tests: a folder with a tiny model, a tiny prepared data set, and the `frog` command to use there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from frog.chaos.sandbox import TINY_MODEL as MODEL
from frog.launch.harness import kill_tree, tree
from frog.runs import RecordedRun, read_run
from frog.runs.folder import RunFolder
from frog.runs.schema import StepEvent

__all__ = ["MODEL", "RUN_FILE", "Harness", "all_gone", "kill_tree", "run_to_end", "set_words", "tree", "wait_until"]

BIN = Path(sys.executable).parent
PATIENCE = 3
"""Deadlines are what a slow machine takes at rest; under load it takes longer. Only what hangs waits for either."""

RUN_FILE = """
name = "tiny"
[data]
name = "rhymes"
sequence_length = 16
[train]
steps = 8
global_batch_size = 8
timeout_s = 60
[optimizer]
warmup_steps = 2
[eval]
every = 4
tokens = 256
sample_tokens = 4
[checkpoint]
every = 2
keep_last = 9
"""


def set_words(*settings: str) -> list[str]:
    """The words that make settings of a run: --set KEY=VALUE, for each."""
    return [word for setting in settings for word in ("--set", setting)]


def run_to_end(process: subprocess.Popen[str], timeout_s: float) -> tuple[str, str]:
    """What a process with pipes writes on stdout and stderr until it ends.

    Raises:  AssertionError, with what it has written, if it does not end in time. Then all of it is killed.
    """
    try:
        return process.communicate(timeout=PATIENCE * timeout_s)
    except subprocess.TimeoutExpired:
        kill_tree(process)
        out, err = process.communicate()
        raise AssertionError(f"{_name(process)}: no end within {PATIENCE * timeout_s:g} s\n{out}\n{err}") from None


def wait_until(
    true: Callable[[], bool], timeout_s: float, what: str, process: subprocess.Popen[str] | None = None
) -> None:
    """Return when something is true.

    Raises:  AssertionError at the deadline, or if the process that should bring it about has ended.
    """
    deadline = time.monotonic() + PATIENCE * timeout_s
    while not true():
        if process is not None and process.poll() is not None and not true():
            written = "\n".join(process.communicate())
            raise AssertionError(f"waiting for {what}: {_name(process)} ended with {process.returncode}\n{written}")
        if time.monotonic() > deadline:
            raise AssertionError(f"waiting for {what}: not within {PATIENCE * timeout_s:g} s")
        time.sleep(0.02)


def all_gone(family: Sequence[psutil.Process]) -> bool:
    """Whether none of these processes runs any more."""
    return not any(map(_runs, family))


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it was waited for between the two questions
        return False


def _name(process: subprocess.Popen[Any]) -> str:
    return " ".join(map(str, process.args)) if isinstance(process.args, (list, tuple)) else str(process.args)


@dataclass
class Harness:
    """Where tests run commands as a user types them."""

    root: Path

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Begin a command; words are `frog ...` or any other program of the environment."""
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "FROG_START": "fork", "FROG_CACHE_DIR": str(self.root / ".cache")}
        env = {**os.environ, **own, **options.pop("env", {})}
        return subprocess.Popen(
            words, cwd=self.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )

    def run(self, *words: str, code: int = 0, timeout: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, which must have the exit code `code`, within a deadline that ends its world too."""
        process = self.start(*words, **options)
        out, err = run_to_end(process, timeout)
        done = subprocess.CompletedProcess(words, process.returncode, out, err)
        assert done.returncode == code, f"{' '.join(words)}: exit code {done.returncode}\n{out}\n{err}"
        return done

    def train(
        self, nproc: int, name: str, *settings: str, code: int = 0, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Train the tiny run in a world of `nproc` under torchrun."""
        world = ("--nproc", str(nproc), "--threads", "1")
        words = ("frog", "run", *world, "--", "train", "run.toml", *set_words(f"name={name}", *settings))
        return self.run(*words, code=code, timeout=timeout)

    def folder(self, name: str) -> RunFolder:
        return RunFolder(self.root / "runs" / name)

    def record(self, name: str) -> dict[str, Any]:
        """How the last start of a run ended."""
        folder = self.folder(name)
        path = folder.attempt_json if folder.attempt_json.exists() else folder.record_json
        record: dict[str, Any] = json.loads(path.read_text())
        return record

    def events(self, name: str) -> RecordedRun:
        return read_run(self.folder(name))

    def wait_for_step(self, name: str, step: int, process: subprocess.Popen[str], timeout: float = 60) -> None:
        """Return when rank 0 has taken a step."""

        def taken() -> bool:
            folder = self.folder(name)
            return folder.event_ranks() != [] and step in read_run(folder).main.by_step(StepEvent)

        wait_until(taken, timeout, f"step {step} of {name}", process)
