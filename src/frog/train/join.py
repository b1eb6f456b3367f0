"""`frog join RUN`: one more rank for a run that goes on."""

from __future__ import annotations

import argparse
import time

from frog.collectives.errors import CollectiveError
from frog.comm.membership import Membership, join_membership
from frog.comm.world import pick_device
from frog.config import RunConfig, from_dict
from frog.core.env import WorldEnv
from frog.core.errors import RunError, UsageError
from frog.core.runfolder import RunFolder, find_run
from frog.data import open_prepared
from frog.parallel.build import build_mesh
from frog.train.failure import FailureReporter, as_rank
from frog.train.hardware import keep_freed_memory
from frog.train.log import RankLog
from frog.train.loop import train
from frog.train.pretraining import Pretraining
from frog.train.setup import Run, open_events
from frog.train.start import admit_others, finish
from frog.train.stop import StopRequest

_AGAIN_S = 0.1
_LONGEST_S = 86_400


def main(args: argparse.Namespace) -> int:
    """Come into the run, and train with the others to its end; return the exit code."""
    if not 0 <= args.timeout <= _LONGEST_S:
        raise UsageError(f"--timeout {args.timeout:g}: it lies between 0 and {_LONGEST_S} s")
    folder = find_run(args.run)
    config = from_dict(folder.read_run_json().config)
    if config.comm.on_loss != "shrink":
        raise UsageError(
            f"{folder.path}: its world does not change: comm.on_loss is {config.comm.on_loss!r}",
            "start runs that others may join with --set comm.on_loss=shrink",
        )
    return as_rank(lambda env, stop, reporter: _join(folder, config, args.timeout, env, stop, reporter))


def _join(
    folder: RunFolder, config: RunConfig, timeout_s: float, env: WorldEnv, stop: StopRequest, reporter: FailureReporter
) -> int:
    keep_freed_memory()
    data = open_prepared(config.data.name)
    member = _come_in(folder, config, timeout_s, env, stop)
    try:
        world = member.renew()
        reporter.env, reporter.folder = world.env, folder
        rank = world.rank
        with RankLog(folder.rank_log(rank), rank, show=False) as log:
            events = reporter.events = open_events(folder, world, member.survivors.epoch)
            run = Run(config, world, build_mesh(config, world), folder, events, log, stop, None, "", joins=True)
            admit_others(run, member, reporter)
            print(f"{folder.path}: joined as rank {rank}, in a world of {world.size}", flush=True)
            return finish(run, train(run, Pretraining(run, data)))
    finally:
        member.leave()


def _come_in(folder: RunFolder, config: RunConfig, timeout_s: float, env: WorldEnv, stop: StopRequest) -> Membership:
    """Knock until let in. Raises RunError if nobody opens in time."""
    device, until_s = pick_device(config.train.device, env), time.monotonic() + timeout_s
    while True:
        try:
            return join_membership(env, device, config.train.timeout_s, folder.door_json)
        except FileNotFoundError:
            why = "it has no door: it is not running, or it is over"
        except CollectiveError as error:
            why = str(error)
        if time.monotonic() > until_s or stop.wanted:
            raise RunError(f"{folder.path}: cannot be joined: {why}", "`frog runs` says which runs are under way")
        time.sleep(_AGAIN_S)
