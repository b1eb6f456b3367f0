"""Training goes on when ranks are lost, and takes in others: `comm.on_loss = "shrink"`.

Whichever collective ends with a change of the world, all ranks that are left go on from the same step: with ddp a step
changes nothing before every rank has its gradient; where ranks hold parts of the state they keep copies of it as it was
after the last step, their neighbour's too (`copies.py`). They make a world, deal the step's samples anew, and take it
again. No process starts again. A rank that comes in is handed the state between two steps.

    change      survivors agree on who is there (frog.comm.elastic.survivors)
    hand over   whoever has just come gets weights, moments and position, and proves their hash
    go on       with the step that was not completed

Comm:    without a loss one all-gather a step more, of its sample ids. With ddp a loss costs a few messages of some
         bytes each. With a newcomer, or a shard that is dealt anew, all-reduces of weights and moments: three times the
         parameters' bytes.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from frog.comm.collectives.errors import CollectiveError
from frog.comm.collectives.rendezvous import machine
from frog.comm.elastic.agreement import LeftOut, WorldChanged
from frog.comm.elastic.membership import behind
from frog.comm.local_shard import LocalShard
from frog.core.env import SURVIVES, attempt_number, launch_dir
from frog.core.errors import CommError, LostError, RunError
from frog.core.facts import ErrorFacts
from frog.core.processes import is_alive
from frog.core.schema import write_typed
from frog.parallel.build import build_mesh
from frog.runs.heartbeat import keep_heartbeats, read_heartbeat
from frog.runs.launch_request import LaunchRequest
from frog.train.elastic.copies import Copies
from frog.train.elastic.handover import Handover, hand_over
from frog.train.elastic.order import SharedOrder
from frog.train.log import RankLog
from frog.train.loop import introduce, take_steps
from frog.train.parts import Parts, build_parts
from frog.train.setup import Run, open_events
from frog.train.state import TrainState, weights_sha256
from frog.train.workload import Workload

_GONE_S = 10.0
"""How long those who were lost may take to be gone."""

_LOOK_S = 0.01

_MOST_TRIES = 3
"""Of a step that is not completed though nobody is lost: somebody is later each time than ranks wait."""


@dataclass
class Held:
    """What a rank has of the run in one world: the loop's parts, the members, and copies for when these change."""

    parts: Parts
    members: tuple[int, ...]
    copies: Copies | None
    """Of a strategy in which ranks hold what no other does."""


def train_in_each_world(run: Run, workload: Workload) -> dict[str, Any]:
    """`frog.train.loop.train` for a run that continues when ranks are lost: take steps again in each new world."""
    held = _build(run, workload) if not run.joins else _enter_next(run, workload, None, None)
    introduce(run, workload, held.parts)
    try:
        while True:
            try:
                _announce(run)
                return take_steps(run, workload, held.parts)
            except (CommError, CollectiveError) as error:  # the world has changed, or else it is raised again
                held = _enter_next(run, workload, held, error)
    finally:
        held.parts.close(grace_s=10)


def _build(run: Run, workload: Workload, kept: Handover | None = None) -> Held:
    """The loop's parts in the world of now, from the checkpoint or from what the others handed over."""
    member = run.membership
    assert member is not None
    restore = None if kept is None else partial(_take_over, kept)
    parts = build_parts(
        run, workload, restore, lambda link: SharedOrder(link, run.world, member.has_join_request, member.admit)
    )
    copies = None
    try:
        if run.config.strategy.entry.splits:
            copies = Copies(run.world, parts.strategy, parts.scaler)
            copies.keep()
            parts.after_step = copies.keep  # whoever survives a step continues from here
        member.open_endpoint()
    except BaseException:
        parts.close(grace_s=0)
        raise
    return Held(parts, member.members, copies)


def _take_over(kept: Handover, state: TrainState) -> str:
    return state.take_over(kept.fill, kept.scalars)


def _announce(run: Run) -> None:
    """Let the launcher know that this run continues when ranks are lost, as from here on it does. A collective call."""
    if run.world.is_main and (folder := launch_dir()) is not None:
        (folder / SURVIVES).touch()
    run.world.barrier()  # nobody is lost in a step of which the launcher would think otherwise


def _enter_next(run: Run, workload: Workload, old: Held | None, error: BaseException | None) -> Held:
    """After a change of the world: the same state in the new one. `old` is what this rank has of it.

    Raises:  `error`, if no change of the world is behind it; LostError if the others continue without this rank.
    """
    began_ns = time.monotonic_ns()
    while True:
        if error is not None and behind(error, WorldChanged) is None:
            if (left_out := behind(error, LeftOut)) is not None:
                raise LostError(str(left_out), facts=ErrorFacts(cause="timed_out", op="rendezvous")) from error
            raise error
        _bound_tries(run, old, error)
        try:
            return _enter(run, workload, old, began_ns)
        except (CommError, WorldChanged) as further:
            error = further


def _bound_tries(run: Run, old: Held | None, error: BaseException | None) -> None:
    """Raise CommError, on all ranks alike, when a step has failed too often in worlds that lost nobody."""
    member = run.membership
    if old is None or member is None or not isinstance(error, CommError) or member.members != member.survivors.members:
        return
    step = old.parts.state.step + 1
    member.tries[step] += 1
    if member.tries[step] >= _MOST_TRIES:
        raise CommError(
            f"step {step} was taken {_MOST_TRIES} times and not completed, though no rank is lost: {error.what}",
            f"a rank may be later than the others wait: give train.timeout_s (now {member.timeout_s:g}) more, and see"
            " with frog diagnose which one it is",
            replace(error.facts, cause="timed_out"),
        ) from None


def _enter(run: Run, workload: Workload, old: Held | None, began_ns: int) -> Held:
    member = run.membership
    assert member is not None
    if old is not None:
        old.parts.close(grace_s=0)
    before = old.members if old is not None else ()
    run.world = world = member.renew()
    mine = set(world.gather_rows(torch.tensor([os.getpid()])).flatten().tolist())
    _give_way(run, before, member.members, mine)
    if world.is_main:
        left_out = [rank for rank, identity in enumerate(before) if identity in member.survivors.left_out]
        _end_left_out(run, left_out, mine)
    run.mesh = build_mesh(run.config, world)
    split = bool(run.config.strategy.entry.splits)
    kept = hand_over(world, _brought(old, before, member.members), split, _shapes(old), _scalars(run, old))
    run.attempt, member.tries = kept.scalars["attempt"], Counter(kept.scalars["tries"])
    _reopen(run)
    workload.renew_model()
    held = _build(run, workload, kept)
    parts = held.parts
    for name in ("scores", "scored_step", "saved_step", "owes_checkpoint"):
        setattr(parts, name, kept.scalars[name])
    if not kept.everybody_has_all:
        try:
            _prove(run, held)
        except BaseException:
            parts.close(grace_s=0)
            raise
    _report(run, parts, set(before) or set(member.members) - {member.identity}, began_ns)
    return held


def _give_way(run: Run, before: Sequence[int], members: Sequence[int], mine: Set[int]) -> None:
    """Return when this world may go on: fewer of its run are alive outside of it. Two worlds never go on in one folder.

    `mine` are the processes of this world.

    A rank whose connections were all closed takes the others for lost, as they do it: it must not be the one to go on.
    Of two halves of the world `before` the one with the first rank goes on, as where they agree on who is left.

    Raises:  LostError if the others go on, or have gone on to their end.
    """
    left = [identity for identity in before if identity in members]
    is_half, has_first = 2 * len(left) == len(before), left[:1] == list(before[:1])
    if 2 * len(left) > len(before) or (is_half and has_first):
        return
    until_s = time.monotonic() + _GONE_S
    seen: set[int] = set()
    while True:
        beats = _beats(run)
        others = {pid for pid, status in beats.items() if status == "running" and is_alive(pid)} - mine
        ended_well = {pid for pid in seen if beats.get(pid) in ("completed", "interrupted")}
        if not ended_well and (not others or (-len(mine), is_half, min(mine)) < (-len(others), False, min(others))):
            return
        if ended_well or time.monotonic() > until_s:
            raise LostError(
                f"this rank was cut off: {len(others | ended_well)} others of its run went on, {len(mine)} are here",
                facts=ErrorFacts(cause="closed", op="rendezvous"),
            )
        seen |= others
        time.sleep(_LOOK_S)


def _beats(run: Run) -> dict[int, str]:
    """How each of the run's processes on this machine is, by its heartbeat, also by those put aside; by process."""
    beats = [read_heartbeat(path) for path in run.folder.heartbeats.rglob("rank_*.json")]
    ours = sorted((beat for beat in beats if beat and beat.machine == machine()), key=lambda beat: beat.unix_ns)
    return {beat.pid: beat.status for beat in ours}


def _end_left_out(run: Run, ranks: Sequence[int], mine: Set[int]) -> None:
    """Have the launcher end those of the last world's ranks that were silent and are still there: they are stopped.

    Where that world was entered in vain one of `mine` may have taken over the heartbeat of one that was left out.
    """
    folder = launch_dir()
    if folder is None:
        return
    for rank in ranks:
        beat = read_heartbeat(run.folder.heartbeat(rank))
        if beat is not None and beat.pid not in mine and beat.machine == machine() and is_alive(beat.pid):
            write_typed(folder / "requests" / f"end_rank_{beat.pid}.json", LaunchRequest(act="end_rank", pid=beat.pid))


def _brought(old: Held | None, before: Sequence[int], members: Sequence[int]) -> list[LocalShard] | None:
    """What this rank has of the state after the last step that was completed; None if it has just come."""
    if old is None:
        return None
    if old.copies is None:
        return old.parts.state.shards()
    return old.copies.brought([rank for rank, identity in enumerate(before) if identity not in members])


def _shapes(old: Held | None) -> dict[str, tuple[int, ...]]:
    if old is None:
        return {}
    return old.copies.shapes if old.copies else {shard.name: shard.whole for shard in old.parts.state.shards()}


def _scalars(run: Run, old: Held | None) -> dict[str, object]:
    """What the first member tells the others."""
    if old is None or run.membership is None:
        return {}
    parts = old.parts
    assert isinstance(parts.order, SharedOrder)
    owes = parts.owes_checkpoint or not parts.saver.is_settled
    return {
        **parts.state.scalars(parts.order.link_after(parts.state.step)),
        **(old.copies.scalars if old.copies is not None else {}),
        "attempt": secrets.token_hex(4),  # a checkpoint of the world before may still be on its way
        "tries": dict(run.membership.tries),
        "scores": parts.scores,
        "scored_step": parts.scored_step,
        "saved_step": None if owes else parts.saved_step,
        "owes_checkpoint": owes,
    }


def _reopen(run: Run) -> None:
    """Go on in the files of the rank that this is now. The heartbeats of the world before are put aside."""
    world, epoch = run.world, run.membership.survivors.epoch if run.membership else 0
    if world.is_main:
        keep_heartbeats(run.folder, attempt_number(), epoch)
    world.barrier()
    run.events.close()
    run.log.close()
    run.events = open_events(run.folder, world, epoch)
    run.log = RankLog(run.folder.rank_log(world.rank), world.rank, show=world.is_main and run.shows)
    run.changed(run)


def _prove(run: Run, held: Held) -> None:
    """Raise RunError unless all ranks hold the same weights, bit for bit; and moments, where each has all of them."""
    parts = held.parts
    shards = [(shard.name, shard.tensor) for shard in parts.state.shards()]
    digest = weights_sha256(parts.strategy.whole() if held.copies is not None else shards)
    own = torch.from_numpy(np.frombuffer(bytes.fromhex(digest), np.uint8).copy())
    rows = run.world.gather_rows(own)
    if not (rows == rows[0]).all():
        raise RunError(f"rank {run.world.rank}: the state that was handed over is not what the others hold")


def _report(run: Run, parts: Parts, before: set[int], began_ns: int) -> None:
    member, step, took_ns = run.membership, parts.state.step, time.monotonic_ns() - began_ns
    assert member is not None
    members = list(member.survivors.members)
    lost, joined = sorted(before - set(members)), sorted(set(members) - before)
    run.events.emit(
        "membership", step=step, epoch=member.survivors.epoch, identity=member.identity,
        members=members, lost=lost, joined=joined, took_ns=took_ns,
    )  # fmt: skip
    changes = ((lost, "is lost", "are lost"), (joined, "has joined", "have joined"))
    words = [f"{_named(who)} {one if len(who) == 1 else many}" for who, one, many in changes if who]
    run.log.say(
        f"{'; '.join(words) or 'nobody was lost, nobody came'}: a world of {len(members)} goes on after step {step}, "
        f"{took_ns / 1e9:.2f} s later"
    )


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"
