"""A run's state in the memory of its ranks, handed over from those of one world to those of the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from frog.comm import World
from frog.comm.local_shard import LocalShard, assemble, target_of
from frog.core.errors import CommError


@dataclass(frozen=True)
class Handover:
    """What a rank brings into a new world, and what all of them then know."""

    world: World
    shards: Sequence[LocalShard]
    """What this rank holds; none if it has just come."""
    counts: bool
    """Whether what it holds is counted: of equal copies only the main rank's are."""
    everybody_has_all: bool
    shapes: dict[str, tuple[int, ...]]
    """Of all tensors, whole."""
    scalars: dict[str, Any]

    def fill(self, shards: Sequence[LocalShard]) -> None:
        """Fill what a rank is to hold in the new world, bit for bit. A collective call.

        Comm:    nothing if every rank held everything; else the all-reduces of `assemble`.
        """
        if self.everybody_has_all:
            own = {shard.name: shard.tensor for shard in self.shards}
            for shard in shards:
                shard.tensor.copy_(target_of(own[shard.name], shard))
            return
        wanted: dict[str, list[LocalShard]] = {}
        for shard in shards:
            wanted.setdefault(shard.name, []).append(shard)
        brought = [replace(shard, copies=(0, 1) if self.counts else None) for shard in self.shards]
        for name, whole in assemble(self.shapes, brought, self.world.axis):
            for shard in wanted.get(name, []):
                shard.tensor.copy_(target_of(whole, shard))


def hand_over(
    world: World,
    brought: Sequence[LocalShard] | None,
    split: bool,
    shapes: dict[str, tuple[int, ...]],
    scalars: dict[str, Any],
) -> Handover:
    """Begin a handover to this world. A rank that has just come brings nothing. A collective call.

    split: whether each rank brings what no other has; else all bring the same.

    Raises:  CommError if those who had the state are gone.
    """
    has_it = world.gather_rows(torch.tensor([brought is not None])).flatten().tolist()
    if not has_it[0]:
        raise CommError(
            "all ranks that had the run's state were lost before this one had it",
            "go on from the last checkpoint: frog train --resume RUN",
        )
    shapes, scalars = world.from_main((shapes, scalars))
    return Handover(world, brought or [], split or world.is_main, all(has_it) and not split, shapes, scalars)
