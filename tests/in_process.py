"""Training and fine-tuning in the test process, as a world of one: a rank's work without starting a process."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Harness

from frog.core.config.arguments import add_train_arguments
from frog.core.files import write_json
from frog.core.runs.folder import RunFolder
from frog.core.runs.record import FORMAT
from frog.measure.chaos.sandbox import faults_env
from frog.train import main as training
from frog.train.finetune import finetune_main as finetuning
from frog.train.finetune.arguments import add_finetune_arguments


def train(here: Harness, *words: str) -> int:
    """Run `frog train`; return its exit code."""
    parser = argparse.ArgumentParser()
    add_train_arguments(parser)
    with _as_a_program(here):
        return training.run_rank(parser.parse_args(words))


def tune(here: Harness, *words: str) -> int:
    """Run `frog finetune`; return its exit code."""
    parser = argparse.ArgumentParser()
    add_finetune_arguments(parser)
    with _as_a_program(here):
        return finetuning.run_rank(parser.parse_args(words))


def write_faults(path: Path, *faults: dict[str, Any]) -> Path:
    """Write a list of faults to a file, for a rank's environment to refer to."""
    lines = [line for fault in faults for line in ("[[fault]]", *(f"{k} = {json.dumps(v)}" for k, v in fault.items()))]
    path.write_text("\n".join(lines))
    return path


def meet_faults(patch: pytest.MonkeyPatch, path: Path) -> None:
    """Inject the faults of this list into the ranks of this process and of its children."""
    for name, value in faults_env(path).items():
        patch.setenv(name, value)


def write_run(folder: RunFolder, starts: int, data_sha256: str = "") -> None:
    """Write the run.json of a run with this number of starts."""
    segment = {"mesh": {}, "num_nodes": 1, "device": "cpu", "threads": 1, "from_step": 0, "host": "", "started": ""}
    data = {"name": "rhymes", "data_sha256": data_sha256, "vocab_size": 1, "train_tokens": 1, "heldout_tokens": 1}
    run = {"format": FORMAT, "name": "a", "created": "", "argv": [], "config": {}, "num_parameters": 1, "data": data}
    write_json(folder.run_json, {**run, "versions": {}, "segments": [{"world_size": 1, **segment}] * starts})


@contextlib.contextmanager
def _as_a_program(here: Harness) -> Iterator[None]:
    """Run in the harness's folder; afterwards restore SIGINT and SIGTERM, which a rank handles itself."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with contextlib.chdir(here.root):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
