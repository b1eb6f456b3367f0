"""One more rank for a run that goes on: `frog join RUN`; or in the place of a lost one, where its launcher says so."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from frog.comm.collectives.errors import CollectiveError
from frog.comm.elastic.membership import Membership, join_membership
from frog.comm.world import pick_device
from frog.config import RunConfig, from_dict
from frog.core.env import WorldEnv
from frog.core.errors import CommError, RunError, UsageError
from frog.core.memory import keep_freed_memory
from frog.core.printable import printable_output
from frog.core.processes import leave
from frog.data import open_prepared
from frog.parallel.build import build_mesh
from frog.runs.folder import RunFolder, find_run
from frog.runs.run import has_living_rank
from frog.train.elastic.survive import train_in_each_world
from frog.train.log import RankLog
from frog.train.pretraining import Pretraining
from frog.train.process import RankProcess
from frog.train.setup import Run, open_events
from frog.train.start import admit_others, finish
from frog.train.stop import StopRequest

_AGAIN_S = 0.1
_LONGEST_S = 86_400
_ALONE_S = 2.0
"""So long after the last of the run was seen, who is to replace one gives up."""


def main(args: argparse.Namespace) -> int:
    """Come into the run, and train with the others to its end; return the exit code."""
    if not 0 <= args.timeout <= _LONGEST_S:
        raise UsageError(f"--timeout {args.timeout:g}: it lies between 0 and {_LONGEST_S} s")
    folder = find_run(args.run)
    config = _config(folder)
    if config.comm.on_loss != "shrink":
        raise UsageError(
            f"{folder.path}: its world does not change: comm.on_loss is {config.comm.on_loss!r}",
            "start runs that others may join with --set comm.on_loss=shrink",
        )
    with RankProcess() as rank:
        rank.exit_code = _join(folder, args.timeout, rank)
    return rank.exit_code


def replace_lost(run: str) -> int:
    """The same for a rank that a launcher has started: it knocks as long as any other of the run is there."""
    folder = RunFolder(Path(run))
    with RankProcess() as rank:
        rank.exit_code = _join(folder, None, rank)
    return rank.exit_code


def _config(folder: RunFolder) -> RunConfig:
    """As the run was started last."""
    return from_dict(folder.read_run_json().config)


def _join(folder: RunFolder, timeout_s: float | None, process: RankProcess) -> int:
    env, stop = process.begin(), process.stop
    keep_freed_memory()
    data = open_prepared(_config(folder).data.name)
    member = _come_in(folder, timeout_s, env, stop)
    if member is None:
        return stop.exit_code if stop.wanted else 0
    try:
        config = _config(folder)  # it may have been started anew while this one knocked
        world = member.renew()
        process.env, process.folder = world.env, folder
        rank = world.rank
        with RankLog(folder.rank_log(rank), rank, show=False) as log:
            events = process.events = open_events(folder, world, member.survivors.epoch)
            run = Run(config, world, build_mesh(config, world), folder, events, log, stop, None, "", joins=True)
            admit_others(run, member, process)
            if timeout_s is not None:  # else the launcher's output is the run's, which says so too
                print(f"{folder.path}: joined as rank {rank}, in a world of {world.size}", flush=True)
            return finish(run, train_in_each_world(run, Pretraining(run, data)))
    finally:
        member.leave()


def _come_in(folder: RunFolder, timeout_s: float | None, env: WorldEnv, stop: StopRequest) -> Membership | None:
    """Knock until let in: for some time, or else until the run is over; then None.

    Raises:  RunError if nobody opens in time; CommError if all of the run are gone.
    """
    until_s = time.monotonic() + (_ALONE_S if timeout_s is None else timeout_s)
    while True:
        config = _config(folder).train
        try:
            return join_membership(env, pick_device(config.device, env), config.timeout_s, folder.door_json)
        except FileNotFoundError:
            why = "it has no door: it is not running, or it is over"
        except CollectiveError as error:
            why = str(error)
        if timeout_s is None:
            record = folder.read_record()
            if stop.wanted or (record is not None and record.status != "failed"):
                return None
            if has_living_rank(folder):
                until_s = time.monotonic() + _ALONE_S
            elif time.monotonic() > until_s:
                raise CommError(f"{folder.path}: nobody is left to join", "go on from its last checkpoint")
        elif time.monotonic() > until_s or stop.wanted:
            raise RunError(f"{folder.path}: cannot be joined: {why}", "`frog runs` says which runs are under way")
        time.sleep(_AGAIN_S)


if __name__ == "__main__":
    with printable_output():
        leave(replace_lost(sys.argv[1]))
