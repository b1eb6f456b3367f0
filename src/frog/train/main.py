"""The program: one rank of a run, under any launcher or none."""

from __future__ import annotations

import argparse
import secrets
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from frog.comm import World, join_world
from frog.comm.world import pick_device
from frog.config import RunConfig, from_dict, load_run_config
from frog.config.arguments import DEFAULT_RUN_FILE, add_train_arguments
from frog.config.load import override_dict
from frog.core.env import WorldEnv, launcher_pid, world_env
from frog.core.errors import CommError, ConfigError, FrogError, UsageError
from frog.core.files import write_json
from frog.core.runfolder import RunFolder, find_run
from frog.events import EventWriter
from frog.train.log import RankLog
from frog.train.loop import train
from frog.train.setup import FORMAT, Run, find_resume, get_data, new_folder, now_text
from frog.train.stop import StopWish, leave_with_parent


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments and train; return the exit code."""
    parser = argparse.ArgumentParser(prog="train.py", description="Train as a run file says, on this rank.")
    add_train_arguments(parser)
    return run_rank(parser.parse_args(arguments))


def run_rank(args: argparse.Namespace) -> int:
    """Train on this rank; return the exit code. Errors are told here, and left where launchers look for them."""
    stop = StopWish()
    stop.install()
    place = _Place()
    get_error_handler().initialize()
    try:
        env = place.env = world_env()
        leave_with_parent()
        return _run(args, env, stop, place)
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        place.tell(error)
        return error.exit_code if isinstance(error, FrogError) else 1


class _Place:
    """How far this rank has come, for an error to be told with."""

    def __init__(self) -> None:
        self.env: WorldEnv | None = None
        self.world: World | None = None
        self.folder: RunFolder | None = None
        self.events: EventWriter | None = None

    def tell(self, error: BaseException) -> None:
        """Say what went wrong: to torchrun, in events and record, and on screen (once, if all ranks see it)."""
        get_error_handler().record_exception(error)
        expected = isinstance(error, FrogError)
        rank = self.env.rank if self.env else 0
        if self.events is not None:
            step, phase = self.events.step, self.events.phase
            self.events.emit("error", step=step, phase=phase, type=type(error).__name__, message=str(error))
            self.events.emit("end", step=step, status="failed")
        if self.folder is not None:
            self._record(error, rank)
        text = f"error: {error}" if expected else "".join(traceback.format_exception(error)).rstrip()
        if self.folder is not None:
            with RankLog(self.folder.rank_log(rank), rank, show=False) as log:
                log.note(text)
        if launcher_pid() is not None:
            return  # `frog run` waits for the world to end and tells the first error last
        several = self.env is not None and self.env.world_size > 1
        if rank == 0 or not isinstance(error, UsageError):
            mark = f"[rank {rank}] " if several else ""
            print("\n".join(mark + line for line in text.splitlines()), file=sys.stderr, flush=True)

    def _record(self, error: BaseException, rank: int) -> None:
        """Write record.json, unless a rank with a better reason than "another rank has left" was first."""
        assert self.folder is not None
        if isinstance(error, CommError) and self.folder.record_json.exists():
            return
        step = self.events.step if self.events else 0
        told = {"type": type(error).__name__, "message": str(error), "rank": rank, "step": step}
        write_json(
            self.folder.record_json,
            {"format": FORMAT, "status": "failed", "step": step, "error": told, "ended": now_text()},
        )


def _run(args: argparse.Namespace, env: WorldEnv, stop: StopWish, place: _Place) -> int:
    config, folder = _configuration(args)
    if problem := config.world_problem(env.world_size):
        raise ConfigError(problem, "change one of the three: --set train.global_batch_size=…, train.grad_accum=…")
    device = pick_device(config.train.device, env)
    world = place.world = join_world(env, device, config.train.timeout_s)
    try:
        data = get_data(config, world)
        if folder is None:
            folder = new_folder(world, Path("runs"), config.name)
        place.folder = folder
        attempt = world.from_main(secrets.token_hex(4))
        events = place.events = EventWriter(folder.rank_events(env.rank))
        world.record = events.collective
        with RankLog(folder.rank_log(env.rank), env.rank, show=env.is_main) as log:
            resume_from = find_resume(folder, world, log) if args.resume else None
            run = Run(config, world, folder, data, events, log, stop, resume_from, attempt)
            record = train(run)
            _finish(run, record)
            events.emit("end", step=record["step"], status=record["status"])
        return stop.exit_code if record["status"] == "interrupted" else 0
    finally:
        world.leave()


def _configuration(args: argparse.Namespace) -> tuple[RunConfig, RunFolder | None]:
    """The configuration, and the folder to go on in if the run is resumed."""
    if args.resume is None:
        return load_run_config(args.run_file or DEFAULT_RUN_FILE, args.set), None
    if args.run_file is not None:
        raise UsageError(
            f"both a run file ({args.run_file}) and --resume {args.resume}: a resumed run has its own configuration",
            "leave the run file out; --set still overrides single fields",
        )
    folder = find_run(args.resume)
    return from_dict(override_dict(folder.read_run()["config"], args.set)), folder


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
