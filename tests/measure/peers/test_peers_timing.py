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
import torch.distributed as dist

from frog.measure.peers import peers_rank
from frog.measure.peers.limits import Around
from frog.measure.peers.measurement import Limit, Request, Row
from frog.measure.peers.peers_rank import Bench, _call, _elements, _group
from frog.train.comm.process_group import FrogProcessGroup


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


@pytest.mark.parametrize(
    ("contender", "made"), [("gloo", ("gloo", None)), ("frog", ("frog", None)), ("tcp", ("frog", False))]
)
def test_tcp_is_frog_without_shared_memory(
    contender: str, made: tuple[str, bool | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "new_group", lambda backend: (backend, FrogProcessGroup.memory))
    assert _group(contender) == made
    assert FrogProcessGroup.memory is None


@pytest.mark.parametrize(
    ("operation", "called", "sizes"),
    [
        ("all_reduce", "all_reduce", [12]),
        ("broadcast", "broadcast", [12, 0]),
        ("all_gather", "all_gather_single", [12, 4]),
        ("reduce_scatter", "reduce_scatter_single", [4, 12]),
        ("all_to_all", "all_to_all_single", [12, 12]),
    ],
)
def test_operation_is_called_with_whole_buffers_and_parts(
    operation: str, called: str, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, list[int], object]] = []
    for module, names in (
        (dist, ("all_reduce", "broadcast", "all_to_all_single")),
        (peers_rank, ("all_gather_single", "reduce_scatter_single")),
    ):
        for name in names:
            monkeypatch.setattr(
                module,
                name,
                lambda *args, group, name=name: calls.append(
                    (name, [x.numel() if isinstance(x, torch.Tensor) else x for x in args], group)
                ),
            )
    _call(operation, 12, 3, "the group")()
    assert calls == [(called, sizes, "the group")]


def test_rows_and_limits_have_every_size_of_whole_buffers() -> None:
    bench = Timed(rounds=2)
    bench._request = Request(("all_reduce", "broadcast"), (10, 40), ("frog", "gloo"), 2)
    bench._world = SimpleNamespace(size=3)  # type: ignore[assignment]
    bench._groups = {"frog": None, "gloo": None}
    bench._around = SimpleNamespace(pass_on=len)  # type: ignore[assignment]
    bench._medians = lambda calls: dict.fromkeys(calls, (0.5, 2))  # type: ignore[method-assign]
    assert bench.rows() == [
        Row(operation, size, name, 0.5, 2)
        for operation in ("all_reduce", "broadcast")
        for size in (12, 36)
        for name in ("frog", "gloo")
    ]
    assert bench.limits() == [Limit(name, size, 0.5) for size in (12, 36) for name in ("memory", "sockets")]


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
