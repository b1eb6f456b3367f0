"""Futures of asynchronous operations that complete late, as `LateWork` does.

A learner may wait for an operation through its future, as PyTorch's DistributedDataParallel does:
`work.get_future().then(divide).wait()`. A callback runs after a wait for its operation, never earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class LateFuture(torch.futures.Future[Any]):
    """A future that completes on `wait`, or on the third call of `done`."""

    def __init__(self, arrive: Callable[[], Any]) -> None:
        """arrive: computes the value, once."""
        super().__init__()
        self._arrive = arrive
        self._has_begun = False
        self._callbacks: list[Callable[[], None]] = []
        self._asked = 0

    def complete(self) -> None:
        """Compute the value, then run the callbacks in the order in which they were added."""
        if self._has_begun:
            return
        self._has_begun = True
        try:
            super().set_result(self._arrive())
        except Exception as error:  # as in torch, `wait` raises it
            super().set_exception(error)
        for callback in self._callbacks:
            callback()

    def wait(self) -> Any:
        self.complete()
        return super().wait()

    def done(self) -> bool:
        self._asked += 1
        if self._asked > 2:
            self.complete()
        return super().done()

    def then(self, callback: Callable[[Any], Any]) -> LateFuture:
        """Return a future of the result of `callback(self)`."""
        after = LateFuture(lambda: self._value_of(callback))
        self._call_when_complete(after.complete)
        return after

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        self._call_when_complete(lambda: callback(self))

    def _value_of(self, callback: Callable[[Any], Any]) -> Any:
        self.complete()
        return callback(self)

    def _call_when_complete(self, call: Callable[[], None]) -> None:
        if self._has_begun:
            call()
        else:
            self._callbacks.append(call)


def collect_all(futures: list[Any]) -> LateFuture:
    """Replace torch.futures.collect_all, which waits in C++ and would never complete a LateFuture."""

    def all_of_them() -> list[Any]:
        for future in futures:
            future.wait()
        return futures

    return LateFuture(all_of_them)


def wait_all(futures: list[Any]) -> list[Any]:
    """Replace torch.futures.wait_all."""
    return [future.wait() for future in futures]
