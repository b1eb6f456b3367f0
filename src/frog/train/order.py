"""Proof of the data order: a hash chain over the samples that all ranks really took, step by step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import torch

from frog.comm import World
from frog.data.loader import FILLING


class OrderProof:
    """Links every step's samples, of all ranks in order, into one hash. The same for every world that took the same."""

    def __init__(self, link: str = "") -> None:
        self._link = link
        self._rows: list[np.ndarray] = []
        self._first_step: int | None = None

    def took(self, step: int, ids_N: np.ndarray) -> None:
        """Note what this rank took in a step."""
        if self._first_step is None:
            self._first_step = step
        self._rows.append(ids_N)

    def link(self, world: World, readers: Sequence[int]) -> str:
        """The chain's hash up to now. A collective call: the notes since the last are put together.

        `readers` are ranks that between them read every sample once, in the order of the global batch.

        Comm:    one all-gather of (steps since, samples of a rank) int64, if any steps were taken since.
        """
        if self._first_step is not None:
            own = torch.from_numpy(np.stack(self._rows)).to(world.device)
            ids_RSN = world.gather_rows(own).cpu().numpy()[list(readers)]
            for index in range(ids_RSN.shape[1]):
                self._link = next_link(self._link, self._first_step + index, ids_RSN[:, index])
            self._rows, self._first_step = [], None
        return self._link


class SharedOrder(OrderProof):
    """The same in a world that may change: what a step takes is put together before it is taken, so that no rank that
    is lost takes a part of the proof along. On the way all learn whether somebody waits at the door.
    """

    def __init__(self, link: str, world: World, somebody_waits: Callable[[], bool], let_in: Callable[[], None]) -> None:
        super().__init__(link)
        self._world, self._somebody_waits, self._let_in = world, somebody_waits, let_in
        self._after = {0: link}
        """The chain after the last two steps."""

    def took(self, step: int, ids_N: np.ndarray) -> None:
        """A collective call. Raises WorldChanged, before anything of the step is taken, if somebody came in.

        Comm:    one all-gather of (samples of a rank + 1) int64.
        """
        own = torch.from_numpy(np.append(ids_N, self._somebody_waits()))
        rows = self._world.gather_rows(own).numpy()
        if rows[:, -1].any():
            self._let_in()
        ids = rows[:, :-1]
        before, self._link = self._link, next_link(self._link, step, ids[ids != FILLING])
        self._after = {step - 1: before, step: self._link}

    def link_after(self, step: int) -> str:
        """The chain after a step that was taken, when the one that followed may not have been."""
        return self._after.get(step, self._link)

    def link(self, world: World, readers: Sequence[int]) -> str:
        return self._link


def next_link(link: str, step: int, ids: np.ndarray) -> str:
    """The chain, longer by what all ranks took in a step, in their order."""
    return hashlib.sha256(f"{link}/{step}/".encode() + ids.reshape(-1).astype("<i8").tobytes()).hexdigest()
