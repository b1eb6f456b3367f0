"""One start of a run on one rank: into the world, to the run folder, to the last good checkpoint, through the loop."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from frog.comm import World, join_world
from frog.comm.membership import Membership, found_membership
from frog.comm.world import pick_device
from frog.config import RunConfig
from frog.core.env import WorldEnv, attempt_number, most_replaced
from frog.core.errors import UsageError
from frog.core.runfolder import RunFolder
from frog.events.heartbeat import keep_heartbeats
from frog.parallel.build import build_mesh
from frog.train.failure import FailureReporter
from frog.train.hardware import keep_freed_memory
from frog.train.log import RankLog
from frog.train.setup import Run, check_resume, choose_folder, find_resume, is_complete, open_events
from frog.train.stop import StopRequest


class Data(Protocol):
    """A data set, prepared or labelled."""

    @property
    def name(self) -> str: ...

    @property
    def data_sha256(self) -> str: ...


D = TypeVar("D", bound=Data)


@dataclass(frozen=True)
class Start:
    """What a rank was asked to start."""

    config: RunConfig
    resume: RunFolder | None
    """The run to go on with; one of its checkpoints must be good."""
    go_on: bool
    """Go on with what is there of the run, or else begin it."""


def run_start(
    start: Start,
    env: WorldEnv,
    stop: StopRequest,
    reporter: FailureReporter,
    get_data: Callable[[World], D],
    train: Callable[[Run, D], dict[str, Any]],
) -> int:
    """Join the world and train; return the exit code. `train` writes the run's record, and returns it on every rank."""
    config, go_on = start.config, start.go_on or attempt_number() > 0
    keep_freed_memory()
    world, member = _meet(config, env)
    try:
        mesh = build_mesh(config, world)
        data = get_data(world)
        folder = start.resume or choose_folder(world, Path("runs"), config.name, start.go_on)
        may_resume = go_on or start.resume is not None
        if may_resume:
            check_resume(folder, data.name, data.data_sha256)
        if world.is_main:  # from here on it is of this start
            folder.attempt_json.unlink(missing_ok=True)
        if may_resume and is_complete(folder, world, config.train.steps):
            if world.is_main:
                print(f"{folder.path}: has taken its {config.train.steps} steps already", flush=True)
            return 0
        if world.is_main:  # before any rank of this attempt writes over those of the one before
            keep_heartbeats(folder, attempt_number())
        attempt = world.from_main(secrets.token_hex(4))
        reporter.folder = folder
        events = reporter.events = open_events(folder, world)
        with RankLog(folder.rank_log(env.rank), env.rank, show=env.is_main) as log:
            resume_from, passed_over = find_resume(folder, world, log, or_anew=go_on) if may_resume else (None, ())
            run = Run(config, world, mesh, folder, events, log, stop, resume_from, attempt, passed_over)
            if member is not None:
                admit_others(run, member, reporter)
            return finish(run, train(run, data))
    finally:
        (member or world).leave()


def _meet(config: RunConfig, env: WorldEnv) -> tuple[World, Membership | None]:
    """The world that this rank was started for; with what it needs to go on when others are lost, if it is to."""
    device, timeout_s = pick_device(config.train.device, env), config.train.timeout_s
    if config.comm.on_loss == "fail":
        if most_replaced():
            raise UsageError(
                f"--replace {most_replaced()} with comm.on_loss='fail': the loss of a rank is the end of this world",
                "add --set comm.on_loss=shrink; or --restarts N, to go on from the last checkpoint",
            )
        return join_world(env, device, timeout_s, config.comm.backend), None
    member = found_membership(env, device, timeout_s)
    return member.renew(), member


def admit_others(run: Run, member: Membership, reporter: FailureReporter) -> None:
    """Let this run go on without lost ranks, and others into it."""

    def changed(run: Run) -> None:
        reporter.env, reporter.events = run.world.env, run.events

    def refused(line: str) -> None:
        run.log.note(f"turned away at the door: {line}")

    run.membership, run.changed = member, changed
    member.door_file, member.refused = run.folder.door_json, refused
    member.most_ranks = run.config.train.global_batch_size // run.config.train.grad_accum


def finish(run: Run, record: dict[str, Any]) -> int:
    """A run has taken its steps, or stopped: say so everywhere, and return the exit code."""
    if run.world.is_main:
        run.log.say(_farewell(run.folder, record))
    own = record.get("weights_sha256")
    run.events.emit("end", step=record["step"], status=record["status"], weights_sha256=own)
    run.log.close()
    return run.stop.exit_code if record["status"] == "interrupted" else 0


def _farewell(folder: RunFolder, record: dict[str, Any]) -> str:
    """The last line of a start, for people."""
    if record["status"] == "interrupted":
        kept = folder.checkpoint_steps()
        saved = f", saved at step {kept[-1]}" if kept else ""
        return f"stopped at step {record['step']}{saved}; go on with: {folder.resume_command}"
    done = f"done: {record['step']} steps in {record['wall_s']:.1f} s"
    if found := record.get("classification"):
        return f"{done}, accuracy {found['accuracy']:.3f}, always the commonest class {found['baseline']:.3f}"
    loss = f", loss {record['loss']:.4f}" if record["loss"] is not None else ""
    return done + loss + (f", held-out loss {record['eval']['loss']:.4f}" if record["eval"] else "")
