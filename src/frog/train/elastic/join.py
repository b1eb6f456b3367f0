"""A rank that joins an active run: `frog join RUN`, or a replacement that the launcher starts for a lost rank."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from frog.core.config import RunConfig, from_dict
from frog.core.env import WorldEnv
from frog.core.errors import CommError, RunError, UsageError
from frog.core.machine import keep_freed_memory
from frog.core.processes import leave
from frog.core.runs.folder import RunFolder, find_run
from frog.core.runs.run import has_living_rank
from frog.core.terminal import printable_output
from frog.train.comm.collectives.errors import CollectiveError
from frog.train.comm.elastic.membership import Membership, join_membership
from frog.train.comm.world import pick_device
from frog.train.data import open_prepared
from frog.train.elastic.survive import train_in_each_world
from frog.train.log import RankLog
from frog.train.parallel.build_strategy import build_mesh
from frog.train.pretraining import Pretraining
from frog.train.process import RankProcess
from frog.train.setup import Run, open_events
from frog.train.start import admit_others, finish
from frog.train.stop import StopRequest

_AGAIN_S = 0.1
_LONGEST_S = 86_400
_ALONE_S = 2.0
"""Seconds after the run's last sign of life until a replacement rank gives up."""


def main(args: argparse.Namespace) -> int:
    """Join the run, and train with it until it ends; return the exit code."""
    if not 0 <= args.timeout <= _LONGEST_S:
        raise UsageError(f"--timeout {args.timeout:g}: expected a number between 0 and {_LONGEST_S} s")
    folder = find_run(args.run)
    config = _config(folder)
    if config.comm.on_loss != "shrink":
        raise UsageError(
            f"{folder.path} is not an elastic run: comm.on_loss is {config.comm.on_loss!r}",
            "start a run that ranks can join with --set comm.on_loss=shrink",
        )
    with RankProcess() as rank:
        rank.exit_code = _join(folder, args.timeout, rank)
    return rank.exit_code


def replace_lost(run: str) -> int:
    """Join as a replacement that a launcher started; keep trying as long as any rank of the run is alive."""
    folder = RunFolder(Path(run))
    with RankProcess() as rank:
        rank.exit_code = _join(folder, None, rank)
    return rank.exit_code


def _config(folder: RunFolder) -> RunConfig:
    """Read the configuration of the run's last start."""
    return from_dict(folder.read_run_json().config)


def _join(folder: RunFolder, timeout_s: float | None, process: RankProcess) -> int:
    env, stop = process.begin(), process.stop
    keep_freed_memory()
    data = open_prepared(_config(folder).data.name)
    member = _request_to_join(folder, timeout_s, env, stop)
    if member is None:
        return stop.exit_code if stop.wanted else 0
    try:
        config = _config(folder)  # the run may have restarted in the meantime
        world = member.renew()
        process.env, process.folder = world.env, folder
        rank = world.rank
        with RankLog(folder.rank_log(rank), rank, show=False) as log:
            events = process.events = open_events(folder, world, member.survivors.epoch)
            run = Run(config, world, build_mesh(config, world), folder, events, log, stop, None, "", joins=True)
            admit_others(run, member, process)
            if timeout_s is not None:  # a launcher already prints the run's own message
                print(f"{folder.path}: joined as rank {rank} in a world of {world.size} ranks", flush=True)
            return finish(run, train_in_each_world(run, Pretraining(run, data)))
    finally:
        member.leave()


def _request_to_join(folder: RunFolder, timeout_s: float | None, env: WorldEnv, stop: StopRequest) -> Membership | None:
    """Send join requests until the run accepts; without a timeout return None when the run has ended.

    Raises:  RunError if the run does not accept in time; CommError if all its ranks are gone.
    """
    until_s = time.monotonic() + (_ALONE_S if timeout_s is None else timeout_s)
    while True:
        config = _config(folder).train
        try:
            return join_membership(env, pick_device(config.device, env), config.timeout_s, folder.join_endpoint_json)
        except FileNotFoundError:
            why = "no join endpoint: the run is not active"
        except CollectiveError as error:
            why = str(error)
        if timeout_s is None:
            record = folder.read_record()
            if stop.wanted or (record is not None and record.status != "failed"):
                return None
            if has_living_rank(folder):
                until_s = time.monotonic() + _ALONE_S
            elif time.monotonic() > until_s:
                raise CommError(f"{folder.path}: no rank is left to join", "resume the run from its last checkpoint")
        elif time.monotonic() > until_s or stop.wanted:
            raise RunError(f"cannot join {folder.path}: {why}", "`frog runs` shows which runs are active")
        time.sleep(_AGAIN_S)


if __name__ == "__main__":
    with printable_output():
        leave(replace_lost(sys.argv[1]))
