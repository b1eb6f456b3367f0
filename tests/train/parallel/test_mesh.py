"""The mesh of a world: the groups of each axis, and the axes that are derived from these. No process starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from frog.core.errors import ConfigError
from frog.train.parallel.mesh import Mesh, coordinates, draw, groups


@dataclass
class MadeAxis:
    """An axis, seen from one rank."""

    name: str
    ranks: list[int]

    @property
    def size(self) -> int:
        return len(self.ranks)

    def alone(self) -> MadeAxis:
        return MadeAxis(self.name, self.ranks[:1])


@dataclass
class FakeWorld:
    """A world whose axes only know their ranks. All of them make all axes, in this order."""

    size: int
    rank: int
    made: dict[str, list[list[int]]] = field(default_factory=dict)

    def make_axis(self, name: str, ranks: list[list[int]]) -> MadeAxis:
        self.made[name] = ranks
        assert sorted(rank for group in ranks for rank in group) == list(range(self.size))
        return MadeAxis(name, next(group for group in ranks if self.rank in group))


def mesh(size: int, rank: int = 0, **sizes: int) -> Any:
    return Mesh(FakeWorld(size, rank), **sizes)  # type: ignore[arg-type]


def test_ranks_count_fastest_along_tp_and_slowest_along_pp() -> None:
    found = mesh(16, 13, pp=2, dp=2, cp=2, tp=2)
    assert found.place == {"pp": 1, "dp": 1, "cp": 0, "tp": 1}
    assert {name: axis.ranks for name, axis in vars(found).items() if isinstance(axis, MadeAxis)} == {
        "pp": [5, 13], "dp": [9, 13], "cp": [13, 15], "tp": [12, 13],
        "data": [9, 11, 13, 15], "model": [4, 5, 12, 13], "shard": [9, 11, 13, 15], "replicate": [9],
        "ep": [13], "expert_data": [9, 11, 13, 15],
    }  # fmt: skip
    assert found.readers == [0, 4]


def test_mesh_has_one_rank_on_each_axis_that_is_not_named() -> None:
    found = mesh(1)
    assert found.sizes == {"pp": 1, "dp": 1, "cp": 1, "tp": 1}
    assert all(axis.ranks == [0] for axis in vars(found).values() if isinstance(axis, MadeAxis))
    assert mesh(3, 2, dp=3).data.ranks == [0, 1, 2]


@pytest.mark.parametrize(
    ("sizes", "same"),
    [
        ({"tp": 4}, ("model", "tp")),
        ({"pp": 4}, ("model", "pp")),
        ({"dp": 4}, ("data", "dp")),
        ({"dp": 4}, ("shard", "data")),
        ({"dp": 4}, ("expert_data", "data")),
        ({"dp": 2, "cp": 2}, ("shard", "data")),
    ],
)
def test_derived_axis_with_the_same_ranks_is_the_same_axis(sizes: dict[str, int], same: tuple[str, str]) -> None:
    found = mesh(4, **sizes)
    assert getattr(found, same[0]) is getattr(found, same[1])


def test_hybrid_sharding_divides_the_data_ranks_into_rows_of_neighbours() -> None:
    found = mesh(16, 6, dp=4, cp=2, tp=2, shard=4)
    assert found.world.made["data"] == [[0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]]
    assert (found.shard.ranks, found.replicate.ranks) == ([0, 2, 4, 6], [6, 14])
    whole = mesh(4, dp=4, shard=4)
    assert (whole.shard.ranks, whole.replicate.ranks) == ([0, 1, 2, 3], [0])


def test_experts_are_shared_by_rows_and_averaged_by_columns() -> None:
    found = mesh(16, 5, dp=8, tp=2, ep=4)
    assert (found.ep.ranks, found.expert_data.ranks) == ([1, 3, 5, 7], [5, 13])
    with_cp = mesh(8, 3, dp=4, cp=2, ep=2)
    assert (with_cp.ep.ranks, with_cp.expert_data.ranks) == ([1, 3], [2, 3, 6, 7])
    with pytest.raises(ConfigError, match="ep 3 does not divide dp 4"):
        mesh(4, dp=4, ep=3)


@pytest.mark.parametrize("sizes", [{}, {"dp": 3}, {"dp": 2, "tp": 4}])
def test_product_of_the_axes_must_be_the_size_of_the_world(sizes: dict[str, int]) -> None:
    product = sizes.get("dp", 1) * sizes.get("tp", 1)
    with pytest.raises(ConfigError, match=f"= {product} ranks, but the world has 4"):
        mesh(4, **sizes)


def test_coordinates_and_groups_agree() -> None:
    sizes = {"pp": 2, "dp": 3, "cp": 1, "tp": 2}
    assert [tuple(coordinates(sizes, rank).values()) for rank in (0, 1, 2, 6, 11)] == [
        (0, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 0), (1, 0, 0, 0), (1, 2, 0, 1),
    ]  # fmt: skip
    assert groups(sizes, ("dp",)) == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]
    assert groups(sizes, ("pp", "tp")) == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    assert groups(sizes, ()) == [[rank] for rank in range(12)]


def test_mesh_is_drawn_with_the_groups_of_each_rank() -> None:
    assert draw({"pp": 1, "dp": 2, "cp": 1, "tp": 2}).splitlines() == [
        "rank  dp  tp  dp group  tp group",
        "   0   0   0       0 2       0 1",
        "   1   0   1       1 3       0 1",
        "   2   1   0       0 2       2 3",
        "   3   1   1       1 3       2 3",
    ]
    assert draw({"pp": 1, "dp": 1, "cp": 1, "tp": 1}).splitlines()[1] == "   0   0         0"
