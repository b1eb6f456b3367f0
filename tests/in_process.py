"""Training and fine-tuning in the process of the tests, as a world of one: what a rank does, without starting one."""

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

from frog.chaos.sandbox import faults_env
from frog.config.arguments import add_train_arguments
from frog.core.files import write_json
from frog.runs.folder import RunFolder
from frog.runs.record import FORMAT
from frog.train import main as training
from frog.train.finetune import main as finetuning
from frog.train.finetune.arguments import add_finetune_arguments


def train(here: Harness, *words: str) -> int:
    """`frog train`; return its exit code."""
    parser = argparse.ArgumentParser()
    add_train_arguments(parser)
    with _as_a_program(here):
        return training.run_rank(parser.parse_args(words))


def tune(here: Harness, *words: str) -> int:
    """`frog finetune`; return its exit code."""
    parser = argparse.ArgumentParser()
    add_finetune_arguments(parser)
    with _as_a_program(here):
        return finetuning.run_rank(parser.parse_args(words))


def write_faults(path: Path, *faults: dict[str, Any]) -> Path:
    """A list of faults, for the environment of a rank to name."""
    lines = [line for fault in faults for line in ("[[fault]]", *(f"{k} = {json.dumps(v)}" for k, v in fault.items()))]
    path.write_text("\n".join(lines))
    return path


def meet_faults(patch: pytest.MonkeyPatch, path: Path) -> None:
    """Let ranks of this process, and of those that it starts, meet the faults of that list."""
    for name, value in faults_env(path).items():
        patch.setenv(name, value)


def write_run(folder: RunFolder, starts: int, data_sha256: str = "") -> None:
    """The run.json of a run that was started so many times."""
    segment = {"mesh": {}, "num_nodes": 1, "device": "cpu", "threads": 1, "from_step": 0, "host": "", "started": ""}
    data = {"name": "rhymes", "data_sha256": data_sha256, "vocab_size": 1, "train_tokens": 1, "heldout_tokens": 1}
    run = {"format": FORMAT, "name": "a", "created": "", "argv": [], "config": {}, "num_parameters": 1, "data": data}
    write_json(folder.run_json, {**run, "versions": {}, "segments": [{"world_size": 1, **segment}] * starts})


@contextlib.contextmanager
def _as_a_program(here: Harness) -> Iterator[None]:
    """In the harness's folder; SIGINT and SIGTERM, which a rank takes over, are given back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with contextlib.chdir(here.root):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
