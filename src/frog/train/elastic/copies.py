"""Copies of each rank's shards on its neighbor, so that the shards survive the loss of the rank.

After every step, each rank copies its partition of parameters and moments and sends it to the next rank of the ring.
When a rank is lost, its neighbor has its partition after the last step that all ranks completed, and the other ranks
have their own copies from the same step: no rank continues from the middle of an update.

    after step 7      rank 0 keeps 0 and 2     rank 1 keeps 1 and 0     rank 2 keeps 2 and 1
    rank 1 is lost    rank 0 provides 0, rank 2 provides 2 and 1: the complete state, to be sharded again

If two neighbors are lost together, the shard of the first is lost, and the run can only resume from a checkpoint.

Memory:  four times a partition's parameters and moments: 48/n bytes per parameter (its own and its neighbor's, and a
         second buffer for each: the previous copies stay valid until all ranks have the next ones).
Comm:    one all-to-all per step: each of n ranks sends its partition, 12/n bytes per parameter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from frog.core.errors import CommError
from frog.train.comm import World
from frog.train.comm.local_shard import LocalShard
from frog.train.parallel.strategy import Strategy


@dataclass(frozen=True)
class _Kept:
    """The state after one step: this rank's partition, its neighbor's, and the scalars."""

    own: Tensor
    neighbours: Tensor
    scalars: dict[str, Any]


class Copies:
    """The copies of one world. The constructor and `update` are collective calls."""

    def __init__(self, world: World, strategy: Strategy, scaler: torch.amp.GradScaler) -> None:
        self._world, self._strategy, self._scaler = world, strategy, scaler
        self._shards = strategy.updated_shards()
        own = [replace(shard, tensor=torch.empty(shard.tensor.shape, device="meta")) for shard in self._shards]
        self._layouts: list[list[LocalShard]] = world.gather_objects(own)
        self._sizes = [sum(shard.tensor.numel() for shard in layout) for layout in self._layouts]
        self._kept, self._spare = self._empty(), self._empty()

    def _empty(self) -> _Kept:
        rank = self._world.rank
        own, before = (torch.empty(self._sizes[owner], device=self._world.device) for owner in (rank, rank - 1))
        return _Kept(own, before, {})

    def update(self) -> None:
        """Copy this rank's partition and send it on. The copies become valid when all ranks have finished."""
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
        """Shapes of the unsharded tensors of all ranks."""
        return {shard.name: shard.whole for layout in self._layouts for shard in layout}

    @property
    def scalars(self) -> dict[str, Any]:
        """Scalars of the valid copies."""
        return self._kept.scalars

    def shards_after_loss(self, lost: Sequence[int]) -> list[LocalShard]:
        """Return the shards that this rank provides to the next world after the loss of these ranks.

        Raises:  CommError if two neighbors are among them.
        """
        rank, size = self._world.rank, self._world.size
        for first in lost:
            second = (first + 1) % size
            if second in lost:
                raise CommError(
                    f"ranks {first} and {second} were lost together: only the second had a copy of the first's state",
                    "resume from the last checkpoint: frog train --resume RUN",
                )
        own = _views(self._layouts[rank], self._kept.own)
        before = (rank - 1) % size
        return own + (_views(self._layouts[before], self._kept.neighbours) if before in lost else [])


def _views(layout: Sequence[LocalShard], flat: Tensor) -> list[LocalShard]:
    """Return the shards as views of a flat copy."""
    counts = [math.prod(shard.tensor.shape) for shard in layout]
    starts = itertools.accumulate(counts, initial=0)
    return [
        replace(shard, tensor=flat[start : start + count].view(shard.tensor.shape))
        for shard, start, count in zip(layout, starts, counts, strict=False)
    ]
