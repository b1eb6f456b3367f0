"""An axis whose ranks are threads of one process: they exchange tensors through a list."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from harness import LIMIT_S
from torch import Tensor

Result = TypeVar("Result")


class Done:
    """A collective that has completed."""

    def wait(self) -> None:
        pass


class ThreadsAxis:
    """The collectives that these tests need, with the interface of `frog.train.comm.Axis`."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, sent: list[Any]) -> None:
        self.rank, self.size, self._barrier, self._sent = rank, size, barrier, sent
        self.device = torch.device("cpu")

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self._sent[self.rank] = x.clone()
        self._barrier.wait()
        everyone = list(self._sent)
        self._barrier.wait()
        return everyone

    def alone(self) -> ThreadsAxis:
        """Return an axis of only this rank."""
        return ThreadsAxis(0, 1, threading.Barrier(1), [None])

    def all_to_all(self, received: Tensor, sent: Tensor) -> None:
        parts = [theirs.chunk(self.size)[self.rank] for theirs in self._exchange(sent)]
        received.copy_(torch.cat(parts))

    def all_gather(self, whole: Tensor, part: Tensor) -> None:
        whole.copy_(torch.cat(self._exchange(part)))

    def all_reduce(self, x: Tensor) -> None:
        x.copy_(torch.stack(self._exchange(x)).sum(0))

    def start_all_gather(self, whole: Tensor, part: Tensor) -> Done:
        self.all_gather(whole, part)
        return Done()

    def start_reduce_scatter(self, part: Tensor, whole: Tensor) -> Done:
        part.copy_(torch.stack(self._exchange(whole)).sum(0).chunk(self.size)[self.rank])
        return Done()


def on_every_rank(size: int, work: Callable[[Any], Result]) -> list[Result]:
    """Call `work` with the axis of each rank, and return all results."""
    barrier, sent = threading.Barrier(size, timeout=LIMIT_S), [None] * size
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, [ThreadsAxis(rank, size, barrier, sent) for rank in range(size)]))
