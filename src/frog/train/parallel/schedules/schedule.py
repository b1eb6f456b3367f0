"""Pipeline schedules as data: for each rank the order of its work. Needs no torch; print, draw and simulate them.

The layers are divided into stages, the batch into micro-batches. For each stage and micro-batch there is one action F
(forward) and one B (backward). A schedule that splits the backward pass has in B only the gradient of the stage's
input, for which the previous stage waits, and in W the gradient of its weights, for which no stage waits.

With p ranks, stage s is on rank s modulo p: with more stages than ranks, a micro-batch goes around several times.
Every schedule here takes a stage's micro-batches in ascending order, so a gradient is the same sum everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from frog.core.errors import ConfigError

Kind = Literal["F", "B", "W"]

NAMES = ("gpipe", "1f1b", "interleaved", "zero_bubble")


@dataclass(frozen=True)
class Action:
    """One stage's work on one micro-batch."""

    kind: Kind
    stage: int
    micro: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro}@{self.stage}"


@dataclass(frozen=True)
class Schedule:
    """The actions of each rank of the pipeline, in order."""

    name: str
    num_micro: int
    virtual_stages: int
    """Stages on each rank."""
    ranks: tuple[tuple[Action, ...], ...]

    @property
    def num_stages(self) -> int:
        return len(self.ranks) * self.virtual_stages

    @property
    def splits_backward(self) -> bool:
        """True if weight gradients are separate actions."""
        return any(action.kind == "W" for actions in self.ranks for action in actions)

    def rank_of(self, stage: int) -> int:
        """Return the rank that holds a stage."""
        return stage % len(self.ranks)

    def needs(self, action: Action) -> Action | None:
        """Return the action, usually on another rank, whose result this one needs; None at the pipeline's beginning."""
        kind, stage, micro = action.kind, action.stage, action.micro
        if kind == "F":
            return Action("F", stage - 1, micro) if stage > 0 else None
        if kind == "B":
            return Action("B", stage + 1, micro) if stage < self.num_stages - 1 else Action("F", stage, micro)
        return Action("B", stage, micro)


def gpipe(num_ranks: int, num_micro: int) -> Schedule:
    """All forward passes, then all backward passes: every activation is held until then. Source: Huang et al. 2019."""
    ranks = [
        [Action(kind, rank, micro) for kind in ("F", "B") for micro in range(num_micro)] for rank in range(num_ranks)
    ]
    return _schedule("gpipe", num_micro, 1, ranks)


def one_f_one_b(num_ranks: int, num_micro: int) -> Schedule:
    """A few forward passes to fill the pipeline, then one backward pass after each forward pass.

    The bubble is GPipe's, but rank r holds at most p - r activations, however many micro-batches there are.
    Source: Narayanan et al. 2019 (PipeDream); Fan et al. 2021 (DAPPLE).
    """
    ranks = [list(_alternate(num_micro, num_ranks - rank - 1, _plain(rank))) for rank in range(num_ranks)]
    return _schedule("1f1b", num_micro, 1, ranks)


def interleaved(num_ranks: int, num_micro: int, virtual_stages: int) -> Schedule:
    """1F1B with several thinner stages on each rank: the pipeline fills v times as fast, and sends v times as much.

    Micro-batches go in groups of p: a group passes through a rank's first stage, then through its second, and so on.
    Source: Narayanan et al. 2021, section 2.2.
    Raises:  ConfigError if the micro-batches do not form complete groups.
    """
    if num_micro % num_ranks:
        raise ConfigError(
            f"interleaved: {num_micro} micro-batches are not a multiple of {num_ranks} ranks",
            "they go through the pipeline in groups of the number of ranks",
        )
    ranks = []
    for rank in range(num_ranks):
        order = _interleaved_order(rank, num_ranks, num_micro, virtual_stages)
        warm_up = 2 * (num_ranks - rank - 1) + (virtual_stages - 1) * num_ranks
        ranks.append(list(_alternate(num_micro * virtual_stages, warm_up, order)))
    return _schedule("interleaved", num_micro, virtual_stages, ranks)


def zero_bubble(num_ranks: int, num_micro: int) -> Schedule:
    """1F1B with a split backward pass: weight gradients fill the bubbles.

    ZB-H1: rank r defers its weight gradients by r micro-batches, so that every rank has at most p unfinished
    micro-batches, the most that 1F1B has on any rank. Source: Qi et al. 2023, section 3.1.
    """
    ranks = []
    for rank in range(num_ranks):
        actions: list[Action] = []
        for action in _alternate(num_micro, num_ranks - rank - 1, _plain(rank)):
            actions.append(action)
            if action.kind == "B" and action.micro >= rank:
                actions.append(Action("W", rank, action.micro - rank))
        actions += [Action("W", rank, micro) for micro in range(max(0, num_micro - rank), num_micro)]
        ranks.append(actions)
    return _schedule("zero_bubble", num_micro, 1, ranks)


_MOST_PASSES = 100_000
"""Largest schedule: each pass is an object here."""


def make_schedule(name: str, num_ranks: int, num_micro: int, virtual_stages: int = 1) -> Schedule:
    """Return the schedule of this name; `virtual_stages` applies only to interleaved.

    Raises:  ConfigError if the name is unknown, or if there are fewer micro-batches than ranks.
    """
    if virtual_stages < 1:
        raise ConfigError(f"{name}: {virtual_stages} virtual stages", "a rank needs at least one stage")
    if num_ranks < 1 or num_micro < num_ranks:
        raise ConfigError(
            f"{name}: {num_micro} micro-batches for {num_ranks} stages",
            "a pipeline needs at least one stage, and at least one micro-batch per rank: fewer never fill it",
        )
    if num_ranks * num_micro * virtual_stages > _MOST_PASSES:
        raise ConfigError(
            f"{name}: {num_micro} micro-batches through {num_ranks} stages: more than {_MOST_PASSES:,} passes",
            "a smaller schedule shows the same pattern",
        )
    if name == "interleaved":
        return interleaved(num_ranks, num_micro, virtual_stages)
    simple = {"gpipe": gpipe, "1f1b": one_f_one_b, "zero_bubble": zero_bubble}
    if name not in simple:
        raise ConfigError(f"no schedule {name!r}", f"available: {', '.join(NAMES)}")
    return simple[name](num_ranks, num_micro)


def stage_layers(num_layers: int, num_stages: int) -> list[range]:
    """Return the layers of each stage: the same number, with one more on the first stages if they do not divide.

    Raises:  ConfigError if a stage would have no layer.
    """
    if num_layers < num_stages:
        raise ConfigError(
            f"{num_layers} layers for {num_stages} stages: each needs a layer", "a smaller strategy.pp, or fewer stages"
        )
    each, more = divmod(num_layers, num_stages)
    starts = [stage * each + min(stage, more) for stage in range(num_stages + 1)]
    return [range(start, end) for start, end in itertools.pairwise(starts)]


def problems(schedule: Schedule) -> list[str]:
    """Return a schedule's problems; empty if every action exists once, on its stage's rank, in time."""
    kinds: tuple[Kind, ...] = ("F", "B", "W") if schedule.splits_backward else ("F", "B")
    micros, faults = range(schedule.num_micro), []
    expected = {Action(kind, stage, m) for kind in kinds for stage in range(schedule.num_stages) for m in micros}
    seen: set[Action] = set()
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            if action in seen:
                faults.append(f"{action} occurs twice")
            if schedule.rank_of(action.stage) != rank:
                faults.append(f"{action} is on rank {rank}, but its stage on rank {schedule.rank_of(action.stage)}")
            seen.add(action)
    faults += [f"{action} is missing" for action in sorted(expected - seen, key=str)]
    faults += [f"{action} belongs to no stage or micro-batch" for action in sorted(seen - expected, key=str)]
    return faults or _deadlock(schedule)


def _deadlock(schedule: Schedule) -> list[str]:
    places = [0] * len(schedule.ranks)
    for rank, _ in in_order(schedule):
        places[rank] += 1
    return [
        f"rank {rank} waits for {schedule.needs(actions[place])} before {actions[place]}, which never runs"
        for rank, (place, actions) in enumerate(zip(places, schedule.ranks, strict=True))
        if place < len(actions)
    ]


def in_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """Yield all actions with their ranks, each after the one it needs; end early at a deadlock."""
    done: set[Action] = set()
    places = [0] * len(schedule.ranks)
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(schedule.ranks):
            while places[rank] < len(actions):
                action = actions[places[rank]]
                needed = schedule.needs(action)
                own = Action("F", action.stage, action.micro)
                if (needed is not None and needed not in done) or (action.kind == "B" and own not in done):
                    break
                done.add(action)
                places[rank], moved = places[rank] + 1, True
                yield rank, action


def _schedule(name: str, num_micro: int, virtual_stages: int, ranks: list[list[Action]]) -> Schedule:
    return Schedule(name, num_micro, virtual_stages, tuple(tuple(actions) for actions in ranks))


def _alternate(count: int, warm_up: int, order: Callable[[Kind, int], Action]) -> Iterator[Action]:
    """Yield `warm_up` forward passes, then one forward and one backward in turn, then the remaining backward passes."""
    ahead = min(warm_up, count)
    yield from (order("F", k) for k in range(ahead))
    for k in range(count):
        if ahead + k < count:
            yield order("F", ahead + k)
        yield order("B", k)


def _plain(stage: int) -> Callable[[Kind, int], Action]:
    return lambda kind, k: Action(kind, stage, k)


def _interleaved_order(rank: int, num_ranks: int, num_micro: int, virtual: int) -> Callable[[Kind, int], Action]:
    """Return a rank's k-th forward or backward pass: groups of p micro-batches, each through all stages."""

    def order(kind: Kind, k: int) -> Action:
        group, within = divmod(k, num_ranks * virtual)
        turn, offset = divmod(within, num_ranks)
        chunk = turn if kind == "F" else virtual - 1 - turn
        return Action(kind, chunk * num_ranks + rank, group * num_ranks + offset)

    return order
