"""The harness of tests: a folder with a tiny model, a tiny prepared data set, and the `frog` command to use there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.core.runfolder import RunFolder
from frog.events import RecordedRun, read_run
from frog.events.schema import StepEvent
from frog.launch.harness import all_gone, kill_tree, run_to_end, tree, wait_until

__all__ = ["MODEL", "RUN_FILE", "Harness", "all_gone", "kill_tree", "run_to_end", "set_words", "tree", "wait_until"]

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
        out, err = run_to_end(process, timeout)
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
