"""What must stand before the first step: the run folder, the data, and what a resumed run goes on from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from frog.checkpoint import Checkpoint, find_good
from frog.checkpoint.save import clean_up
from frog.comm import World
from frog.comm.collectives.rendezvous import machine
from frog.comm.elastic.membership import Membership
from frog.config import RunConfig
from frog.core.env import attempt_number, host_name, launch_dir
from frog.core.errors import CheckpointError, ConfigError, RunError
from frog.core.facts import Damage, ErrorFacts
from frog.core.files import write_atomic
from frog.data import PreparedData, ensure_prepared, open_prepared
from frog.parallel.mesh import Mesh
from frog.runs import EventWriter
from frog.runs.folder import RunFolder
from frog.runs.heartbeat import Heartbeat
from frog.train.log import RankLog
from frog.train.stop import StopRequest


@dataclass
class Run:
    """All that the loop needs and did not make."""

    config: RunConfig
    world: World
    mesh: Mesh
    folder: RunFolder
    events: EventWriter
    log: RankLog
    stop: StopRequest
    resume_from: Checkpoint | None
    attempt: str
    """Differs each time the run is started, and is the same on all ranks."""
    passed_over: Sequence[Damage] = ()
    """Newer checkpoints than `resume_from`, which could not be trusted."""
    membership: Membership | None = None
    """Of a run that goes on without lost ranks; `world` and `mesh` are those of now."""

    joins: bool = False
    """Whether this rank comes into a run that others have begun."""
    shows: bool = True
    """Whether this process may print what the main rank says."""
    changed: Callable[[Run], None] = lambda run: None
    """Called when `world`, `events` and `log` are others, as the world has changed."""

    @property
    def identity(self) -> int:
        """This rank's number since it was started, whatever became of others."""
        return self.world.rank if self.membership is None else self.membership.identity


def new_folder(world: World, runs: Path, name: str) -> RunFolder:
    """A folder of its own for a new run: `runs/<name>`, or `<name>-2` and so on if that is taken. Rank 0 makes it."""

    def make() -> str:
        runs.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            path = runs / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return str(path)
        raise ConfigError(f"{runs}/{name}: 9999 runs of that name", "choose another name: --set name=NAME")

    return RunFolder(Path(world.from_main(make() if world.is_main else None)))


def choose_folder(world: World, runs: Path, name: str, go_on: bool) -> RunFolder:
    """Where this run is: what this launch began before a restart, `runs/<name>` to go on in, or a new folder."""
    launch = launch_dir()
    begun = launch / "run_folder" if launch else None
    known = str(runs / name) if go_on else begun.read_text() if begun is not None and begun.exists() else None
    known = world.from_main(known)
    if known is None:
        return new_folder(world, runs, name)
    if world.is_main:
        Path(known).mkdir(parents=True, exist_ok=True)
    return RunFolder(Path(known))


def open_events(folder: RunFolder, world: World, epoch: int = 0) -> EventWriter:
    """This rank's events and heartbeat in its run folder. The launcher learns from rank 0 which folder that is."""
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
    """The prepared data set; the embedded one is prepared here if it is not there yet.

    Raises:  ConfigError if the model's vocabulary cannot hold it.
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
    return data


def check_resume(folder: RunFolder, data_name: str, data_sha256: str) -> None:
    """What a run goes on with must be what it began with.

    Raises:  RunError if the data set of its name is not the one that it was begun with.
    """
    begun = folder.read_run_json().data if folder.run_json.exists() else None
    if begun is not None and begun.data_sha256 != data_sha256:
        raise RunError(
            f"{folder.path}: was begun on data set {begun.name} ({begun.data_sha256[:12]}), and would go on with "
            f"{data_name} ({data_sha256[:12]})",
            "prepare the same data again, or begin a run of another name: --set name=NAME",
        )


def is_complete(folder: RunFolder, world: World, steps: int) -> bool:
    """Whether a run has come to its end, with as many steps as are asked for: there is nothing to go on with.

    Without its last checkpoint, or with a damaged one, it goes on from the one before.
    """

    def look() -> bool:
        record = folder.read_achieved()
        if record is None or record.status != "completed" or record.step < steps:
            return False
        good = find_good(folder)[0]
        return good is not None and good.step == record.step

    return bool(world.from_main(look() if world.is_main else None))


def find_resume(
    folder: RunFolder, world: World, log: RankLog, *, or_anew: bool = False
) -> tuple[Checkpoint | None, Sequence[Damage]]:
    """The last good checkpoint, the same on every rank, and the newer ones that cannot be trusted.

    None if the run was killed before its first.

    `or_anew`: None also if there are checkpoints and none can be trusted.

    Raises:  CheckpointError if there are checkpoints and none can be trusted.
    """
    if world.is_main:
        clean_up(folder)
        good, passed_over = find_good(folder)
        for damage in passed_over:
            log.say(f"passed over: {damage}")
        found: tuple[int | None, list[Damage]] = (good.step if good else None, passed_over)
    else:
        found = (None, [])
    step, passed_over = world.from_main(found)
    if step is None and passed_over and or_anew:
        log.say("no checkpoint can be trusted: the run begins anew, at step 0")
    elif step is None and passed_over:
        raise CheckpointError(
            f"{folder.checkpoints}: none of {len(passed_over)} checkpoints can be trusted\n"
            + "\n".join(f"  - {damage}" for damage in passed_over),
            "start a new run; this one's logs and events are left as they are",
            ErrorFacts(cause=passed_over[0].cause, damage=tuple(passed_over)),
        )
    return None if step is None else _same_checkpoint(folder, step, world), passed_over


def _same_checkpoint(folder: RunFolder, step: int, world: World) -> Checkpoint:
    """The checkpoint that rank 0 goes on from. Raises CheckpointError if this rank cannot read it."""
    good, passed_over = find_good(folder, at_step=step)
    if good is not None:
        return good
    why = f": {passed_over[0]}" if passed_over else ", where there is none"
    raise CheckpointError(
        f"{folder.checkpoint(step)}: rank 0 goes on from it, and rank {world.rank} cannot{why}",
        "is the run folder on a file system that all nodes share, and may this user read it on each?",
        ErrorFacts(cause="torn", damage=tuple(passed_over)),
    )
