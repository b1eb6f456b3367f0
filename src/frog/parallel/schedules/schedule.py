"""Pipeline schedules as data: for each rank the order in which it works. No torch: print, draw and simulate them.

The layers are cut into stages, the batch into micro-batches. For each stage and micro-batch there is one action F
(forward) and one B (backward); a schedule that splits the backward pass has in B the gradient of the stage's input
alone, which the stage before waits for, and in W the gradient of its weights, for which nobody waits.

With p ranks stage s lies on rank s modulo p: with more stages than ranks a micro-batch goes round several times.
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
    """What each rank of the pipeline does, in order."""

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
        """Whether weight gradients are actions of their own."""
        return any(action.kind == "W" for actions in self.ranks for action in actions)

    def rank_of(self, stage: int) -> int:
        """The rank that holds a stage."""
        return stage % len(self.ranks)

    def needs(self, action: Action) -> Action | None:
        """The action, mostly another rank's, whose result this one works on; None at the pipeline's beginning."""
        kind, stage, micro = action.kind, action.stage, action.micro
        if kind == "F":
            return Action("F", stage - 1, micro) if stage > 0 else None
        if kind == "B":
            return Action("B", stage + 1, micro) if stage < self.num_stages - 1 else Action("F", stage, micro)
        return Action("B", stage, micro)


def gpipe(num_ranks: int, num_micro: int) -> Schedule:
    """All forward passes, then all backward passes: every activation is held at once. Source: Huang et al. 2019."""
    ranks = [
        [Action(kind, rank, micro) for kind in ("F", "B") for micro in range(num_micro)] for rank in range(num_ranks)
    ]
    return _schedule("gpipe", num_micro, 1, ranks)


def one_f_one_b(num_ranks: int, num_micro: int) -> Schedule:
    """A few forward passes to fill the pipeline, then one backward pass after each forward pass.

    The bubble is GPipe's, but rank r holds p - r activations at most, however many micro-batches there are.
    Source: Narayanan et al. 2019 (PipeDream); Fan et al. 2021 (DAPPLE).
    """
    ranks = [list(_alternate(num_micro, num_ranks - rank - 1, _plain(rank))) for rank in range(num_ranks)]
    return _schedule("1f1b", num_micro, 1, ranks)


def interleaved(num_ranks: int, num_micro: int, virtual_stages: int) -> Schedule:
    """1F1B with several thinner stages on each rank: the pipeline fills v times as fast, and v times as much is sent.

    Micro-batches go in groups of p: a group passes through a rank's first stage, then through its second, and so on.
    Source: Narayanan et al. 2021, section 2.2.
    Raises:  ConfigError if the micro-batches do not make whole groups.
    """
    if num_micro % num_ranks:
        raise ConfigError(
            f"interleaved: {num_micro} micro-batches are no multiple of {num_ranks} ranks",
            "they go through the pipeline in groups of as many as there are ranks",
        )
    ranks = []
    for rank in range(num_ranks):
        order = _interleaved_order(rank, num_ranks, num_micro, virtual_stages)
        warm_up = 2 * (num_ranks - rank - 1) + (virtual_stages - 1) * num_ranks
        ranks.append(list(_alternate(num_micro * virtual_stages, warm_up, order)))
    return _schedule("interleaved", num_micro, virtual_stages, ranks)


def zero_bubble(num_ranks: int, num_micro: int) -> Schedule:
    """1F1B whose backward pass is split: weight gradients fill what were bubbles.

    ZB-H1: rank r puts its weight gradients off by r micro-batches, so that every rank has at most p micro-batches
    that are begun and not ended, the most that 1F1B has on any rank. Source: Qi et al. 2023, section 3.1.
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
"""Of a schedule: each pass is an object here."""


def make_schedule(name: str, num_ranks: int, num_micro: int, virtual_stages: int = 1) -> Schedule:
    """The schedule of this name; `virtual_stages` counts for interleaved alone.

    Raises:  ConfigError if there is none, or fewer micro-batches than ranks.
    """
    if virtual_stages < 1:
        raise ConfigError(f"{name}: {virtual_stages} virtual stages", "a rank holds one stage at least")
    if num_ranks < 1 or num_micro < num_ranks:
        raise ConfigError(
            f"{name}: {num_micro} micro-batches for {num_ranks} stages",
            "a pipeline needs a stage at least, and as many micro-batches as it has ranks: fewer never fill it",
        )
    if num_ranks * num_micro * virtual_stages > _MOST_PASSES:
        raise ConfigError(
            f"{name}: {num_micro} micro-batches through {num_ranks} stages: more than {_MOST_PASSES:,} passes",
            "a schedule of fewer shows the same",
        )
    if name == "interleaved":
        return interleaved(num_ranks, num_micro, virtual_stages)
    simple = {"gpipe": gpipe, "1f1b": one_f_one_b, "zero_bubble": zero_bubble}
    if name not in simple:
        raise ConfigError(f"no schedule {name!r}", f"there are {', '.join(NAMES)}")
    return simple[name](num_ranks, num_micro)


def stage_layers(num_layers: int, num_stages: int) -> list[range]:
    """Which layers each stage holds: equally many, and one more on the first few where they do not divide.

    Raises:  ConfigError if some stage would have none.
    """
    if num_layers < num_stages:
        raise ConfigError(
            f"{num_layers} layers for {num_stages} stages: each needs a layer", "a smaller strategy.pp, or fewer stages"
        )
    each, more = divmod(num_layers, num_stages)
    starts = [stage * each + min(stage, more) for stage in range(num_stages + 1)]
    return [range(start, end) for start, end in itertools.pairwise(starts)]


def problems(schedule: Schedule) -> list[str]:
    """What keeps a schedule from running; empty if every action is there once, on its stage's rank, in time."""
    kinds: tuple[Kind, ...] = ("F", "B", "W") if schedule.splits_backward else ("F", "B")
    micros, found = range(schedule.num_micro), []
    expected = {Action(kind, stage, m) for kind in kinds for stage in range(schedule.num_stages) for m in micros}
    seen: set[Action] = set()
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            if action in seen:
                found.append(f"{action} is there twice")
            if schedule.rank_of(action.stage) != rank:
                found.append(f"{action} is on rank {rank}, its stage on rank {schedule.rank_of(action.stage)}")
            seen.add(action)
    found += [f"{action} is missing" for action in sorted(expected - seen, key=str)]
    found += [f"{action} belongs to no stage or micro-batch" for action in sorted(seen - expected, key=str)]
    return found or _deadlock(schedule)


def _deadlock(schedule: Schedule) -> list[str]:
    places = [0] * len(schedule.ranks)
    for rank, _ in in_order(schedule):
        places[rank] += 1
    return [
        f"rank {rank} waits for {schedule.needs(actions[place])} before {actions[place]}, which never comes"
        for rank, (place, actions) in enumerate(zip(places, schedule.ranks, strict=True))
        if place < len(actions)
    ]


def in_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """All actions with their ranks, each after what it needs; ends early where ranks wait for each other for ever."""
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
    """`warm_up` forward passes, then one of each as long as there are any, then the backward passes that are left."""
    ahead = min(warm_up, count)
    yield from (order("F", k) for k in range(ahead))
    for k in range(count):
        if ahead + k < count:
            yield order("F", ahead + k)
        yield order("B", k)


def _plain(stage: int) -> Callable[[Kind, int], Action]:
    return lambda kind, k: Action(kind, stage, k)


def _interleaved_order(rank: int, num_ranks: int, num_micro: int, virtual: int) -> Callable[[Kind, int], Action]:
    """A rank's k-th forward or backward pass: groups of p micro-batches, each through one stage after the other."""

    def order(kind: Kind, k: int) -> Action:
        group, within = divmod(k, num_ranks * virtual)
        turn, offset = divmod(within, num_ranks)
        chunk = turn if kind == "F" else virtual - 1 - turn
        return Action(kind, chunk * num_ranks + rank, group * num_ranks + offset)

    return order
