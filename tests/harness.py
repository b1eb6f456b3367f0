"""The test harness: a folder with a tiny model and a tiny prepared data set, and ways to run `frog` there."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from warm_frog import cold_env, warm_env

from frog.core.runs import RecordedRun, read_run
from frog.core.runs.event_schema import StepEvent
from frog.core.runs.folder import RunFolder
from frog.launch.harness import kill_tree, tree
from frog.measure.chaos.sandbox import TINY_MODEL as MODEL

__all__ = [
    "LIMIT_S",
    "MODEL",
    "RUN_FILE",
    "Harness",
    "all_gone",
    "kill_tree",
    "made_once",
    "run_to_end",
    "set_words",
    "tree",
    "wait_until",
]

LIMIT_S = 300.0
"""Longest wait for a fact or for the end of a process. It only ends a test that has failed, so no test sets its own."""

Fact = TypeVar("Fact")

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
    """Return the words `--set KEY=VALUE` for each setting."""
    return [word for setting in settings for word in ("--set", setting)]


def run_to_end(process: subprocess.Popen[str], limit_s: float = LIMIT_S) -> tuple[str, str]:
    """Return the stdout and stderr of a process with pipes, once it has ended.

    Raises:  AssertionError with the output if the process does not end in time, after killing it and its descendants.
    """
    try:
        return process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        kill_tree(process)
        out, err = process.communicate()
        raise AssertionError(f"{_name(process)}: no end within {limit_s:g} s\n{out}\n{err}") from None


def wait_until(
    fact: Callable[[], Fact],
    what: str,
    process: subprocess.Popen[str] | None = None,
    *,
    limit_s: float = LIMIT_S,
    seen: Callable[[], object] | None = None,
) -> Fact:
    """Look until a fact is true, and return it.

    Raises:  AssertionError with what was last seen (`seen()`, or else the fact), at the limit or if the process that
        should cause the fact has ended.
    """
    deadline = time.monotonic() + limit_s
    while True:
        has_ended = process is not None and process.poll() is not None
        if value := fact():  # also once after the end
            return value
        last = value if seen is None else seen()
        if has_ended:
            assert process is not None
            written = "\n".join(process.communicate())
            raise AssertionError(
                f"waiting for {what}: {_name(process)} ended with {process.returncode}; last seen: {last!r}\n{written}"
            )
        if time.monotonic() > deadline:
            raise AssertionError(f"waiting for {what}: not within {limit_s:g} s; last seen: {last!r}")
        time.sleep(0.02)


def all_gone(family: Sequence[psutil.Process]) -> bool:
    """Return True if none of these processes is still running."""
    return not any(map(_runs, family))


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder shared by all workers; the first worker that needs it creates it."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, whole = base / name, base / f"{name}.whole"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)  # left by a worker that failed to create it
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # another thread waited for it in the meantime
        return False


def _name(process: subprocess.Popen[Any]) -> str:
    return " ".join(map(str, process.args)) if isinstance(process.args, (list, tuple)) else str(process.args)


@dataclass
class Harness:
    """A folder in which tests run commands as a user types them."""

    root: Path

    def start(self, *words: str, warm: bool = False, **options: Any) -> subprocess.Popen[str]:
        """Start a command: `frog ...` or any other program of the environment.

        warm: start `frog` quickly (tests/warm_frog); its process then only passes signals on to the command.
        """
        own = {"FROG_START": "fork", "FROG_CACHE_DIR": str(self.root / ".cache")}
        env = {**os.environ, **own, **(warm_env() if warm else cold_env()), **options.pop("env", {})}
        return subprocess.Popen(
            words, cwd=self.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )

    def run(
        self, *words: str, code: int = 0, limit_s: float = LIMIT_S, warm: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, which must end with exit code `code`; at the limit, kill it and its descendants.

        It starts quickly if `warm` allows that.
        """
        process = self.start(*words, warm=warm, **options)
        out, err = run_to_end(process, limit_s)
        done = subprocess.CompletedProcess(words, process.returncode, out, err)
        assert done.returncode == code, f"{' '.join(words)}: exit code {done.returncode}\n{out}\n{err}"
        return done

    def train(
        self, nproc: int, name: str, *settings: str, code: int = 0, limit_s: float = LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        """Train the tiny run in a world of `nproc` under torchrun."""
        world = ("--nproc", str(nproc), "--threads", "1")
        words = ("frog", "run", *world, "--", "train", "run.toml", *set_words(f"name={name}", *settings))
        return self.run(*words, code=code, limit_s=limit_s)

    def folder(self, name: str) -> RunFolder:
        return RunFolder(self.root / "runs" / name)

    def record(self, name: str) -> dict[str, Any]:
        """Return the record of a run's last start."""
        folder = self.folder(name)
        path = folder.attempt_json if folder.attempt_json.exists() else folder.record_json
        record: dict[str, Any] = json.loads(path.read_text())
        return record

    def events(self, name: str) -> RecordedRun:
        return read_run(self.folder(name))

    def wait_for_step(self, name: str, step: int, process: subprocess.Popen[str]) -> None:
        """Wait until rank 0 has completed a step."""

        def taken() -> bool:
            folder = self.folder(name)
            return folder.event_ranks() != [] and step in read_run(folder).main.by_step(StepEvent)

        wait_until(taken, f"step {step} of {name}", process)
