"""What a rank alone holds of a run's state, kept a second time by its neighbour: so that a lost shard is not lost.

After every step each rank copies its partition of parameters and moments, and passes it on to the next rank of the
ring. When a rank is lost, its neighbour has what it held after the last step that all have completed, and the others
have their own copies of that moment: nobody goes on from the middle of an update.

    after step 7      rank 0 keeps 0 and 2     rank 1 keeps 1 and 0     rank 2 keeps 2 and 1
    rank 1 is lost    rank 0 brings 0, rank 2 brings 2 and 1: all of it, to be dealt anew

Two neighbours lost at once take the shard of the first of them along. Then the last checkpoint is what is left.

Memory:  four times a partition's parameters and moments: 48/n bytes a parameter (its own and its neighbour's, and of
         each the next one while it is made: until all have it, the one before counts).
Comm:    one all-to-all a step in which each rank sends its partition on: 12/n bytes a parameter leave each of n ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from frog.comm import World
from frog.comm.local_shard import LocalShard
from frog.core.errors import CommError
from frog.parallel.strategy import Strategy


@dataclass(frozen=True)
class _Kept:
    """A moment of the run: this rank's partition, its neighbour's, and what else belongs to that moment."""

    own: Tensor
    neighbours: Tensor
    scalars: dict[str, Any]


class Copies:
    """The copies of one world. Making them is collective, as is `keep`."""

    def __init__(self, world: World, strategy: Strategy, scaler: torch.amp.GradScaler) -> None:
        self._world, self._strategy, self._scaler = world, strategy, scaler
        self._shards = strategy.updated_shards()
        own = [replace(shard, tensor=torch.empty(shard.tensor.shape, device="meta")) for shard in self._shards]
        self._layouts: list[list[LocalShard]] = world.gather_objects(own)
        self._sizes = [sum(shard.tensor.numel() for shard in layout) for layout in self._layouts]
        self._kept, self._spare = self._empty(), self._empty()

    def _empty(self) -> _Kept:
        rank = self._world.rank
        own, before = (torch.empty(self._sizes[one], device=self._world.device) for one in (rank, rank - 1))
        return _Kept(own, before, {})

    def keep(self) -> None:
        """Copy, and pass on. Only when all have done that does this moment count."""
        next_, (rank, size) = self._spare, (self._world.rank, self._world.size)
        torch.cat([shard.tensor.reshape(-1) for shard in self._shards], out=next_.own)
        arrive, leave = [0] * size, [0] * size
        arrive[rank - 1], leave[(rank + 1) % size] = len(next_.neighbours), len(next_.own)
        if size > 1:
            self._world.axis.all_to_all(next_.neighbours, next_.own, (arrive, leave))
        counts = self._strategy.step_counts()
        scalars = {
            "optimizer_steps": int(counts[0]) if counts else 0,
            "scaler": self._scaler.state_dict(),
        }
        self._kept, self._spare = replace(next_, scalars=scalars), self._kept

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all ranks' tensors, whole."""
        return {shard.name: shard.whole for layout in self._layouts for shard in layout}

    @property
    def scalars(self) -> dict[str, Any]:
        """Of the moment that counts."""
        return self._kept.scalars

    def brought(self, lost: Sequence[int]) -> list[LocalShard]:
        """What this rank brings into the world after the loss of these ranks of this one.

        Raises:  CommError if two neighbours are among them.
        """
        rank, size = self._world.rank, self._world.size
        for one in lost:
            if (one + 1) % size in lost:
                raise CommError(
                    f"ranks {one} and {(one + 1) % size} were lost at once: the first's part of the state was kept by "
                    "the second alone",
                    "go on from the last checkpoint: frog train --resume RUN",
                )
        own = _views(self._layouts[rank], self._kept.own)
        before = (rank - 1) % size
        return own + (_views(self._layouts[before], self._kept.neighbours) if before in lost else [])


def _views(layout: Sequence[LocalShard], flat: Tensor) -> list[LocalShard]:
    """Shards as they lie one after the other in a flat copy."""
    counts = [math.prod(shard.tensor.shape) for shard in layout]
    starts = itertools.accumulate(counts, initial=0)
    return [
        replace(shard, tensor=flat[start : start + count].view(shard.tensor.shape))
        for shard, start, count in zip(layout, starts, counts, strict=False)
    ]
