"""Ranks in turns: a seed determines the order, and the clock advances only when no rank can run."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator

import pytest

from frog.learn.grader.turns import ASKS, TOO_MUCH, WAITS, Turns, TurnStore, pretend_clock

Rank = Callable[[int, TurnStore], None]


@pytest.fixture(autouse=True)
def clock() -> Iterator[None]:
    names = [name + unit for name in ("monotonic", "perf_counter", "time") for unit in ("", "_ns")] + ["sleep"]
    real = {name: getattr(time, name) for name in names}
    pretend_clock()
    yield
    for name, function in real.items():
        setattr(time, name, function)


def run(rank_does: Rank, size: int = 2, seed: int = 1, **order: int | None) -> Turns:
    """Run the same function on all ranks and raise the first exception."""
    turns = Turns(seed, size, 100.0, **order)
    values: dict[str, bytes] = {}
    stores = [TurnStore(turns, rank, values, set()) for rank in range(size)]
    errors = turns.run([functools.partial(rank_does, rank, stores[rank]) for rank in range(size)])
    if errors:
        raise errors[0]
    return turns


def order_of(seed: int, **order: int | None) -> list[int]:
    """Return the order in which ranks add to a counter, three times each."""
    came: list[int] = []

    def count(rank: int, store: TurnStore) -> None:
        for _ in range(3):
            store.add("counter", 1)
            came.append(rank)

    run(count, 3, seed, **order)
    return came


def test_seed_determines_the_order_of_turns() -> None:
    assert order_of(1) == order_of(1)
    assert len({tuple(order_of(seed)) for seed in range(8)}) > 4
    assert order_of(1, quick=2)[:3] == [2, 2, 2]
    assert order_of(1, slow=2)[-3:] == [2, 2, 2]


def test_world_in_which_every_rank_waits_is_stopped() -> None:
    def wait_for_each_other(rank: int, store: TurnStore) -> None:
        store.wait([f"done/{1 - rank}"])
        store.set(f"done/{rank}", "")

    turns = run(wait_for_each_other)
    assert turns.stopped == WAITS
    assert turns.waiting == {0, 1}
    assert turns.does == {0: "wait(done/1)", 1: "wait(done/0)"}


def test_endless_polling_and_endless_writing_are_stopped() -> None:
    def ask(rank: int, store: TurnStore) -> None:
        while not store.check(["never"]):
            time.sleep(0.005)

    def write(rank: int, store: TurnStore) -> None:
        while True:
            store.add("counter", 1)

    assert run(ask).stopped == ASKS
    assert run(write).stopped == TOO_MUCH


@pytest.mark.parametrize("pause_s", [0.0, 0.0001, 0.5, 3.0])
def test_deadline_loop_ends_on_the_simulated_clock(pause_s: float) -> None:
    took_s = []

    def ask_until(rank: int, store: TurnStore) -> None:
        began_s = time.monotonic()
        while not store.check(["never"]) and time.monotonic() < began_s + 10.0:
            if pause_s:
                time.sleep(pause_s)
        took_s.append(time.monotonic() - began_s)

    assert run(ask_until).stopped is None
    assert all(10.0 <= each <= 10.5 + pause_s for each in took_s)


def test_wait_times_out_when_no_other_rank_can_run() -> None:
    def wait(rank: int, store: TurnStore) -> None:
        if rank == 0:
            time.sleep(5.0)
            store.set("late", "")
            return
        with pytest.raises(TimeoutError, match=r"3\.000 s"):
            store.wait(["late"], 3.0)
        began_s = time.monotonic()
        store.wait(["late"], 3.0)
        assert time.monotonic() - began_s == pytest.approx(2.0)

    assert run(wait).stopped is None


def test_get_waits_again_if_its_key_is_deleted_while_polling() -> None:
    def read_twice(rank: int, store: TurnStore) -> None:
        if rank == 0:
            store.set("key", "1")
            time.sleep(0.0015)
            store.delete_key("key")
            time.sleep(5.0)
            store.set("key", "2")
            return
        while store.get("key") == b"1":
            pass

    assert run(read_twice).stopped is None
