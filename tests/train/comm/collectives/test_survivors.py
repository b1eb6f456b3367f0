"""Ranks are lost in the middle of collectives: the others agree on the outcome, and continue."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness import LIMIT_S
from mortal import Killed, Mortal, die, limits
from ranks import DOUBLING, RING, be_all

from frog.core.runs.observer import observing
from frog.train.comm.collectives.errors import CollectiveError, Mismatch, PeerClosed
from frog.train.comm.collectives.group import Group
from frog.train.comm.collectives.rendezvous import FolderBook
from frog.train.comm.elastic import survivors as room
from frog.train.comm.elastic.agreement import LeftOut, Proposal, WorldChanged
from frog.train.comm.elastic.consensus import Consensus
from frog.train.comm.elastic.entrance import meet_survivors
from frog.train.comm.elastic.survivors import Survivors

STEPS = 6
"""More steps than any dying rank completes."""
ELEMENTS = 150_000
WAYS: dict[str, dict[str, Any]] = {
    "memory": {},
    "ring": {"memory": False, "costs": RING},
    "doubling": {"memory": False, "costs": DOUBLING},
    "nodes": {"nodes": ("a", "b", "a", "b"), "costs": RING},
}


@pytest.fixture(autouse=True)
def _mortal() -> Iterator[None]:
    with observing(Mortal()):
        yield


def gift(rank: int, step: int) -> np.ndarray[Any, Any]:
    return np.full(ELEMENTS, float(10**rank * (step + 1)))


def steps_of(world: Survivors, changes: list[tuple[int, ...]]) -> list[float]:
    """Run every step, again if the world changed in it. Return the results."""
    sums = []
    while len(sums) < STEPS:
        x = gift(world.identity, len(sums))
        try:
            world.all_reduce(x)
        except WorldChanged as changed:
            assert np.array_equal(x, gift(world.identity, len(sums))), "the buffer has changed"
            changes.append(changed.members)
            continue
        assert (x == x[0]).all()
        sums.append(float(x[0]))
    return sums


def live(
    folder: Path, size: int, deaths: dict[int, int], nodes: tuple[str, ...] = (), **options: Any
) -> dict[int, Any]:
    """Run the steps in a world whose ranks die after a number of signs of life. Return each survivor's results."""
    folder.mkdir(exist_ok=True)
    seen: dict[int, Any] = {}
    ready = threading.Barrier(size)

    def be(rank: int) -> None:
        book = FolderBook(folder, 20)
        node = nodes[rank] if nodes else "one"
        world = meet_survivors(book, rank, size, b"secret", node=node, timeout_s=20, **options)
        ready.wait(LIMIT_S)
        limits.left = deaths.get(rank)
        changes: list[tuple[int, ...]] = []
        try:
            sums = steps_of(world, changes)
            if rank not in deaths:
                seen[rank] = (sums, changes)
                ends.wait(LIMIT_S)
        except Killed:
            die(world)
        except BaseException as error:
            seen[rank] = error
        finally:
            limits.left = None
            die(world)

    ends = threading.Barrier(size - len(deaths))
    be_all(be, size)
    return seen


def check(seen: dict[int, Any], size: int, deaths: dict[int, int]) -> None:
    survivors = sorted(set(range(size)) - set(deaths))
    assert sorted(seen) == survivors, seen
    sums, changes = seen[survivors[0]]
    assert not changes or changes[-1] == tuple(survivors)
    for rank in survivors:
        assert seen[rank][0] == sums, "survivors have different sums"
        assert seen[rank][1][-1:] == changes[-1:], "survivors are in different worlds"
    worlds = [tuple(range(size)), *(world for rank in survivors for world in seen[rank][1])]
    for step, value in enumerate(sums):
        allowed = [sum(10**rank * (step + 1) for rank in world) for world in worlds]
        assert value in allowed, f"step {step}: {value} is the sum of no world {worlds}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "after", [0, 3, 11, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2, 5, 8, 17, 25))]
)
def test_survivors_agree_if_a_rank_is_lost_anywhere(way: str, after: int, tmp_path: Path) -> None:
    deaths = {after % 4: after}
    seen = live(tmp_path, 4, deaths, **WAYS[way])
    check(seen, 4, deaths)
    assert next(iter(seen.values()))[1], "no rank was lost"


@pytest.mark.parametrize("way", ["memory", "ring"])
@pytest.mark.parametrize(("first", "second"), [(0, 0), (3, 4), (2, 12), (7, 9)])
def test_survivors_agree_if_two_ranks_are_lost(way: str, first: int, second: int, tmp_path: Path) -> None:
    deaths = {0: first, 2: second}
    check(live(tmp_path, 4, deaths, **WAYS[way]), 4, deaths)


def test_world_of_two_survives_the_loss_of_either_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        deaths = {rank: 4}
        check(live(tmp_path / str(rank), 2, deaths), 2, deaths)


def test_world_without_losses_does_not_change(tmp_path: Path) -> None:
    seen = live(tmp_path, 3, {})
    assert seen[0] == ([111.0 * (step + 1) for step in range(STEPS)], [])
    check(seen, 3, {})


def test_silent_rank_is_excluded_and_notified_when_it_wakes(tmp_path: Path) -> None:
    verdicts: dict[int, Any] = {}
    asleep = threading.Event()

    def be(rank: int) -> None:
        options = {"timeout_s": 20, "patience_s": 3.0, "memory": False}
        world = meet_survivors(FolderBook(tmp_path, 20), rank, 3, b"secret", node="one", **options)
        world.group.mesh.timeout_s = 0.5
        x = np.ones(10)
        try:
            if rank == 1:
                asleep.wait(LIMIT_S)
            world.all_reduce(x)
        except (WorldChanged, LeftOut) as verdict:
            verdicts[rank] = (type(verdict), world.members)
        if rank != 1:
            world.all_reduce(x)
            verdicts[rank] += (float(x[0]),)
            world.barrier()
        asleep.set()
        world.close()

    be_all(be, 3)
    assert verdicts[0] == verdicts[2] == (WorldChanged, (0, 2), 2.0)
    assert verdicts[1][0] is LeftOut


def quarrel(folder: Path, way: str, odd: Callable[[Survivors], None]) -> dict[int, CollectiveError]:
    """Return the errors of a world of four in which rank 2 calls `odd` while the others sum a gradient."""
    ends: dict[int, CollectiveError] = {}
    options = {"timeout_s": 20, "patience_s": 20.0, **WAYS[way]}
    nodes, ready = options.pop("nodes", ("one",) * 4), threading.Barrier(4)

    def be(rank: int) -> None:
        world = meet_survivors(FolderBook(folder, 20), rank, 4, b"secret", node=nodes[rank], **options)
        world.group.mesh.timeout_s = 1  # some ranks wait for bytes that never arrive
        ready.wait(LIMIT_S)
        for _ in range(5):
            try:
                odd(world) if rank == 2 else world.all_reduce(np.ones(ELEMENTS))
            except WorldChanged as changed:
                ends[rank] = changed
            except CollectiveError as error:
                ends[rank] = error
                break
        world.close()

    be_all(be, 4)
    return ends


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("odd", "called"),
    [
        (lambda world: world.all_reduce(np.ones(ELEMENTS // 2)), "all_reduce of 600000 bytes"),
        (lambda world: world.broadcast(np.ones(ELEMENTS), 0), "broadcast of 1200000 bytes from 0"),
    ],
    ids=["size", "kind"],
)
def test_ranks_that_call_different_collectives_all_fail(
    way: str, odd: Callable[[Survivors], None], called: str, tmp_path: Path
) -> None:
    ends = quarrel(tmp_path, way, odd)
    assert {rank: type(error) for rank, error in ends.items()} == dict.fromkeys(range(4), Mismatch), ends
    for rank, error in ends.items():
        assert str(error).startswith(f"rank {2 if rank != 2 else error.peer} of the group calls "), ends
        assert called in str(error), ends


def test_rank_that_is_one_collective_behind_also_fails_on_disagreement(tmp_path: Path) -> None:
    """Rank 1 is in the barrier after a sum that the others have left; these have disagreed meanwhile and ended."""
    ends: dict[int, CollectiveError] = {}
    quarrelled = threading.Barrier(3)

    def be(rank: int) -> None:
        world = meet_survivors(FolderBook(tmp_path, 20), rank, 3, b"secret", node="one", timeout_s=20)
        if rank == 1:
            barrier = world.group.barrier

            def wait_long() -> None:
                barrier()
                quarrelled.wait(LIMIT_S)
                raise PeerClosed(0)

            world.group.barrier = wait_long  # type: ignore[method-assign]
        try:
            world.all_reduce(np.ones(ELEMENTS))
            world.all_reduce(np.ones(ELEMENTS)) if rank != 2 else world.barrier()
        except CollectiveError as error:
            ends[rank] = error
        world.close()
        if rank != 1:
            quarrelled.wait(LIMIT_S)

    be_all(be, 3)
    assert {rank: type(error) for rank, error in ends.items()} == dict.fromkeys(range(3), Mismatch), ends


def test_isolated_half_without_the_lowest_rank_does_not_continue() -> None:
    def is_quorum(alive: set[int], dead: tuple[int, ...] = ()) -> bool:
        own = Proposal(False, 1, frozenset(), 0, 0, 1, (0, 0), "")
        world = Consensus(1, range(4), (), dead, own, patience_s=1, quorum_patience_s=1, now_s=0)
        world.alive = frozenset(alive)
        return world.is_quorum()

    assert is_quorum({0, 3})
    assert is_quorum({1, 2, 3})
    assert not is_quorum({1, 2})
    assert is_quorum({1, 2}, dead=(0,))


def test_rank_that_wakes_late_accepts_the_decision_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 is silent. When rank 2 wakes, its patience is over, and the others have already excluded rank 0."""
    late = Survivors.__new__(Survivors)
    late.identity, late.members, late.epoch = 2, (0, 1, 2, 3), 0
    late.left_out = set()
    late._dead, late._joining, late._inbox, late._patience_s = set(), set(), [], 0.01
    late._completed = late._settled = 5
    late._begun, late._call = (0, 0), ""
    late._lines = {0: SimpleNamespace(close=lambda: None)}  # type: ignore[dict-item]
    late._tell = lambda proposal, peers: None  # type: ignore[method-assign]

    now_s = 1000.0
    monkeypatch.setattr(room.time, "monotonic", lambda: now_s)

    def receive(until_s: float) -> None:
        nonlocal now_s
        now_s = until_s + 0.001
        said = [Proposal(False, 1, frozenset({1, 2, 3}), 5, 5, 70 + peer, (0, 0), "") for peer in (1, 3)]
        late._inbox += zip((1, 3), said, strict=True)

    late._receive = receive  # type: ignore[method-assign]
    place = SimpleNamespace(peer=SimpleNamespace(port=72))
    assert late._agree(place, 0.01) == {1: 71, 2: 72, 3: 73}  # type: ignore[arg-type]
    assert late.members == (1, 2, 3)


def pipes_and_sockets() -> set[str]:
    """Return the pipes and sockets that this process has open."""
    names = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            names.add(os.readlink(entry))
    return {name for name in names if name.startswith(("pipe:", "socket:"))}


def test_group_that_fails_to_form_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are lost repeatedly while the others connect: a process may open only a limited number of files."""
    before = pipes_and_sockets()
    world = meet_survivors(FolderBook(tmp_path, 20), 0, 1, b"secret")
    failures = [PeerClosed(1), PeerClosed(1)]

    def group(*told: Any) -> Group:
        if failures:
            raise failures.pop()
        return Group(*told)

    monkeypatch.setattr(room, "Group", group)
    world.group.close()
    world.group = world._regroup(1.0)
    world.close()
    assert not failures
    assert not pipes_and_sockets() - before
