"""The mesh: the ranks of the world arranged along named axes, `pp` x `dp` x `cp` x `tp`.

Ranks count fastest along `tp`, because tensor parallelism communicates most and its ranks should be neighbors; slowest
along `pp`, which communicates least. Rank 5 of a mesh pp=2, dp=2, tp=2 is (pp 1, dp 0, tp 1).

Further axes are derived from these: `data` is dp and cp together, the ranks that average one gradient; `shard` and
`replicate` divide it for hybrid sharding, `ep` and `expert_data` for shared experts; `model` is pp and tp, the ranks
that together hold one copy of the weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from frog.core.errors import ConfigError
from frog.train.comm import Axis, World

AXES = ("pp", "dp", "cp", "tp")
"""From the slowest to the fastest."""


class Mesh:
    """The axes of a world, seen from one rank. Creating one is collective: every rank must do it, with the same sizes.

    Raises:  ConfigError if the product of the sizes is not the world's size.
    """

    def __init__(
        self, world: World, *, pp: int = 1, dp: int = 1, cp: int = 1, tp: int = 1, shard: int | None = None, ep: int = 1
    ) -> None:
        self.world = world
        self.sizes = dict(zip(AXES, (pp, dp, cp, tp), strict=True))
        check_mesh(self.sizes, world.size)
        self.place = coordinates(self.sizes, world.rank)
        """This rank's coordinate on each axis."""
        self.pp, self.dp, self.cp, self.tp = (self._axis(name, (name,)) for name in AXES)
        self.data = self._axis("data", ("dp", "cp")) if cp > 1 else self._axis("dp", ("dp", "cp"), self.dp)
        same_as_model = None
        if 1 in (pp, tp):
            same_as_model = self.tp if pp == 1 else self.pp
        self.model = self._axis("model", ("pp", "tp"), same_as_model)
        self.shard, self.replicate = self._cut(shard or self.data.size)
        self.ep, self.expert_data = self._cut_experts(ep)

    def _axis(self, name: str, along: Sequence[str], same_as: Axis | None = None) -> Axis:
        return same_as or self.world.make_axis(name, groups(self.sizes, along))

    def _cut(self, shard: int) -> tuple[Axis, Axis]:
        """Divide the data ranks into rows of `shard`: each row shares one copy of the state, and rows are replicas."""
        if shard == self.data.size:
            return self.data, self.data.alone()
        rows, columns = [], []
        for ranks in groups(self.sizes, ("dp", "cp")):
            table = [ranks[start : start + shard] for start in range(0, len(ranks), shard)]
            rows += table
            columns += [list(column) for column in zip(*table, strict=True)]
        return self.world.make_axis("shard", rows), self.world.make_axis("replicate", columns)

    def _cut_experts(self, ep: int) -> tuple[Axis, Axis]:
        """Divide dp into rows of `ep`: each row shares the experts; data ranks with the same experts average them."""
        check_experts(ep, self.sizes["dp"])
        sizes = {"pp": self.sizes["pp"], "row": self.sizes["dp"] // ep, "ep": ep}
        sizes |= {name: self.sizes[name] for name in ("cp", "tp")}
        own = self.world.make_axis("ep", groups(sizes, ("ep",)))
        return own, self.data if ep == 1 else self.world.make_axis("expert_data", groups(sizes, ("row", "cp")))

    @property
    def readers(self) -> list[int]:
        """Return for each dp coordinate, in order, one rank of the world that reads its samples."""
        places = [coordinates(self.sizes, rank) for rank in range(self.world.size)]
        return [rank for rank, place in enumerate(places) if all(place[name] == 0 for name in AXES if name != "dp")]


def check_mesh(sizes: Mapping[str, int], world_size: int) -> None:
    """Raise ConfigError unless the product of the sizes is the world's size."""
    if math.prod(sizes.values()) != world_size:
        product = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise ConfigError(
            f"mesh {product} = {math.prod(sizes.values())} ranks, but the world has {world_size}",
            "the product of the axes must be the world's size: change an axis, or start another number of ranks",
        )


def check_experts(ep: int, dp: int) -> None:
    """Raise ConfigError unless `ep` divides `dp`."""
    if dp % ep:
        raise ConfigError(
            f"ep {ep} does not divide dp {dp}: neighboring dp ranks share the experts in groups of that size",
            "change strategy.ep, or start another number of ranks",
        )


def coordinates(sizes: Mapping[str, int], rank: int) -> dict[str, int]:
    """Return a rank's coordinates: its digits in mixed radix, the last axis counting fastest."""
    place: dict[str, int] = {}
    for name, size in reversed(list(sizes.items())):
        rank, place[name] = divmod(rank, size)
    return dict(reversed(list(place.items())))


def groups(sizes: Mapping[str, int], along: Sequence[str]) -> list[list[int]]:
    """Divide all ranks into groups whose coordinates differ only on the axes `along`."""
    ranks_by_place: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(itertools.product(*(range(size) for size in sizes.values()))):
        others = tuple(at for name, at in zip(sizes, place, strict=True) if name not in along)
        ranks_by_place.setdefault(others, []).append(rank)
    return list(ranks_by_place.values())


def draw(sizes: Mapping[str, int]) -> str:
    """Format the mesh as a table: for each rank its coordinates, and the ranks of its groups."""
    named = [name for name, size in sizes.items() if size > 1] or ["dp"]
    cells = [["rank", *named, *(f"{name} group" for name in named)]]
    for rank in range(math.prod(sizes.values())):
        place = coordinates(sizes, rank)
        own = [next(g for g in groups(sizes, (name,)) if rank in g) for name in named]
        cells.append([str(rank), *(str(place[name]) for name in named), *(" ".join(map(str, g)) for g in own)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
