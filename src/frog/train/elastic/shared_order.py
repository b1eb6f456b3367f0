"""The order proof for a changing world: completed before each step, so that a lost rank cannot make it incomplete."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from frog.train.comm import World
from frog.train.data.loader import FILLING
from frog.train.order_proof import OrderProof, next_link


class SharedOrder(OrderProof):
    """Order proof of an elastic run. It gathers the sample ids before a step, so that a lost rank cannot make the
    proof incomplete. The same message tells all ranks whether a process has requested to join.
    """

    def __init__(self, link: str, world: World, has_request: Callable[[], bool], admit: Callable[[], None]) -> None:
        super().__init__(link)
        self._world, self._has_request, self._admit = world, has_request, admit
        self._after = {0: link}
        """Hash of the chain after each of the last two steps."""

    def add(self, step: int, ids_N: np.ndarray) -> None:
        """Add the samples of a step that is about to run. A collective call.

        Comm:    one all-gather of (samples of a rank + 1) int64.
        Raises:  WorldChanged, before the step runs, if a process joined.
        """
        own = torch.from_numpy(np.append(ids_N, self._has_request()))
        rows = self._world.gather_rows(own).numpy()
        if rows[:, -1].any():
            self._admit()
        ids = rows[:, :-1]
        before, self._link = self._link, next_link(self._link, step, ids[ids != FILLING])
        self._after = {step - 1: before, step: self._link}

    def link_after(self, step: int) -> str:
        """Return the hash after a completed step, without the step that followed if that one failed."""
        return self._after.get(step, self._link)

    def link(self, world: World, readers: Sequence[int]) -> str:
        return self._link
