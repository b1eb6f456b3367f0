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
    done, schedule = set(), [[] for _ in range(num_ranks)]
    while len(done) < 2 * num_ranks * num_micro:
        for rank, action in [next_action(rank, schedule, done, num_micro) for rank in range(num_ranks)]:
            if action is not None:
                schedule[rank].append(action)
                done.add(action)
    return schedule


def next_action(rank: int, schedule: list[list[Action]], done: set[Action], num_micro: int) -> tuple[int, Action | None]:
    """Return what a rank can run now: a backward pass if possible, else a forward pass if it may hold another one."""
    num_forward = sum(action.kind == "F" for action in schedule[rank])
    num_backward = len(schedule[rank]) - num_forward
    backward, forward = Action("B", rank, num_backward), Action("F", rank, num_forward)
    is_last = rank == len(schedule) - 1
    if num_backward < num_forward and (is_last or Action("B", rank + 1, num_backward) in done):
        return rank, backward
    has_input = num_forward < num_micro and (rank == 0 or Action("F", rank - 1, num_forward) in done)
    if has_input and num_forward - num_backward < len(schedule) - rank:
        return rank, forward
    return rank, None


def interleaved(num_ranks: int, num_micro: int, num_chunks: int) -> list[list[Action]]:
    """Return the actions of 1F1B with num_chunks stages on each rank: stage s is on rank s % num_ranks.

    Micro-batches, a multiple of num_ranks, go in groups of num_ranks. All forward passes of a group through the rank's
    first stage come before those through its second stage, and so on; backward it is the last stage that comes first.

    Time:    each rank waits 1/num_chunks of the time that it waits with gpipe.
    Memory:  rank r holds at most (num_chunks - 1) * num_ranks + 2 * (num_ranks - 1 - r) + 1 activations, each of one
             micro-batch in one stage.
    """
    num_passes, per_round = num_micro * num_chunks, num_ranks * num_chunks

    def passes(rank: int, kind: str, k: int) -> Action:
        """Return the rank's k-th pass of a kind."""
        chunk = k % per_round // num_ranks
        chunk = chunk if kind == "F" else num_chunks - 1 - chunk
        return Action(kind, chunk * num_ranks + rank, k // per_round * num_ranks + k % num_ranks)

    schedule = []
    for rank in range(num_ranks):
        ahead = min(num_passes, 2 * (num_ranks - rank - 1) + (num_chunks - 1) * num_ranks)
        actions = [passes(rank, "F", k) for k in range(ahead)]
        for k in range(num_passes - ahead):
            actions.append(passes(rank, "F", ahead + k))
            actions.append(passes(rank, "B", k))
        actions += [passes(rank, "B", k) for k in range(num_passes - ahead, num_passes)]
        schedule.append(tuple(actions))
    return tuple(schedule)


def bubble(num_ranks: int, num_micro: int, num_chunks: int = 1) -> float:
    """Return the part of the ranks' time that they wait, from 0 to 1; with num_chunks = 1 that of gpipe and 1F1B.

    Assumes: all ranks take the same time for a micro-batch, and messages take none.
    """
    return (num_ranks - 1) / (num_chunks * num_micro + num_ranks - 1)
