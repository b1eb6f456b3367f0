"""The program: one rank of a run, under any launcher or none. Read `run_rank` from top to bottom."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from frog.core.config import RunConfig, from_dict, load_run_config
from frog.core.config.arguments import DEFAULT_RUN_FILE, add_train_arguments
from frog.core.config.load import override_dict
from frog.core.env import WorldEnv
from frog.core.errors import UsageError
from frog.core.machine import check_memory
from frog.core.runs.folder import RunFolder, find_run
from frog.train.comm.world import pick_device
from frog.train.loop import train
from frog.train.parallel.build_strategy import build_mesh
from frog.train.pretraining import Pretraining
from frog.train.process import RankProcess
from frog.train.setup import Run, get_data
from frog.train.start import finish, joined_world, open_run
from frog.train.trained import read_finetune
from frog.train.workload import Workload

Loop = Callable[[Run, Workload], dict[str, Any]]
"""The training loop or a wrapper of it: runs the steps and returns the record."""


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments and train; return the exit code."""
    parser = argparse.ArgumentParser(prog="train.py", description="Train from a run file, on this rank.")
    add_train_arguments(parser)
    return run_rank(parser.parse_args(arguments))


def train_run(run: Run, workload: Workload) -> dict[str, Any]:
    """Train in one world, or, for an elastic run, in a sequence of worlds."""
    if run.membership is None:
        return train(run, workload)
    from frog.train.elastic.survive import train_in_each_world

    return train_in_each_world(run, workload)


def run_rank(args: argparse.Namespace, loop: Loop = train_run) -> int:
    """Train on this rank; return the exit code."""
    with RankProcess() as rank:
        env = rank.begin()
        config, resume = _configuration(args)
        config.check_world(env.world_size)
        _check_memory(config, env)
        with joined_world(config, env) as (world, membership):
            mesh = build_mesh(config, world)
            data = get_data(config, world)
            with open_run(config, mesh, data, rank, membership, resume, args.go_on) as run:
                if run is not None:  # None: the run already completed all its steps
                    rank.exit_code = finish(run, loop(run, Pretraining(run, data)))
    return rank.exit_code


def _configuration(args: argparse.Namespace) -> tuple[RunConfig, RunFolder | None]:
    """Return the configuration, and the folder of the run to resume if --resume names one."""
    if args.resume is not None and args.go_on:
        raise UsageError(
            "--resume cannot be combined with --continue",
            "--resume RUN names the run; --continue takes the run file's name",
        )
    if args.resume is None:
        return load_run_config(args.run_file or DEFAULT_RUN_FILE, args.set), None
    if args.run_file is not None:
        raise UsageError(
            f"both a run file ({args.run_file}) and --resume {args.resume}: a resumed run has its own configuration",
            "omit the run file; --set still overrides single fields",
        )
    folder = find_run(args.resume)
    if read_finetune(folder) is not None:
        raise UsageError(f"{folder.path} is a fine-tuned run", f"resume it with: {folder.resume_command}")
    return from_dict(override_dict(folder.read_run_json().config, args.set)), folder


def _check_memory(config: RunConfig, env: WorldEnv) -> None:
    """Raise UsageError if this machine's memory cannot hold the model and its optimizer."""
    on_gpu = pick_device(config.train.device, env).type == "cuda"
    ranks = 1 if on_gpu else env.local_world_size  # that share the memory
    least = config.model.built_bytes() if on_gpu else ranks * config.least_bytes(env.world_size)
    who = "a rank" if ranks == 1 else f"a node of {ranks} ranks"
    check_memory(
        least, f"{config.name}: {who}", "a smaller model or batch; `frog strategies RUN.toml` counts the bytes"
    )
