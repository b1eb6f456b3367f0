"""The program: one rank of a run, under any launcher or none."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from frog.comm import join_world
from frog.comm.world import pick_device
from frog.config import RunConfig, from_dict, load_run_config
from frog.config.arguments import DEFAULT_RUN_FILE, add_train_arguments
from frog.config.load import override_dict
from frog.core.env import WorldEnv, attempt_number
from frog.core.errors import UsageError
from frog.core.files import write_json
from frog.core.runfile import FORMAT
from frog.core.runfolder import RunFolder, find_run
from frog.parallel.build import build_mesh
from frog.train.failure import FailureReporter, as_rank
from frog.train.log import RankLog
from frog.train.loop import train
from frog.train.setup import (
    Run,
    check_resume,
    choose_folder,
    find_resume,
    get_data,
    is_complete,
    now_text,
    open_events,
)
from frog.train.stop import StopRequest

Loop = Callable[[Run], dict[str, Any]]
"""The training loop, or something around it: takes a run's steps and returns its record."""


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments and train; return the exit code."""
    parser = argparse.ArgumentParser(prog="train.py", description="Train as a run file says, on this rank.")
    add_train_arguments(parser)
    return run_rank(parser.parse_args(arguments))


def run_rank(args: argparse.Namespace, loop: Loop = train) -> int:
    """Train on this rank; return the exit code."""
    return as_rank(lambda env, stop, reporter: _run(args, env, stop, reporter, loop))


def _run(args: argparse.Namespace, env: WorldEnv, stop: StopRequest, reporter: FailureReporter, loop: Loop) -> int:
    config, folder = _configuration(args)
    go_on = args.go_on or attempt_number() > 0
    config.check_world(env.world_size)
    device = pick_device(config.train.device, env)
    world = join_world(env, device, config.train.timeout_s, config.comm.backend)
    try:
        mesh = build_mesh(config, world)
        data = get_data(config, world)
        if folder is None:
            folder = choose_folder(world, Path("runs"), config.name, args.go_on)
        if args.resume or go_on:
            check_resume(folder, data)
            if is_complete(folder, world, config.train.steps):
                if env.is_main:
                    print(f"{folder.path}: has taken its {config.train.steps} steps already", flush=True)
                return 0
        reporter.folder = folder
        attempt = world.from_main(secrets.token_hex(4))
        events = reporter.events = open_events(folder, world)
        with RankLog(folder.rank_log(env.rank), env.rank, show=env.is_main) as log:
            again = args.resume or go_on
            resume_from, passed_over = find_resume(folder, world, log, or_anew=go_on) if again else (None, ())
            run = Run(config, world, mesh, folder, data, events, log, stop, resume_from, attempt, passed_over)
            record = loop(run)
            _finish(run, record)
            events.emit("end", step=record["step"], status=record["status"])
        return stop.exit_code if record["status"] == "interrupted" else 0
    finally:
        world.leave()


def _configuration(args: argparse.Namespace) -> tuple[RunConfig, RunFolder | None]:
    """The configuration, and the folder to go on in if one is named."""
    if args.resume is not None and args.go_on:
        raise UsageError(
            "both --resume and --continue", "--resume RUN names the run; --continue takes the run file's name"
        )
    if args.resume is None:
        return load_run_config(args.run_file or DEFAULT_RUN_FILE, args.set), None
    if args.run_file is not None:
        raise UsageError(
            f"both a run file ({args.run_file}) and --resume {args.resume}: a resumed run has its own configuration",
            "leave the run file out; --set still overrides single fields",
        )
    folder = find_run(args.resume)
    return from_dict(override_dict(folder.read_run().config, args.set)), folder


def _finish(run: Run, record: dict[str, Any]) -> None:
    if not run.world.is_main:
        return
    record = {"format": FORMAT, **record, "error": None, "ended": now_text()}
    write_json(run.folder.record_json, record)
    if record["status"] == "interrupted":
        kept = run.folder.checkpoint_steps()
        run.log.say(
            f"stopped at step {record['step']}"
            + (f", saved at step {kept[-1]}" if kept else "")
            + f"; go on with: frog train --resume {run.folder.path}"
        )
        return
    last = record["eval"]
    held_out = f", held-out loss {last['loss']:.4f}" if last else ""
    loss = f", loss {record['loss']:.4f}" if record["loss"] is not None else ""
    run.log.say(f"done: {record['step']} steps in {record['wall_s']:.1f} s{loss}{held_out}")
