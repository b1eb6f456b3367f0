"""Setup before the first step: the run folder, the data, and the checkpoint to resume from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from frog.core.config import RunConfig
from frog.core.env import attempt_number, host_name, launch_dir, machine
from frog.core.errors import CheckpointError, ConfigError, Damage, ErrorFacts, RunError
from frog.core.files import write_atomic
from frog.core.runs import EventWriter
from frog.core.runs.folder import RunFolder
from frog.core.runs.heartbeat import Heartbeat
from frog.train.checkpoint import Checkpoint, find_good
from frog.train.checkpoint.save import clean_up
from frog.train.comm import World
from frog.train.data import PreparedData, ensure_prepared, open_prepared
from frog.train.log import RankLog
from frog.train.parallel.mesh import Mesh
from frog.train.stop import StopRequest

if TYPE_CHECKING:  # only elastic runs load it
    from frog.train.comm.elastic.membership import Membership


@dataclass
class Run:
    """Inputs of the training loop."""

    config: RunConfig
    world: World
    mesh: Mesh
    folder: RunFolder
    events: EventWriter
    log: RankLog
    stop: StopRequest
    resume_from: Checkpoint | None
    attempt: str
    """Random identifier of this start, the same on all ranks."""
    passed_over: Sequence[Damage] = ()
    """Damaged checkpoints newer than `resume_from`."""
    membership: Membership | None = None
    """Membership of an elastic run; `world` and `mesh` are the current ones."""

    joins: bool = False
    """True if this rank joins a run in progress."""
    shows: bool = True
    """True if this process may print the main rank's messages."""
    changed: Callable[[Run], None] = lambda run: None
    """Called after a membership change has replaced `world`, `events` and `log`."""

    @property
    def identity(self) -> int:
        """Number of this process that stays the same when ranks are renumbered."""
        return self.world.rank if self.membership is None else self.membership.identity


def new_folder(world: World, runs: Path, name: str) -> RunFolder:
    """Create the folder of a new run: `runs/<name>`, or `<name>-2` and so on if it exists. Rank 0 creates it."""

    def make() -> str:
        runs.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            path = runs / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return str(path)
        raise ConfigError(f"{runs}/{name}: 9999 runs already have this name", "choose another name: --set name=NAME")

    return RunFolder(Path(world.from_main(make() if world.is_main else None)))


def choose_folder(world: World, runs: Path, name: str, go_on: bool) -> RunFolder:
    """Return the run folder: the one from before a restart of this launch, an existing `runs/<name>`, or a new one."""
    launch = launch_dir()
    begun = launch / "run_folder" if launch else None
    known = None
    if go_on:
        known = str(runs / name)
    elif begun is not None and begun.exists():
        known = begun.read_text()
    known = world.from_main(known)
    if known is None:
        return new_folder(world, runs, name)
    if world.is_main:
        Path(known).mkdir(parents=True, exist_ok=True)
    return RunFolder(Path(known))


def open_events(folder: RunFolder, world: World, epoch: int = 0) -> EventWriter:
    """Open this rank's events and heartbeat in the run folder. Rank 0 reports the folder to the launcher."""
    env, launch = world.env, launch_dir()
    if world.is_main and launch is not None:
        write_atomic(launch / "run_folder", str(folder.path))
    who = {
        "rank": env.rank,
        "pid": os.getpid(),
        "node_rank": env.node_rank,
        "host": host_name(),
        "machine": machine(),
        "attempt": attempt_number(),
        "epoch": epoch,
        "world_size": env.world_size,
        "timeout_s": world.timeout_s,
    }
    events = EventWriter(folder.rank_events(env.rank), Heartbeat(folder.heartbeat(env.rank), who))
    world.report_to(events.collective)
    return events


def get_data(config: RunConfig, world: World) -> PreparedData:
    """Open the prepared data set; prepare the embedded one first if necessary.

    Raises:  ConfigError if the model's vocabulary is smaller than the data set's.
    """
    if world.env.local_rank == 0:
        ensure_prepared(config.data.name)
    world.barrier()
    data = open_prepared(config.data.name)
    if data.vocab_size > config.model.vocab_size:
        raise ConfigError(
            f"data set {data.name} has token ids up to {data.vocab_size - 1}, but the model's "
            f"vocab_size={config.model.vocab_size}: every token needs a row of the embedding",
            f"set vocab_size to {data.vocab_size} or more, or prepare the data with --vocab-size "
            f"{config.model.vocab_size}",
        )
    if world.is_main and data.vocab_size < config.model.vocab_size / 2:
        unused = config.model.vocab_size - data.vocab_size
        print(
            f"note: vocab_size={config.model.vocab_size}, but data set {data.name} has {data.vocab_size} tokens: "
            f"{unused:,} rows of the embedding are never used. --set model.vocab_size={data.vocab_size} omits them"
        )
    return data


def check_resume(folder: RunFolder, data_name: str, data_sha256: str) -> None:
    """Check that a resumed run has the data set that it started with.

    Raises:  RunError if the data set has changed.
    """
    begun = folder.read_run_json().data if folder.run_json.exists() else None
    if begun is not None and begun.data_sha256 != data_sha256:
        raise RunError(
            f"{folder.path} started on data set {begun.name} ({begun.data_sha256[:12]}) and cannot continue on "
            f"{data_name} ({data_sha256[:12]})",
            "prepare the same data again, or start a run with another name: --set name=NAME",
        )


def is_complete(folder: RunFolder, world: World, steps: int) -> bool:
    """True if the run has already completed `steps` steps, so that there is nothing to do.

    A run whose last checkpoint is missing or damaged is not complete: it resumes from the one before.
    """

    def look() -> bool:
        record = folder.read_achieved()
        if record is None or record.status != "completed" or record.step < steps:
            return False
        good = find_good(folder)[0]
        return good is not None and good.step == record.step

    return bool(world.from_main(look() if world.is_main else None))


def find_resume(
    folder: RunFolder, world: World, log: RankLog, *, may_start_over: bool = False
) -> tuple[Checkpoint | None, Sequence[Damage]]:
    """Find the last good checkpoint, the same on every rank, and the newer damaged ones.

    The checkpoint is None if the run was killed before saving one.

    `may_start_over`: return None instead of raising if all checkpoints are damaged.

    Raises:  CheckpointError if there are checkpoints and all are damaged.
    """
    if world.is_main:
        clean_up(folder)
        good, passed_over = find_good(folder)
        for damage in passed_over:
            log.say(f"skipped checkpoint: {damage}")
        resume_point: tuple[int | None, list[Damage]] = (good.step if good else None, passed_over)
    else:
        resume_point = (None, [])
    step, passed_over = world.from_main(resume_point)
    if step is None and passed_over and may_start_over:
        log.say("no intact checkpoint: the run restarts at step 0")
    elif step is None and passed_over:
        raise CheckpointError(
            f"{folder.checkpoints}: none of the {len(passed_over)} checkpoints is intact\n"
            + "\n".join(f"  - {damage}" for damage in passed_over),
            "start a new run; the logs and events of this one are kept",
            ErrorFacts(cause=passed_over[0].cause, damage=tuple(passed_over)),
        )
    return None if step is None else _same_checkpoint(folder, step, world), passed_over


def _same_checkpoint(folder: RunFolder, step: int, world: World) -> Checkpoint:
    """Open the checkpoint that rank 0 resumes from. Raises CheckpointError if this rank cannot read it."""
    good, passed_over = find_good(folder, at_step=step)
    if good is not None:
        return good
    why = f": {passed_over[0]}" if passed_over else ": no such checkpoint"
    raise CheckpointError(
        f"{folder.checkpoint(step)}: rank 0 resumes from it, but rank {world.rank} cannot read it{why}",
        "check that the run folder is on a file system that all nodes share and that this user can read",
        ErrorFacts(cause="torn", damage=tuple(passed_over)),
    )
