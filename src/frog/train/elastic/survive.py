"""Training that continues when ranks are lost, and lets others join: `comm.on_loss = "shrink"`.

Whichever collective fails, all remaining ranks continue from the same step: with ddp, a step changes nothing before
every rank has its gradient; with sharded state, each rank keeps a copy of its own and its neighbor's shards from the
last completed step (`copies.py`). The ranks form a new world, redistribute the step's samples, and run the step again.
No process restarts. A joining rank receives the state between two steps.

    change      the survivors agree on the members (frog.train.comm.elastic.survivors)
        hand over   joining ranks receive weights, moments and data position, and verify the hash
        continue    with the step that was not completed

Comm:    one more all-gather per step, of its sample ids. With ddp, a loss costs a few messages of some bytes each. A
         joining rank, or sharding again, costs all-reduces of weights and moments: three times the parameters' bytes.
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

from frog.core.env import SURVIVES, attempt_number, launch_dir, machine
from frog.core.errors import CommError, ErrorFacts, LostError, RunError
from frog.core.processes import is_alive
from frog.core.runs.heartbeat import archive_heartbeats, read_heartbeat
from frog.core.runs.launch_request import LaunchRequest
from frog.core.schema import write_typed
from frog.train.comm.collectives.errors import CollectiveError
from frog.train.comm.elastic.agreement import LeftOut, WorldChanged
from frog.train.comm.elastic.membership import behind
from frog.train.comm.local_shard import LocalShard
from frog.train.elastic.copies import Copies
from frog.train.elastic.handover import Handover, hand_over
from frog.train.elastic.shared_order import SharedOrder
from frog.train.log import RankLog
from frog.train.loop import introduce, take_steps
from frog.train.parallel.build_strategy import build_mesh
from frog.train.parts import Parts, build_parts
from frog.train.setup import Run, open_events
from frog.train.state import TrainState, weights_sha256
from frog.train.workload import Workload

_GONE_S = 10.0
"""Seconds to wait for lost ranks to exit."""

_LOOK_S = 0.01

_MOST_TRIES = 3
"""Attempts at a step that fails although no rank is lost: each time, one rank is later than the timeout."""


@dataclass
class Held:
    """A rank's state in one world: the loop's parts, the members, and copies for the next membership change."""

    parts: Parts
    members: tuple[int, ...]
    copies: Copies | None
    """Copies for a strategy that shards the state; None for replicated state."""


def train_in_each_world(run: Run, workload: Workload) -> dict[str, Any]:
    """Run `frog.train.loop.train` for an elastic run: continue with the remaining steps in each new world."""
    held = _build(run, workload) if not run.joins else _enter_next(run, workload, None, None)
    introduce(run, workload, held.parts)
    try:
        while True:
            try:
                _announce(run)
                return take_steps(run, workload, held.parts)
            except (CommError, CollectiveError) as error:  # raised again unless the world has changed
                held = _enter_next(run, workload, held, error)
    finally:
        held.parts.close(grace_s=10)


def _build(run: Run, workload: Workload, kept: Handover | None = None) -> Held:
    """Build the loop's parts in the current world, from a checkpoint or from the state that the others hold."""
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
            copies.update()
            parts.after_step = copies.update  # the survivors of the next step continue from here
        member.open_endpoint()
    except BaseException:
        parts.close(grace_s=0)
        raise
    return Held(parts, member.members, copies)


def _take_over(kept: Handover, state: TrainState) -> str:
    return state.take_over(kept.fill, kept.scalars)


def _announce(run: Run) -> None:
    """Tell the launcher that from here on this run continues when ranks are lost. A collective call."""
    if run.world.is_main and (folder := launch_dir()) is not None:
        (folder / SURVIVES).touch()
    run.world.barrier()  # the launcher must know before the first step can lose a rank


def _enter_next(run: Run, workload: Workload, old: Held | None, error: BaseException | None) -> Held:
    """Enter the next world with the same state. `old` is the part of the state that this rank holds.

    Raises:  `error`, if no membership change caused it; LostError if the others continue without this rank.
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
    """Raise CommError on all ranks when a step has failed too often without the loss of a rank."""
    member = run.membership
    if old is None or member is None or not isinstance(error, CommError) or member.members != member.survivors.members:
        return
    step = old.parts.state.step + 1
    member.tries[step] += 1
    if member.tries[step] >= _MOST_TRIES:
        raise CommError(
            f"step {step} failed {_MOST_TRIES} times although no rank was lost: {error.what}",
            f"a rank may be too slow: increase train.timeout_s (now {member.timeout_s:g}), and find the rank with"
            " frog diagnose",
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
    _yield_to_larger_part(run, before, member.members, mine)
    if world.is_main:
        left_out = [rank for rank, identity in enumerate(before) if identity in member.survivors.left_out]
        _end_left_out(run, left_out, mine)
    run.mesh = build_mesh(run.config, world)
    split = bool(run.config.strategy.entry.splits)
    kept = hand_over(world, _shards_of(old, before, member.members), split, _shapes(old), _scalars(run, old))
    run.attempt, member.tries = kept.scalars["attempt"], Counter(kept.scalars["tries"])
    _reopen(run)
    workload.renew_model()
    held = _build(run, workload, kept)
    parts = held.parts
    for name in ("scores", "scored_step", "saved_step", "owes_checkpoint"):
        setattr(parts, name, kept.scalars[name])
    if not kept.all_ranks_complete:
        try:
            _check_equal(run, held)
        except BaseException:
            parts.close(grace_s=0)
            raise
    _report(run, parts, set(before) or set(member.members) - {member.identity}, began_ns)
    return held


def _yield_to_larger_part(run: Run, before: Sequence[int], members: Sequence[int], mine: Set[int]) -> None:
    """Return if this world may continue: it is the largest part of the run. Two worlds never continue in one folder.

    `mine` are the processes of this world.

    A rank whose connections were all closed considers the others lost, and they consider it lost: it must not continue.
    If the world `before` splits into two halves, the half with the first rank continues, as in the members' agreement.

    Raises:  LostError if the others continue or have completed the run.
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
                f"this rank was cut off: {len(others | ended_well)} ranks continue elsewhere, {len(mine)} are here",
                facts=ErrorFacts(cause="closed", op="rendezvous"),
            )
        seen |= others
        time.sleep(_LOOK_S)


def _beats(run: Run) -> dict[int, str]:
    """Return the status of the run's processes on this machine, from current and archived heartbeats, by pid."""
    beats = [read_heartbeat(path) for path in run.folder.heartbeats.rglob("rank_*.json")]
    ours = sorted((beat for beat in beats if beat and beat.machine == machine()), key=lambda beat: beat.unix_ns)
    return {beat.pid: beat.status for beat in ours}


def _end_left_out(run: Run, ranks: Sequence[int], mine: Set[int]) -> None:
    """Ask the launcher to end the silent ranks of the last world whose processes still exist: they are stopped.

    After a failed attempt to enter a world, one of `mine` may own the heartbeat file of a rank that was left out.
    """
    folder = launch_dir()
    if folder is None:
        return
    for rank in ranks:
        beat = read_heartbeat(run.folder.heartbeat(rank))
        if beat is not None and beat.pid not in mine and beat.machine == machine() and is_alive(beat.pid):
            write_typed(folder / "requests" / f"end_rank_{beat.pid}.json", LaunchRequest(act="end_rank", pid=beat.pid))


def _shards_of(old: Held | None, before: Sequence[int], members: Sequence[int]) -> list[LocalShard] | None:
    """Return this rank's shards after the last completed step; None if it has just joined."""
    if old is None:
        return None
    if old.copies is None:
        return old.parts.state.shards()
    return old.copies.shards_after_loss([rank for rank, identity in enumerate(before) if identity not in members])


def _shapes(old: Held | None) -> dict[str, tuple[int, ...]]:
    if old is None:
        return {}
    return old.copies.shapes if old.copies else {shard.name: shard.whole for shard in old.parts.state.shards()}


def _scalars(run: Run, old: Held | None) -> dict[str, object]:
    """Return the scalars that the first member sends to the others."""
    if old is None or run.membership is None:
        return {}
    parts = old.parts
    assert isinstance(parts.order, SharedOrder)
    owes = parts.owes_checkpoint or not parts.saver.is_settled
    return {
        **parts.state.scalars(parts.order.link_after(parts.state.step)),
        **(old.copies.scalars if old.copies is not None else {}),
        "attempt": secrets.token_hex(4),  # the last world may still be writing a checkpoint
        "tries": dict(run.membership.tries),
        "scores": parts.scores,
        "scored_step": parts.scored_step,
        "saved_step": None if owes else parts.saved_step,
        "owes_checkpoint": owes,
    }


def _reopen(run: Run) -> None:
    """Reopen the events and the log under the new rank number. Archives the heartbeats of the last world."""
    world, epoch = run.world, run.membership.survivors.epoch if run.membership else 0
    if world.is_main:
        archive_heartbeats(run.folder, attempt_number(), epoch)
    world.barrier()
    run.events.close()
    run.log.close()
    run.events = open_events(run.folder, world, epoch)
    run.log = RankLog(run.folder.rank_log(world.rank), world.rank, show=world.is_main and run.shows)
    run.changed(run)


def _check_equal(run: Run, held: Held) -> None:
    """Raise RunError unless all ranks hold the same weights, bit for bit, and the same replicated moments."""
    parts = held.parts
    shards = [(shard.name, shard.tensor) for shard in parts.state.shards()]
    digest = weights_sha256(parts.strategy.whole() if held.copies is not None else shards)
    own = torch.from_numpy(np.frombuffer(bytes.fromhex(digest), np.uint8).copy())
    rows = run.world.gather_rows(own)
    if not (rows == rows[0]).all():
        raise RunError(f"rank {run.world.rank}: the state differs between ranks after the handover")


def _report(run: Run, parts: Parts, before: set[int], began_ns: int) -> None:
    member, step, took_ns = run.membership, parts.state.step, time.monotonic_ns() - began_ns
    assert member is not None
    members = list(member.survivors.members)
    lost, joined = sorted(before - set(members)), sorted(set(members) - before)
    run.events.emit(
        "membership", step=step, epoch=member.survivors.epoch, identity=member.identity,
        members=members, lost=lost, joined=joined, took_ns=took_ns,
    )  # fmt: skip
    changes = [f"{_named(ranks)} {change}" for ranks, change in ((lost, "lost"), (joined, "joined")) if ranks]
    run.log.say(
        f"{'; '.join(changes) or 'membership unchanged'}: continuing with {len(members)} "
        f"rank{'s' if len(members) > 1 else ''} after step {step} (took {took_ns / 1e9:.2f} s)"
    )


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"
