"""Proof of the data order: a hash chain over the samples that all ranks actually consumed in each step."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from frog.train.comm import World


class OrderProof:
    """Chains every step's samples, in rank order, into one hash. Worlds with the same data order have the same hash."""

    def __init__(self, link: str = "") -> None:
        self._link = link
        self._rows: list[np.ndarray] = []
        self._first_step: int | None = None

    def add(self, step: int, ids_N: np.ndarray) -> None:
        """Add the samples that this rank consumed in a step."""
        if self._first_step is None:
            self._first_step = step
        self._rows.append(ids_N)

    def link(self, world: World, readers: Sequence[int]) -> str:
        """Return the chain's current hash. A collective call: it merges all samples added since the last call.

        `readers` are ranks that together read every sample once, in the order of the global batch.

        Comm:    one all-gather of (steps since the last call, samples of a rank) int64; none without steps.
        """
        if self._first_step is not None:
            own = torch.from_numpy(np.stack(self._rows)).to(world.device)
            ids_RSN = world.gather_rows(own).cpu().numpy()[list(readers)]
            for index in range(ids_RSN.shape[1]):
                self._link = next_link(self._link, self._first_step + index, ids_RSN[:, index])
            self._rows, self._first_step = [], None
        return self._link


def next_link(link: str, step: int, ids: np.ndarray) -> str:
    """Return the hash extended by the samples of all ranks in one step, in rank order."""
    return hashlib.sha256(f"{link}/{step}/".encode() + ids.reshape(-1).astype("<i8").tobytes()).hexdigest()
