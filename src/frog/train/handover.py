"""A run's state in the memory of its ranks, handed over from those of one world to those of the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from frog.comm import World
from frog.comm.local_shard import LocalShard, assemble, target_of
from frog.core.errors import RunError
from frog.train.state import TrainState


@dataclass(frozen=True)
class Handover:
    """What a rank brings into a new world, and what all of them then know."""

    world: World
    shards: Sequence[LocalShard]
    """What this rank holds; none if it has just come."""
    everybody_has_all: bool
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
        first = (0, 1) if self.world.is_main else None  # of equal copies the main rank's counts
        brought = [replace(shard, copies=first) for shard in self.shards]
        shapes = {name: parts[0].whole for name, parts in wanted.items()}
        for name, whole in assemble(shapes, brought, self.world.axis):
            for shard in wanted[name]:
                shard.tensor.copy_(target_of(whole, shard))


def hand_over(world: World, state: TrainState | None, scalars: dict[str, Any]) -> Handover:
    """Begin a handover to this world. A rank that has just come brings no state. A collective call.

    Raises:  RunError if those who had the state are gone.
    """
    has_it = world.gather_rows(torch.tensor([state is not None])).flatten().tolist()
    if not has_it[0]:
        raise RunError(
            "all ranks that had the run's state were lost before this one had it",
            "go on from the last checkpoint: frog train --resume RUN",
        )
    shards = [] if state is None else state.shards()
    return Handover(world, shards, all(has_it), world.from_main(scalars))
