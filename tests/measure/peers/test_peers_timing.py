"""Timing of collectives: turns, rounds and their order, with calls whose times are chosen; and the sockets' ring."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from frog.measure.peers.limits import Around
from frog.measure.peers.measurement import Request
from frog.measure.peers.peers_rank import Bench, _elements


class Timed(Bench):
    """A bench whose calls are seconds, without a world."""

    def __init__(self, rounds: int | None = None, steps: list[float] | None = None) -> None:
        self._request = Request(("all_reduce",), (4,), ("frog",), rounds)
        self.turns: list[tuple[Any, int]] = []

    def _turn_s(self, call: Callable[[], object], repeats: int) -> float:
        self.turns.append((call, repeats))
        return call()  # type: ignore[return-value]


def constant(seconds: float) -> Callable[[], object]:
    return lambda: seconds


@pytest.mark.parametrize(
    ("seconds", "repeats", "rounds"),
    [
        (0.001, 20, 20),  # 20 ms a turn, 0.4 s for all rounds
        (0.0001, 200, 20),
        (0.00001, 500, 40),  # not more calls in a turn, not more rounds
        (0.019, 1, 21),
        (0.03, 1, 13),
        (0.09, 1, 5),  # not fewer rounds
        (1.0, 1, 5),
    ],
)
def test_short_calls_are_repeated_and_long_ones_have_fewer_rounds(seconds: float, repeats: int, rounds: int) -> None:
    bench = Timed()
    assert bench._medians({"frog": constant(seconds)}) == {"frog": (seconds, rounds)}
    is_long = seconds > 0.02
    assert [number for _, number in bench.turns] == [1, *([] if is_long else [5] * 3), *[repeats] * rounds]


def test_contenders_take_turns_and_the_first_changes() -> None:
    calls = {"frog": constant(1.0), "gloo": constant(2.0), "tcp": constant(3.0)}
    bench = Timed(rounds=4)
    assert bench._medians(calls) == {"frog": (1.0, 4), "gloo": (2.0, 4), "tcp": (3.0, 4)}
    order = [name for call, _ in bench.turns[3:] for name, each in calls.items() if each is call]
    assert [order[start : start + 3] for start in range(0, 12, 3)] == [
        ["frog", "gloo", "tcp"],
        ["gloo", "tcp", "frog"],
        ["tcp", "frog", "gloo"],
        ["frog", "gloo", "tcp"],
    ]


def test_number_of_rounds_depends_on_the_slowest_contender_and_the_median_counts() -> None:
    times = iter([0.1, 0.1, 0.2, 0.5, 0.9, 0.3])
    bench = Timed()
    found = bench._medians({"slow": lambda: next(times), "quick": constant(0.0001)})
    assert found == {"slow": (0.3, 5), "quick": (0.0001, 5)}


def test_first_time_is_the_least_of_three_after_a_warm_up() -> None:
    times = iter([0.01, 0.004, 0.002, 0.003])
    assert Timed()._first_s(lambda: next(times)) == 0.002


def test_turn_takes_the_time_of_the_slowest_rank_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 5_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)

    def call() -> None:
        nonlocal now_ns
        now_ns += 3_000_000_000

    seen: list[str] = []
    bench = Timed()
    bench._world = SimpleNamespace(  # type: ignore[assignment]
        barrier=lambda: seen.append("barrier"), gather_rows=lambda own: torch.stack([own, own + 1, own - 1])
    )
    assert Bench._turn_s(bench, call, 4) == 4.0
    assert (seen, now_ns) == (["barrier"], 12_000_005_000)


def test_ranks_have_equal_parts_of_the_buffer() -> None:
    assert [_elements(num_bytes, 4) for num_bytes in (4, 16, 31, 32, 1000, 4096)] == [4, 4, 4, 8, 248, 1024]
    assert _elements(24, 3) == 6


def test_buffers_go_around_the_ring_of_sockets() -> None:
    size, num_bytes = 3, 5_000_000  # more than the sockets hold
    ring = [Around("127.0.0.1") for _ in range(size)]
    barrier = threading.Barrier(size)

    def work(rank: int) -> bytes:
        ring[rank].connect(ring[(rank + 1) % size].address)
        barrier.wait()
        leave, arrive = bytearray([rank + 1]) * num_bytes, bytearray(num_bytes)
        for _ in range(2):
            ring[rank].pass_on(memoryview(leave), memoryview(arrive))
        ring[rank].close()
        return bytes(arrive)

    with ThreadPoolExecutor(size) as pool:
        assert list(pool.map(work, range(size))) == [bytes([(rank - 1) % size + 1]) * num_bytes for rank in range(size)]
