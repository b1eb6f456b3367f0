"""The harness of tests: a folder with a tiny model, a tiny prepared data set, and the `frog` command to use there."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from frog.core.runfolder import RunFolder
from frog.events import RecordedRun, read_run
from frog.events.schema import StepEvent

BIN = Path(sys.executable).parent
MODEL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
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


@dataclass
class Harness:
    """Where tests run commands as a user types them."""

    root: Path

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Begin a command; words are `frog ...` or any other program of the environment."""
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "FROG_START": "fork", **options.pop("env", {})}
        return subprocess.Popen(
            words, cwd=self.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )

    def run(self, *words: str, code: int = 0, timeout: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, which must have the exit code `code`, within a deadline that ends its world too."""
        process = self.start(*words, **options)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            kill_tree(process)
            out, err = process.communicate()
            pytest.fail(f"{' '.join(words)}: no end within {timeout} s\n{out}\n{err}")
        done = subprocess.CompletedProcess(words, process.returncode, out, err)
        assert done.returncode == code, f"{' '.join(words)}: exit code {done.returncode}\n{out}\n{err}"
        return done

    def train(
        self, nproc: int, name: str, *settings: str, code: int = 0, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Train the tiny run in a world of `nproc` under torchrun."""
        words = ("frog", "run", "--nproc", str(nproc), "--", "train", "run.toml", *set_words(f"name={name}", *settings))
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


def wait_until(
    true: Callable[[], bool], timeout: float, what: str, process: subprocess.Popen[str] | None = None
) -> None:
    """Poll until something is true; fail at the deadline, or if the process that should bring it about has ended."""
    deadline = time.monotonic() + timeout
    while not true():
        if process is not None and process.poll() is not None and not true():
            pytest.fail(f"waiting for {what}: the process ended with {process.returncode}\n{process.communicate()}")
        if time.monotonic() > deadline:
            pytest.fail(f"waiting for {what}: not within {timeout} s")
        time.sleep(0.02)


def tree(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The process and all that it has started."""
    root = psutil.Process(process.pid)
    return [root, *root.children(recursive=True)]


def kill_tree(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """SIGKILL a whole world at once."""
    family = tree(process)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    return family


def all_gone(family: list[psutil.Process]) -> bool:
    """Whether none of these processes runs any more."""
    return not any(map(_runs, family))


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it was waited for between the two questions
        return False
