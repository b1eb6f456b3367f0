"""What faults are tried on: the run that they are aimed at, and a tiny one for who brings none."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frog.config import RunConfig, from_dict, load_run_config
from frog.config.arguments import DEFAULT_RUN_FILE, add_train_arguments
from frog.config.faults import Fault, Scene, dump_faults, marks_folder
from frog.config.load import override_dict
from frog.core.errors import LaunchError, UsageError
from frog.launch.nodes import Nodes
from frog.runs.folder import find_run

FOLDER = Path("chaos")
"""What `frog chaos` makes for itself, beside runs/ and data/."""

TINY_MODEL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
"""The least that is a model; tests use it too."""

_RUN_FILE = """\
# The run that `frog chaos` aims at when it is given no other: as short as a run can be in which everything happens.
name = "tiny"
[model]
file = "tiny.json"
[data]
name = "chaos-tiny"
sequence_length = 16
[train]
steps = 3
global_batch_size = 8
timeout_s = 10
[optimizer]
warmup_steps = 1
[eval]
every = 2
tokens = 256
sample_tokens = 0
[checkpoint]
every = 1
keep_last = 9
"""


@dataclass(frozen=True)
class Sandbox:
    """A program that trains, and the run that it asks for."""

    program: tuple[str, ...]
    config: RunConfig
    resumes: bool = False
    """Whether it goes on with a run that is there already."""

    def scene(self, nodes: Nodes, network: bool) -> Scene:
        """What faults can be aimed at in a world of that size."""
        return Scene(
            world_size=nodes.most * nodes.ranks,
            steps=self.config.train.steps,
            checkpoint_every=self.config.checkpoint.every,
            eval_every=self.config.eval.every,
            grad_accum=self.config.train.grad_accum,
            network=network,
            native=self.config.strategy.implementation != "frog",
            own_backend=self.config.comm.backend == "frog" or self.config.comm.on_loss == "shrink",
        )


def read_sandbox(program: Sequence[str]) -> Sandbox:
    """What `train RUN.toml ...` (or `train.py ...`) runs.

    Raises:  UsageError for another program, ConfigError for a run file with mistakes.
    """
    words = list(program) or tiny_program()
    if words[0] != "train" and not words[0].endswith("train.py"):
        raise UsageError(f"{words[0]}: faults are met by training runs", "frog chaos ... -- train RUN.toml")
    parser = argparse.ArgumentParser(prog="train", add_help=False)
    add_train_arguments(parser)
    args = parser.parse_args(words[1:])
    if args.resume is None:
        return Sandbox(tuple(words), load_run_config(args.run_file or DEFAULT_RUN_FILE, args.set))
    content = find_run(args.resume).read_run_json()
    return Sandbox(tuple(words), from_dict(override_dict(content.config, args.set)), resumes=True)


def tiny_program() -> list[str]:
    """A program that trains a tiny model on a tiny corpus; both are made here if they are not there yet."""
    FOLDER.mkdir(exist_ok=True)
    run_file = FOLDER / "tiny.toml"
    if not run_file.exists():
        (FOLDER / "tiny.json").write_text(json.dumps(TINY_MODEL, indent=2) + "\n")
        run_file.write_text(_RUN_FILE)
    if not Path("data/chaos-tiny").exists():
        corpus = FOLDER / "tiny.txt"
        lines = (f"{n} ships left the port; {n % 7} sank, and {n % 5} came home on day {n % 11}." for n in range(2000))
        corpus.write_text("\n\n".join(lines) + "\n")
        words = ["--corpus", str(corpus), "--name", "chaos-tiny", "--vocab-size", str(TINY_MODEL["vocab_size"])]
        command = [sys.executable, "-m", "frog.cli", "data", "prepare", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise LaunchError(f"the tiny corpus could not be prepared\n{done.stderr.strip()}")
    return ["train", str(run_file)]


def write_faults(path: Path, faults: Sequence[Fault]) -> None:
    """Write the list that ranks are pointed at."""
    path.write_text(dump_faults(faults))


def faults_env(path: Path) -> dict[str, str]:
    """The environment of ranks that are to meet the faults of that list."""
    return {"FROG_OBSERVER": f"frog.chaos.rank:{path}"}


def met_faults(path: Path) -> dict[int, float]:
    """The faults of that list that were met, by number: when (seconds since 1970), the first time."""
    folder, met = marks_folder(path), dict[int, float]()
    for mark in sorted(folder.iterdir()) if folder.is_dir() else []:
        met.setdefault(int(mark.name.partition(".")[0]), mark.stat().st_mtime)
    return met


def where_met(path: Path, number: int) -> str:
    """Where in a collective that fault of the list was met, the first time, if it was and says so."""
    mark = marks_folder(path) / f"{number}.0"
    return mark.read_text() if mark.exists() else ""
