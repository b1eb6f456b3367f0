"""A world whose ranks are threads of one process: torch's collectives, among threads, for proofs without processes.

A collective is done when it begins: each rank of a group leaves its tensor, and copies those of the others once all are
there. A message waits in a queue.
"""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from harness import LIMIT_S
from torch import Tensor

from frog.core.env import WorldEnv
from frog.train.comm import World

Result = TypeVar("Result")
CPU = torch.device("cpu")


class Done:
    """A collective that has completed; `late` does the remaining work."""

    def __init__(self, late: Callable[[], None] = lambda: None) -> None:
        self._late = late

    def wait(self) -> None:
        self._late()

    def get_future(self) -> Done:
        return self

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        callback(self)


class Group:
    """Some ranks, which exchange tensors through a list."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = list(ranks)
        self._barrier, self._left = threading.Barrier(len(ranks), timeout=LIMIT_S), [None] * len(ranks)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._left[self.ranks.index(rank)] = value
        self._barrier.wait()
        everyone = list(self._left)
        self._barrier.wait()
        return everyone

    def abort(self) -> None:
        self._barrier.abort()


class Threads:
    """What replaces torch's functions: each thread is one rank."""

    def __init__(self, size: int) -> None:
        self._here = threading.local()
        self._everyone = Group(range(size))
        self._made: dict[tuple[int, tuple[int, ...]], Group] = {}
        self._messages: dict[tuple[int, int, int], queue.SimpleQueue[Tensor]] = defaultdict(queue.SimpleQueue)
        self._lock = threading.Lock()

    def enter(self, rank: int) -> None:
        self._here.rank, self._here.num_groups = rank, 0

    def abort(self) -> None:
        for group in (self._everyone, *self._made.values()):
            group.abort()

    def new_group(self, ranks: list[int], timeout: Any = None) -> Group:
        key = (self._here.num_groups, tuple(ranks))
        self._here.num_groups += 1
        with self._lock:
            return self._made.setdefault(key, Group(ranks))

    def _exchange(self, group: Group | None, value: Any) -> tuple[list[Any], int]:
        group = group or self._everyone
        return group.exchange(self._here.rank, value), group.ranks.index(self._here.rank)

    def all_reduce(self, x: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Done:
        tensors, _ = self._exchange(group, x.clone())
        stacked = torch.stack(tensors)
        x.copy_(stacked.amax(0) if op == dist.ReduceOp.MAX else stacked.sum(0))
        return Done()

    def all_gather(self, parts: list[Tensor], part: Tensor, group: Any = None, async_op: bool = False) -> Done:
        tensors, _ = self._exchange(group, part.clone())
        for target, source in zip(parts, tensors, strict=True):
            target.copy_(source)
        return Done()

    def broadcast(self, x: Tensor, source: int, group: Any = None, async_op: bool = False) -> Done:
        tensors, _ = self._exchange(group, x.clone())
        x.copy_(tensors[(group or self._everyone).ranks.index(source)])
        return Done()

    def all_to_all_single(
        self, received: Tensor, sent: Tensor, arrive: Any = None, leave: Any = None, group: Any = None, **_: Any
    ) -> Done:
        size = len((group or self._everyone).ranks)
        each = [len(sent) // size] * size
        parts, rank = self._exchange(group, sent.clone().split(leave or each))
        mine = [theirs[rank] for theirs in parts]
        assert [len(part) for part in mine] == list(arrive or each)
        received.copy_(torch.cat(mine))
        return Done()

    def isend(self, x: Tensor, peer: int, group: Any = None, tag: int = 0) -> Done:
        self._messages[self._here.rank, peer, tag].put(x.clone())
        return Done()

    def irecv(self, x: Tensor, peer: int, group: Any = None, tag: int = 0) -> Done:
        messages = self._messages[peer, self._here.rank, tag]

        def late() -> None:
            x.copy_(messages.get(timeout=LIMIT_S))

        return Done(late)

    def batch_isend_irecv(self, moves: Sequence[Any]) -> list[Done]:
        return [move.op(move.tensor, move.peer, move.group) for move in moves]


class Move:
    """A message of a batch."""

    def __init__(self, op: Any, tensor: Tensor, peer: int, group: Any = None) -> None:
        self.op, self.tensor, self.peer, self.group = op, tensor, peer, group


NAMES = (
    "new_group",
    "all_reduce",
    "all_gather",
    "broadcast",
    "all_to_all_single",
    "isend",
    "irecv",
    "batch_isend_irecv",
)


def on_ranks(size: int, work: Callable[[World], Result]) -> list[Result]:
    """Call `work` with the world of each rank, and return all results; the first error ends all."""
    threads = Threads(size)

    def run(rank: int) -> Result:
        threads.enter(rank)
        env = WorldEnv(rank, size, rank, size, 0, 1, "127.0.0.1", 1, launched=True)
        try:
            return work(World(env, CPU, timeout_s=LIMIT_S, requested_backend="gloo"))
        except BaseException:
            threads.abort()
            raise

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(size) as pool:
        for name in NAMES:
            patch.setattr(dist, name, getattr(threads, name))
        patch.setattr(dist, "P2POp", Move)
        results = [pool.submit(run, rank) for rank in range(size)]
        errors = [error for error in (result.exception() for result in results) if error is not None]
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [result.result() for result in results]
