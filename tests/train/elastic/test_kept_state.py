"""The state of a world that changes, on ranks that are threads: copies on neighbors, the handover, the shared order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from harness import LIMIT_S
from torch import Tensor

from frog.core.errors import CommError
from frog.train.comm.local_shard import LocalShard, assemble
from frog.train.elastic.copies import Copies
from frog.train.elastic.handover import hand_over
from frog.train.elastic.shared_order import SharedOrder
from frog.train.order_proof import next_link


class ThreadsWorld:
    """One rank of a world of threads, which exchange objects through a list. It is also its own axis."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, sent: list[Any]) -> None:
        self.rank, self.size, self._barrier, self._sent = rank, size, barrier, sent
        self.device, self.is_main, self.axis = torch.device("cpu"), rank == 0, self
        self.num_reduced = 0

    def gather_objects(self, value: Any) -> list[Any]:
        self._sent[self.rank] = value
        self._barrier.wait()
        everyone = list(self._sent)
        self._barrier.wait()
        return everyone

    def gather_rows(self, row: Tensor) -> Tensor:
        return torch.stack(self.gather_objects(row.clone()))

    def from_main(self, value: Any) -> Any:
        return self.gather_objects(value)[0]

    def all_reduce(self, x: Tensor) -> None:
        self.num_reduced += 1
        x.copy_(self.gather_rows(x).sum(0))

    def all_to_all(self, received: Tensor, sent: Tensor, counts: tuple[Sequence[int], Sequence[int]]) -> None:
        arrive, leave = counts
        parts = [theirs.split(list(split))[self.rank] for theirs, split in self.gather_objects((sent.clone(), leave))]
        assert [len(part) for part in parts] == list(arrive)
        received.copy_(torch.cat(parts))


def on_ranks(size: int, work: Callable[[ThreadsWorld], Any]) -> list[Any]:
    barrier, sent = threading.Barrier(size, timeout=LIMIT_S), [None] * size
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, [ThreadsWorld(rank, size, barrier, sent) for rank in range(size)]))


ROWS = (2, 1, 3)
"""How many rows of a matrix with two columns, and elements of a vector, each rank has."""


def shards_of(rank: int, value: float = 0.0) -> list[LocalShard]:
    """Return a rank's parts of a matrix and a vector, each element of which is its number, plus a value."""
    start, rows = sum(ROWS[:rank]), ROWS[rank]
    matrix = torch.arange(2.0 * start, 2.0 * (start + rows)).view(rows, 2) + value
    vector = torch.arange(float(start), start + rows) + 100 + value
    return [
        LocalShard("matrix", matrix, (start, 0), (6, 2)),
        LocalShard("vector", vector, (start,), (6,)),
    ]


def whole(value: float = 0.0) -> dict[str, Tensor]:
    return {"matrix": torch.arange(12.0).view(6, 2) + value, "vector": torch.arange(6.0) + 100 + value}


def copies_after(world: ThreadsWorld, num_steps: int) -> Copies:
    """Return the copies after some steps, each of which adds one to the state; then one that is not completed."""
    shards = shards_of(world.rank)
    strategy = SimpleNamespace(updated_shards=lambda: shards, step_counts=lambda: [num_steps])
    copies = Copies(world, strategy, SimpleNamespace(state_dict=lambda: {"scale": 2.0}))  # type: ignore[arg-type]
    copies.update()
    for _ in range(num_steps):
        for shard in shards:
            shard.tensor.add_(1)
        copies.update()
    for shard in shards:
        shard.tensor.sub_(77)
    return copies


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
@pytest.mark.parametrize("lost", [[], [0], [1], [2]])
def test_survivors_provide_the_whole_state_after_the_last_step(lost: list[int], num_steps: int) -> None:
    def provided(world: ThreadsWorld) -> tuple[list[LocalShard], Copies]:
        copies = copies_after(world, num_steps)
        return copies.shards_after_loss(lost), copies

    found = on_ranks(3, provided)
    left = [shards for rank, (shards, _) in enumerate(found) if rank not in lost]
    assert [len(shards) for shards in left] == [4 if (r - 1) % 3 in lost else 2 for r in range(3) if r not in lost]
    alone = ThreadsWorld(0, 1, threading.Barrier(1), [None])
    state = dict(assemble(found[0][1].shapes, [shard for shards in left for shard in shards], alone))  # type: ignore[arg-type]
    for name, tensor in whole(num_steps).items():
        assert torch.equal(state[name], tensor)
    assert found[0][1].scalars == {"optimizer_steps": num_steps, "scaler": {"scale": 2.0}}
    assert found[0][1].shapes == {"matrix": (6, 2), "vector": (6,)}


@pytest.mark.parametrize(("lost", "first", "second"), [([0, 1], 0, 1), ([2, 0], 2, 0), ([1, 2], 1, 2)])
def test_two_neighbors_that_are_lost_together_take_a_shard_with_them(lost: list[int], first: int, second: int) -> None:
    def error(world: ThreadsWorld) -> str:
        copies = copies_after(world, 1)
        with pytest.raises(CommError) as raised:
            copies.shards_after_loss(lost)
        return str(raised.value)

    for text in on_ranks(3, error):
        assert f"ranks {first} and {second} were lost together" in text


def test_rank_that_is_alone_sends_its_copy_to_nobody() -> None:
    (shards,) = on_ranks(1, lambda world: copies_after(world, 2).shards_after_loss([]))
    assert torch.equal(shards[0].tensor, whole(2)["matrix"][:2])


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("joins", [True, False])
def test_new_world_has_the_state_bit_for_bit(split: bool, joins: bool) -> None:
    """The matrix is split over two ranks again, or every rank has all of it; rank 2 may have just joined."""
    value = 0.1  # no sum of rounded parts would keep it

    def work(world: ThreadsWorld) -> tuple[dict[str, Tensor], Any, int]:
        held = [
            LocalShard(name, tensor, (0,) * tensor.dim(), tuple(tensor.shape)) for name, tensor in whole(value).items()
        ]
        provided = shards_of(world.rank, value) if split else held
        if joins and world.rank == 2:
            provided = None
        elif joins and split and world.rank == 1:
            provided = [*shards_of(1, value), *shards_of(2, value)]
        shapes = {"matrix": (6, 2), "vector": (6,)} if provided else {}
        handover = hand_over(world, provided, split, shapes, {"step": 7} if world.rank == 0 else {})  # type: ignore[arg-type]
        wanted = [
            LocalShard("matrix", torch.full((2, 2), -1.0), (2 * world.rank, 0), (6, 2)),
            LocalShard("matrix", torch.full((1, 1), -1.0), (0, 1), (6, 2)),
            LocalShard("vector", torch.full((6,), -1.0), (0,), (6,)),
        ]
        handover.fill(wanted)
        return {shard.key: shard.tensor for shard in wanted}, handover, world.num_reduced

    for rank, (found, handover, num_reduced) in enumerate(on_ranks(3, work)):
        matrix = whole(value)["matrix"]
        assert torch.equal(found[f"matrix@{2 * rank},0"], matrix[2 * rank : 2 * rank + 2])
        assert torch.equal(found["matrix@0,1"], matrix[:1, 1:])
        assert torch.equal(found["vector"], whole(value)["vector"])
        assert handover.scalars == {"step": 7}
        assert handover.all_ranks_complete == (not split and not joins)
        assert (num_reduced == 0) == handover.all_ranks_complete


def test_state_that_all_its_ranks_took_with_them_is_not_handed_over() -> None:
    def work(world: ThreadsWorld) -> None:
        with pytest.raises(CommError, match="all ranks that had the run's state were lost"):
            hand_over(world, None, False, {}, {})  # type: ignore[arg-type]

    on_ranks(2, work)


# ---- the order of samples --------------------------------------------------------------------------------------------


def test_shared_order_is_the_chain_over_all_ranks_samples() -> None:
    steps = {1: [[3, 4], [5, 6]], 2: [[7, 8], [9, -1]]}

    def work(world: ThreadsWorld) -> list[str]:
        order = SharedOrder("start", world, lambda: False, lambda: pytest.fail("nobody asked"))  # type: ignore[arg-type]
        for step, ids in steps.items():
            order.add(step, np.array(ids[world.rank]))
        return [order.link_after(step) for step in (0, 1, 2, 3)] + [order.link(world, ())]  # type: ignore[arg-type]

    first = next_link("start", 1, np.array([[3, 4], [5, 6]]))
    second = next_link(first, 2, np.array([7, 8, 9]))  # -1 fills the last batch
    assert on_ranks(2, work) == [[second, first, second, second, second]] * 2


def test_link_before_the_first_step_is_the_one_it_began_with() -> None:
    (order,) = on_ranks(1, lambda world: SharedOrder("start", world, lambda: False, lambda: None))  # type: ignore[arg-type]
    assert [order.link_after(step) for step in (0, 5)] == ["start", "start"]


@pytest.mark.parametrize("asked", [(False, False), (True, False), (False, True)])
def test_request_that_any_rank_has_is_admitted_by_all_before_the_step(asked: tuple[bool, bool]) -> None:
    class Admitted(Exception):
        pass

    def admit() -> None:
        raise Admitted

    def work(world: ThreadsWorld) -> tuple[bool, str]:
        order = SharedOrder("start", world, lambda: asked[world.rank], admit)  # type: ignore[arg-type]
        try:
            order.add(1, np.array([world.rank]))
        except Admitted:
            return True, order.link_after(1)
        return False, order.link_after(1)

    link = "start" if any(asked) else next_link("start", 1, np.array([0, 1]))
    assert on_ranks(2, work) == [(any(asked), link)] * 2
