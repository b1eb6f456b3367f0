"""The start and the end of a run on one rank: join the world, open the run folder, find the last good checkpoint."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from frog.core.config import RunConfig
from frog.core.env import WorldEnv, attempt_number, most_replaced
from frog.core.errors import UsageError
from frog.core.machine import keep_freed_memory
from frog.core.runs.folder import RunFolder
from frog.core.runs.heartbeat import archive_heartbeats
from frog.train.comm import World, join_world
from frog.train.comm.world import pick_device
from frog.train.log import RankLog
from frog.train.parallel.mesh import Mesh
from frog.train.process import RankProcess
from frog.train.setup import Run, check_resume, choose_folder, find_resume, is_complete, open_events

if TYPE_CHECKING:  # only elastic runs load it
    from frog.train.comm.elastic.membership import Membership


class Data(Protocol):
    """A data set, prepared or labelled."""

    @property
    def name(self) -> str: ...

    @property
    def data_sha256(self) -> str: ...


@contextmanager
def joined_world(config: RunConfig, env: WorldEnv) -> Iterator[tuple[World, Membership | None]]:
    """Join this rank's world, and leave it at the end of the block; yield it and, for an elastic run, its membership.

    Raises:  UsageError for --replace in a run that ends with the first lost rank.
    """
    keep_freed_memory()
    device, timeout_s = pick_device(config.train.device, env), config.train.timeout_s
    if config.comm.on_loss == "fail":
        if most_replaced():
            raise UsageError(
                f"--replace {most_replaced()} with comm.on_loss='fail': this run ends when it loses a rank",
                "add --set comm.on_loss=shrink; or use --restarts N to resume from the last checkpoint",
            )
        world = join_world(env, device, timeout_s, config.comm.backend)
        try:
            yield world, None
        finally:
            world.leave()
    else:
        from frog.train.comm.elastic.membership import found_membership

        membership = found_membership(env, device, timeout_s)
        try:
            yield membership.renew(), membership
        finally:
            membership.leave()


@contextmanager
def open_run(
    config: RunConfig,
    mesh: Mesh,
    data: Data,
    rank: RankProcess,
    membership: Membership | None,
    resume: RunFolder | None,
    go_on: bool,
) -> Iterator[Run | None]:
    """Open the run in its folder with the checkpoint to resume from; yield None if the run is already complete.

    resume: the run to resume; one of its checkpoints must be good.
    go_on: resume the run with this name if it exists, or else start it.
    """
    world = mesh.world
    folder = resume or choose_folder(world, Path("runs"), config.name, go_on)
    may_start_over = go_on or attempt_number() > 0
    may_resume = may_start_over or resume is not None
    if may_resume:
        check_resume(folder, data.name, data.data_sha256)
    if world.is_main:  # attempt.json describes this start from here on
        folder.attempt_json.unlink(missing_ok=True)
    if may_resume and is_complete(folder, world, config.train.steps):
        if world.is_main:
            print(f"{folder.path} already completed its {config.train.steps} steps; nothing to do", flush=True)
        yield None
        return
    if world.is_main:  # before any rank of this attempt overwrites them
        archive_heartbeats(folder, attempt_number())
    attempt = world.from_main(secrets.token_hex(4))
    rank.folder = folder
    rank.events = open_events(folder, world)
    with RankLog(folder.rank_log(world.rank), world.rank, show=world.is_main) as log:
        resume_point = find_resume(folder, world, log, may_start_over=may_start_over) if may_resume else (None, ())
        resume_from, passed_over = resume_point
        run = Run(config, world, mesh, folder, rank.events, log, rank.stop, resume_from, attempt, passed_over)
        if membership is not None:
            admit_others(run, membership, rank)
        yield run


def admit_others(run: Run, member: Membership, rank: RankProcess) -> None:
    """Allow this run to continue without lost ranks, and others to join it."""

    def changed(run: Run) -> None:
        rank.env, rank.events = run.world.env, run.events

    def refused(line: str) -> None:
        run.log.note(f"join request refused: {line}")

    run.membership, run.changed = member, changed
    member.endpoint_file, member.refused = run.folder.join_endpoint_json, refused
    member.most_ranks = run.config.train.global_batch_size // run.config.train.grad_accum


def finish(run: Run, record: dict[str, Any]) -> int:
    """Report that the run completed or stopped; return the exit code."""
    if run.world.is_main:
        run.log.say(_closing_line(run.folder, record))
    own = record.get("weights_sha256")
    run.events.emit("end", step=record["step"], status=record["status"], weights_sha256=own)
    run.log.close()
    return run.stop.exit_code if record["status"] == "interrupted" else 0


def _closing_line(folder: RunFolder, record: dict[str, Any]) -> str:
    """Return the last line that a start prints."""
    if record["status"] == "interrupted":
        kept = folder.checkpoint_steps()
        saved = f", saved at step {kept[-1]}" if kept else ""
        return f"stopped at step {record['step']}{saved}; resume with: {folder.resume_command}"
    done = f"done: {record['step']} steps in {record['wall_s']:.1f} s"
    classification = record.get("classification")
    if classification:
        accuracy, baseline = classification["accuracy"], classification["baseline"]
        return f"{done}, accuracy {accuracy:.3f}, majority-class baseline {baseline:.3f}"
    loss = f", loss {record['loss']:.4f}" if record["loss"] is not None else ""
    return done + loss + (f", held-out loss {record['eval']['loss']:.4f}" if record["eval"] else "")
