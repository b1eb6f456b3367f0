"""Every collective, transport, algorithm and type, compared with numpy; bit for bit equal on all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ranks import DOUBLING, RING, together

from frog.train.comm.collectives.arithmetic import BFLOAT16, Buffer
from frog.train.comm.collectives.group import Group, open_group
from frog.train.comm.collectives.rendezvous import FolderBook
from frog.train.comm.collectives.shared_memory import usable

WAYS: dict[str, dict[str, Any]] = {
    "memory 2": {"size": 2},
    "memory 4": {"size": 4},
    "ring 2": {"size": 2, "memory": False, "costs": RING},
    "ring 5": {"size": 5, "memory": False, "costs": RING},
    "doubling 3": {"size": 3, "memory": False, "costs": DOUBLING},
    "doubling 6": {"size": 6, "memory": False, "costs": DOUBLING},
    "nodes 2+1": {"size": 3, "nodes": ("a", "b", "a")},
    "nodes 2+2": {"size": 4, "nodes": ("a", "a", "b", "b"), "costs": RING},
}
TYPES = [np.dtype(name) for name in ("f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "?")] + [BFLOAT16]
NUMPY = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply, "avg": np.add}
CASES = [
    *((dtype, size, op) for dtype, size, op in itertools.product(TYPES, (1, 5, 9000), NUMPY)),
    *((dtype, 700_001, op) for dtype, op in ((np.dtype("f4"), "sum"), (BFLOAT16, "avg"))),
    (np.dtype("f4"), 0, "sum"),
]
CASES = [(dtype, size, op) for dtype, size, op in CASES if op != "avg" or dtype.kind not in "biu"]
SIZES = (1, 5, 9000, 300_001)


def bfloat16(values: NDArray[np.float32]) -> Buffer:
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16)


def float32(x: Buffer) -> NDArray[Any]:
    return (x["bfloat16"].astype(np.uint32) << 16).view(np.float32) if x.dtype == BFLOAT16 else x


def small_numbers(rank: int, size: int, dtype: np.dtype[Any]) -> Buffer:
    """Return small integers whose sums and products are exact in every type and order."""
    values = np.random.default_rng([rank, size]).integers(0, 3, size)
    return bfloat16(values.astype(np.float32)) if dtype == BFLOAT16 else values.astype(dtype)


def expected(op: str, inputs: Sequence[Buffer]) -> NDArray[Any]:
    total = float32(inputs[0]).copy()
    for x in inputs[1:]:
        total = NUMPY[op](total, float32(x))
    return total / len(inputs) if op == "avg" else total


def every_reduction(group: Group) -> list[Buffer]:
    found = [small_numbers(group.rank, size, dtype) for dtype, size, _ in CASES]
    with np.errstate(all="ignore"):
        for x, (_, _, op) in zip(found, CASES, strict=True):
            group.all_reduce(x, op)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_all_reduce_matches_numpy(way: str, tmp_path: Path) -> None:
    found = together(tmp_path, act=every_reduction, **WAYS[way])
    for number, (dtype, size, op) in enumerate(CASES):
        want = expected(op, [small_numbers(rank, size, dtype) for rank in range(WAYS[way]["size"])])
        for rank, results in enumerate(found):
            got = results[number]
            assert got.tobytes() == found[0][number].tobytes(), f"rank {rank} differs from rank 0: {dtype} {size} {op}"
            near = {"f": 1e-2 if dtype.itemsize == 2 else 1e-6, "V": 1e-2}.get(dtype.kind, 0)
            assert np.allclose(float32(got), want, rtol=near), (dtype, size, op)


@pytest.mark.parametrize("way", WAYS)
def test_random_sums_are_equal_on_all_ranks(way: str, tmp_path: Path) -> None:
    def inputs(rank: int, size: int) -> NDArray[np.float32]:
        return np.random.default_rng([7, rank, size]).normal(size=size).astype(np.float32)

    def act(group: Group) -> list[Buffer]:
        found = [inputs(group.rank, size) for size in SIZES]
        for x in found:
            group.all_reduce(x, "avg")
        return found

    ranks = range(WAYS[way]["size"])
    found = together(tmp_path, act=act, **WAYS[way])
    for number, size in enumerate(SIZES):
        want = np.mean([inputs(rank, size).astype(np.float64) for rank in ranks], axis=0)
        for rank in ranks:
            assert found[rank][number].tobytes() == found[0][number].tobytes()
        assert np.allclose(found[0][number], want, rtol=1e-5, atol=1e-6)


def every_other(group: Group) -> None:
    """Run each collective except all_reduce, and compare with the inputs of all ranks."""
    rank, size = group.rank, group.size
    for dtype, length in itertools.product((np.dtype("f4"), BFLOAT16), (1, 7, 300_000)):
        rows = [small_numbers(one, length, dtype) for one in range(size)]
        parts = [np.empty_like(rows[0]) for _ in range(size)]
        group.all_gather(parts, rows[rank])
        assert all(np.array_equal(part, row) for part, row in zip(parts, rows, strict=True)), "all_gather"
        wholes = [[small_numbers(10 * one + slot, length, dtype) for slot in range(size)] for one in range(size)]
        out = np.empty_like(rows[0])
        group.reduce_scatter(out, wholes[rank])
        assert np.array_equal(float32(out), expected("sum", [whole[rank] for whole in wholes])), "reduce_scatter"
        whole = [part.copy() for part in wholes[rank]]
        group.reduce_scatter(whole[rank], whole)
        assert np.array_equal(whole[rank], out), "reduce_scatter in place"
        group.all_to_all(parts, wholes[rank], even=True)
        assert all(np.array_equal(part, whole[rank]) for part, whole in zip(parts, wholes, strict=True)), "all_to_all"
        for root in range(size):
            x = rows[rank].copy()
            group.broadcast(x, root)
            assert np.array_equal(x, rows[root]), "broadcast"
            x = rows[rank].copy()
            group.reduce(x, root)
            assert np.array_equal(float32(x), expected("sum", rows) if rank == root else float32(rows[rank])), "reduce"
            group.gather(rows[rank], parts if rank == root else None, root)
            assert rank != root or all(np.array_equal(a, b) for a, b in zip(parts, rows, strict=True)), "gather"
            group.scatter(x, rows if rank == root else None, root)
            assert np.array_equal(x, rows[rank]), "scatter"
    uneven = [[np.full((one + other) % 3, 10 * one + other, np.int32) for other in range(size)] for one in range(size)]
    arrive = [np.empty((one + rank) % 3, np.int32) for one in range(size)]
    group.all_to_all(arrive, uneven[rank])
    assert all(np.array_equal(part, row[rank]) for part, row in zip(arrive, uneven, strict=True)), "uneven all_to_all"
    group.barrier()


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=pytest.mark.slow if way in ("ring 5", "doubling 6", "nodes 2+2") else []) for way in WAYS],
)
def test_other_collectives_match_numpy(way: str, tmp_path: Path) -> None:
    together(tmp_path, act=every_other, **WAYS[way])


@pytest.mark.parametrize("size", [2, 5])
def test_ring_sends_the_minimum_number_of_bytes(size: int, tmp_path: Path) -> None:
    elements = 500_000

    def act(group: Group) -> list[int]:
        group.all_reduce(np.ones(elements, np.float32))
        return [group.mesh.connections[peer].sent_bytes for peer in sorted(group.mesh.connections)]

    for rank, sent in enumerate(together(tmp_path, size, act, memory=False, costs=RING)):
        payload = 2 * (size - 1) / size * elements * 4
        assert payload <= sum(sent) < payload * 1.01
        after = sorted(set(range(size)) - {rank}).index((rank + 1) % size)
        assert sent[after] == sum(sent), "all of it goes to the next rank"


def test_node_sends_one_buffer_regardless_of_its_ranks(tmp_path: Path) -> None:
    def act(group: Group) -> int:
        def sent() -> int:
            return sum(connection.sent_bytes for connection in group.mesh.connections.values())

        before = sent()
        group.all_reduce(np.ones(100_000, np.float32))
        return sent() - before

    sent = together(tmp_path, 4, act, nodes=("a", "a", "b", "b"), costs=RING)
    assert sent[1] == sent[3] == 0
    assert 400_000 <= sent[0] < 404_000


def test_mean_of_integers_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="avg of int32"):
        together(tmp_path, 2, lambda group: group.all_reduce(np.ones(3, np.int32), "avg"))


def test_several_groups_work_concurrently(tmp_path: Path) -> None:
    (tmp_path / "pairs").mkdir()

    def act(group: Group) -> list[float]:
        pair, place = divmod(group.rank, 2)
        folder = tmp_path / "pairs" / str(pair)
        folder.mkdir(exist_ok=True)
        inner = open_group(FolderBook(folder, 20), place, 2, name=f"pair {pair}", node="one")
        x, y = np.full(100_000, float(group.rank)), np.full(100_000, float(group.rank))
        inner.all_reduce(x)
        group.all_reduce(y)
        inner.close()
        return [float(x[0]), float(y[-1])]

    assert together(tmp_path / "all", 4, act, memory=False) == [[1, 6], [1, 6], [5, 6], [5, 6]]


@pytest.mark.parametrize(("system", "processor", "shares"), [
    ("linux", "x86_64", True), ("linux", "aarch64", False), ("darwin", "x86_64", False), ("darwin", "arm64", False),
])  # fmt: skip
def test_shared_memory_needs_linux_and_ordered_writes(
    monkeypatch: pytest.MonkeyPatch, system: str, processor: str, shares: bool
) -> None:
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("platform.machine", lambda: processor)
    assert usable() == shares
