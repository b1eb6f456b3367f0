"""Timing of collectives: turns, rounds and their order, with calls whose times are chosen; and the sockets' ring."""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from frog.measure.peers import peers_rank
from frog.measure.peers.limits import Around
from frog.measure.peers.measurement import Limit, Request, Result, Row
from frog.measure.peers.open_mpi import OpenMPI
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


@pytest.mark.parametrize(
    ("takes", "gives", "yields"),
    [
        ([1, 1, 1, 1, 1], [3], 0),  # all has arrived before all is sent
        ([5], [1, 1, 1], 0),
        ([None, 5], [None, 3], 1),
        ([2, None, 3], [None, None, 2, None, 1], 2),
    ],
)
def test_each_direction_ends_by_itself_and_a_look_at_nothing_yields_the_core(
    takes: list[int | None], gives: list[int | None], yields: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: the socket is not ready. A byte more or less would belong to the next message."""
    sent, yielded = bytearray(), list[bool]()

    def send(data: memoryview) -> int:
        if (count := takes.pop(0)) is None:
            raise BlockingIOError
        sent.extend(data[:count])
        return count

    def recv_into(room: memoryview) -> int:
        if (count := gives.pop(0)) is None:
            raise BlockingIOError
        room[:count] = bytes(len(gives) + 1 for _ in range(count))
        return count

    monkeypatch.setattr("os.sched_yield", lambda: yielded.append(True))
    around = Around.__new__(Around)
    around._after, around._before = SimpleNamespace(send=send), SimpleNamespace(recv_into=recv_into)  # type: ignore[assignment]
    arrived = bytearray(3)
    around.pass_on(memoryview(b"abcde"), memoryview(arrived))
    assert (bytes(sent), takes, gives, len(yielded)) == (b"abcde", [], [], yields)
    assert 0 not in arrived


# ---- a rank from its start to its end --------------------------------------------------------------------------------


class Ring:
    """Stands for the sockets of a rank."""

    def __init__(self, host: str) -> None:
        self.address, self.after = (host, 7), None
        self.is_open = True

    def connect(self, after: tuple[str, int]) -> None:
        self.after = after

    def close(self) -> None:
        self.is_open = False


@pytest.mark.parametrize(("rank", "after"), [(0, "one"), (1, "two"), (2, "zero")])
def test_each_rank_connects_to_the_next_and_the_last_to_the_first(
    rank: int, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather(places: list[Any], own: tuple[str, int]) -> None:
        assert own == ("here", 7)
        places[:] = ["zero", "one", "two"][: len(places)]

    monkeypatch.setattr(peers_rank, "Around", Ring)
    monkeypatch.setattr(peers_rank, "own_host", lambda address: {"10.0.0.1": "here"}[address])
    monkeypatch.setattr(peers_rank, "_group", lambda name: SimpleNamespace(group=SimpleNamespace(costs=None)))
    monkeypatch.setattr(dist, "all_gather_object", gather)
    world: Any = SimpleNamespace(rank=rank, size=3, env=SimpleNamespace(master_addr="10.0.0.1"))
    for steps in (False, True):
        bench = Bench(Request(("all_reduce",), (4,), ("tcp", "frog"), steps=steps), world)
        assert bench._around.after == after  # type: ignore[attr-defined]
        costs = bench._groups["tcp"].group.costs
        assert (costs is not None) == steps
        assert costs is None or not costs.takes_ring(1 << 40, 8)  # else not a single step would be timed
        assert bench._groups["frog"].group.costs is None
        bench.close()
        assert not bench._around.is_open  # type: ignore[attr-defined]


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize(("is_main", "local_size", "several"), [(True, 4, False), (True, 2, True), (False, 4, None)])
def test_main_rank_writes_what_was_measured(
    steps: bool, is_main: bool, local_size: int, several: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Measured:
        def __init__(self, request: Request, world: Any) -> None:
            assert request.steps == steps

        def rows(self) -> list[Row]:
            return [Row("all_reduce", 4, "frog", 0.5, 3)]

        def limits(self) -> list[Limit]:
            return [Limit("memory", 4, 0.25)]

        def close(self) -> None:
            done.append("closed")

    env = SimpleNamespace(local_world_size=local_size)
    world = SimpleNamespace(
        size=4, env=env, is_main=is_main, barrier=lambda: done.append("met"), leave=lambda: done.append("left")
    )
    monkeypatch.setattr(peers_rank, "Bench", Measured)
    monkeypatch.setattr(peers_rank, "world_env", lambda: env)
    monkeypatch.setattr(peers_rank, "join_world", lambda *_: world)
    monkeypatch.setattr(peers_rank, "register", lambda: None)
    request, answer = tmp_path / "request.json", tmp_path / "answer.json"
    Request(("all_reduce",), (4,), ("frog",), steps=steps).write(request)
    threads = torch.get_num_threads()
    try:
        assert peers_rank.main([str(request), str(answer)]) == 0
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
    assert done == ["met", "closed", "left"]
    assert answer.exists() == is_main
    if several is not None:
        limits = () if steps else (Limit("memory", 4, 0.25),)
        expected = Result(4, several, (Row("all_reduce", 4, "frog", 0.5, 3),), limits)
        assert Result.of(json.loads(answer.read_text())) == expected


class Library:
    """Stands for Open MPI's library: three symbols, and functions that note their arguments."""

    def __init__(self) -> None:
        self.symbols = {name: ctypes.c_char() for name in ("comm_world", "float", "op_sum")}
        self.calls: list[tuple[str, ...]] = []
        self.names: dict[int | None, str] = {ctypes.addressof(symbol): name for name, symbol in self.symbols.items()}
        self.names[1] = "in place"

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*args: Any) -> int:
            self.calls.append((name, *(self._word(arg) for arg in args)))
            return 0

        return call

    def _word(self, arg: Any) -> str:
        return self.names.get(arg.value, "?") if isinstance(arg, ctypes.c_void_p) else str(arg)


@pytest.mark.parametrize(
    ("operation", "called"),
    [
        ("all_reduce", "MPI_Allreduce in_place whole 12 float op_sum comm_world"),
        ("broadcast", "MPI_Bcast whole 12 float 0 comm_world"),
        ("all_gather", "MPI_Allgather part 4 float whole 4 float comm_world"),
        ("reduce_scatter", "MPI_Reduce_scatter_block whole part 4 float op_sum comm_world"),
        ("all_to_all", "MPI_Alltoall whole 4 float other 4 float comm_world"),
    ],
)
def test_operation_of_open_mpi_has_its_standard_arguments(
    operation: str, called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the MPI standard: buffers, counts, types, the sum or the root, and the communicator."""
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda name, mode: library)
    monkeypatch.setattr(
        "frog.measure.peers.open_mpi.ctypes.c_char",
        SimpleNamespace(in_dll=lambda _, name: library.symbols[name.removeprefix("ompi_mpi_")]),
    )
    mpi = OpenMPI()
    buffers = {"whole": np.zeros(12, "float32"), "part": np.zeros(4, "float32"), "other": np.zeros(12, "float32")}
    library.names |= {array.ctypes.data: name for name, array in buffers.items()}
    mpi.call(operation, *buffers.values())()
    mpi.close()
    init, call, end = library.calls
    assert (init[0], end) == ("MPI_Init", ("MPI_Finalize",))
    assert " ".join(word.replace(" ", "_") for word in call) == called


def test_buffers_of_open_mpi_are_those_of_the_other_contenders() -> None:
    seen: list[Any] = []
    mpi = OpenMPI.__new__(OpenMPI)
    mpi.call = lambda operation, *arrays: seen.append((operation, [array.size for array in arrays]))  # type: ignore[assignment, return-value]
    _call("all_to_all", 12, 3, mpi)
    assert seen == [("all_to_all", [12, 4, 12])]
    finished: list[bool] = []
    mpi.close = lambda: finished.append(True)  # type: ignore[method-assign]
    bench = Timed()
    bench._around, bench._groups = Ring("here"), {"mpi": mpi, "frog": object()}  # type: ignore[assignment]
    bench.close()
    assert finished == [True]
