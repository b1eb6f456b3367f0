"""Transfer of a run's state in memory, from the ranks of one world to the ranks of the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from frog.core.errors import CommError
from frog.train.comm import World
from frog.train.comm.local_shard import LocalShard, assemble, target_of


@dataclass(frozen=True)
class Handover:
    """The shards that a rank provides to a new world, and the metadata that all ranks share."""

    world: World
    shards: Sequence[LocalShard]
    """Shards that this rank holds; empty if it has just joined."""
    counts: bool
    """True if this rank's shards contribute to the merged state (rank 0 only, for replicated state)."""
    all_ranks_complete: bool
    shapes: dict[str, tuple[int, ...]]
    """Shapes of the unsharded tensors."""
    scalars: dict[str, Any]

    def fill(self, shards: Sequence[LocalShard]) -> None:
        """Fill a rank's shards in the new world, bit for bit. A collective call.

        Comm:    none if every rank held the complete state; else the all-reduces of `assemble`.
        """
        if self.all_ranks_complete:
            own = {shard.name: shard.tensor for shard in self.shards}
            for shard in shards:
                shard.tensor.copy_(target_of(own[shard.name], shard))
            return
        wanted: dict[str, list[LocalShard]] = {}
        for shard in shards:
            wanted.setdefault(shard.name, []).append(shard)
        provided = [replace(shard, copies=(0, 1) if self.counts else None) for shard in self.shards]
        for name, whole in assemble(self.shapes, provided, self.world.axis):
            for shard in wanted.get(name, []):
                shard.tensor.copy_(target_of(whole, shard))


def hand_over(
    world: World,
    shards: Sequence[LocalShard] | None,
    split: bool,
    shapes: dict[str, tuple[int, ...]],
    scalars: dict[str, Any],
) -> Handover:
    """Start a handover to this world. A rank that has just joined passes None as `shards`. A collective call.

    split: True if the state is sharded over the ranks; else every rank has all of it.

    Raises:  CommError if all ranks that had the state were lost.
    """
    has_it = world.gather_rows(torch.tensor([shards is not None])).flatten().tolist()
    if not has_it[0]:
        raise CommError(
            "all ranks that had the run's state were lost before this rank received it",
            "resume from the last checkpoint: frog train --resume RUN",
        )
    shapes, scalars = world.from_main((shapes, scalars))
    return Handover(world, shards or [], split or world.is_main, all(has_it) and not split, shapes, scalars)
