"""Pipeline schedules as data: each rank's forward and backward passes, in order."""

from typing import NamedTuple


class Action(NamedTuple):
    """A stage's forward ("F") or backward ("B") pass of one micro-batch. Stages and micro-batches count from 0."""

    kind: str
    stage: int
    micro: int


def gpipe(num_ranks: int, num_micro: int) -> list[list[Action]]:
    """Return for each rank all its forward passes, then all its backward passes."""
    return [
        [Action(kind, rank, micro) for kind in ("F", "B") for micro in range(num_micro)] for rank in range(num_ranks)
    ]


def one_f_one_b(num_ranks: int, num_micro: int) -> list[list[Action]]:
    """Return for each rank: some forward passes, then one forward and one backward pass in turn, then the rest.

    Time:    as short as gpipe's, for any number of micro-batches, also fewer than ranks.
    Memory:  rank r holds the activations of at most num_ranks - r micro-batches.
    """
    schedule = []
    for rank in range(num_ranks):
        forward = [Action("F", rank, micro) for micro in range(num_micro)]
        backward = [Action("B", rank, micro) for micro in range(num_micro)]
        schedule.append(alternate(forward, backward, rank))
    return schedule


def alternate(forward: list[Action], backward: list[Action], ahead: int) -> list[Action]:
    """Return `ahead` forward passes, if there are as many; then one of each in turn, and the rest."""
    ahead = min(ahead, len(forward))
    actions = forward[:ahead]
    for action in backward:
        actions += [*forward[ahead : ahead + 1], action]
        ahead += 1
    return actions


def interleaved(num_ranks: int, num_micro: int, num_chunks: int) -> list[list[Action]]:
    """Return the actions of 1F1B with num_chunks stages on each rank: stage s is on rank s % num_ranks.

    Micro-batches, a multiple of num_ranks, go in groups of num_ranks. All forward passes of a group through the rank's
    first stage come before those through its second stage, and so on; backward it is the last stage that comes first.

    Time:    each rank waits 1/num_chunks of the time that it waits with gpipe.
    Memory:  rank r holds at most (num_chunks - 1) * num_ranks + 2 * (num_ranks - 1 - r) + 1 activations, each of one
             micro-batch in one stage.
    """
    schedule = []
    for rank in range(num_ranks):
        stages = [rank + chunk * num_ranks for chunk in range(num_chunks)]
        groups = [range(first, first + num_ranks) for first in range(0, num_micro, num_ranks)]
        forward = [Action("F", stage, micro) for group in groups for stage in stages for micro in group]
        backward = [Action("B", stage, micro) for group in groups for stage in reversed(stages) for micro in group]
        schedule.append(alternate(forward, backward, (num_chunks - 1) * num_ranks + 2 * (num_ranks - 1 - rank)))
    return schedule


def bubble(num_ranks: int, num_micro: int, num_chunks: int = 1) -> float:
    """Return the part of the ranks' time that they wait, from 0 to 1; with num_chunks = 1 that of gpipe and 1F1B.

    Assumes: all ranks take the same time for a micro-batch, and messages take none.
    """
    return (num_ranks - 1) / (num_chunks * num_micro + num_ranks - 1)
