"""The proof of the data order where the world may change: complete before a step, so a lost rank takes none of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from frog.comm import World
from frog.data.loader import FILLING
from frog.train.order import OrderProof, next_link


class SharedOrder(OrderProof):
    """The same in a world that may change: what a step takes is put together before it is taken, so that no rank that
    is lost takes a part of the proof along. On the way all learn whether somebody waits at the door.
    """

    def __init__(self, link: str, world: World, has_request: Callable[[], bool], admit: Callable[[], None]) -> None:
        super().__init__(link)
        self._world, self._has_request, self._admit = world, has_request, admit
        self._after = {0: link}
        """The chain after the last two steps."""

    def took(self, step: int, ids_N: np.ndarray) -> None:
        """A collective call. Raises WorldChanged, before anything of the step is taken, if somebody came in.

        Comm:    one all-gather of (samples of a rank + 1) int64.
        """
        own = torch.from_numpy(np.append(ids_N, self._has_request()))
        rows = self._world.gather_rows(own).numpy()
        if rows[:, -1].any():
            self._admit()
        ids = rows[:, :-1]
        before, self._link = self._link, next_link(self._link, step, ids[ids != FILLING])
        self._after = {step - 1: before, step: self._link}

    def link_after(self, step: int) -> str:
        """The chain after a step that was taken, when the one that followed may not have been."""
        return self._after.get(step, self._link)

    def link(self, world: World, readers: Sequence[int]) -> str:
        return self._link
