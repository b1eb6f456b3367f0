"""Proof of the data order: a hash chain over the samples that all ranks really took, step by step."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from frog.comm import World


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


def next_link(link: str, step: int, ids: np.ndarray) -> str:
    """The chain, longer by what all ranks took in a step, in their order."""
    return hashlib.sha256(f"{link}/{step}/".encode() + ids.reshape(-1).astype("<i8").tobytes()).hexdigest()
