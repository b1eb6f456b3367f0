"""Run the learner's barrier with ranks that run in turn, in an order drawn from a seed; then on a real store."""

import functools
import time
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
import torch.distributed as dist

from frog.learn.grader.turns import TOO_MUCH, Turns, TurnStore, pretend_clock

PATIENCE_S = 5.0
"""Seconds of the simulated clock during which ranks may poll while no rank writes."""
LATE_S = 3.0
"""Seconds of the simulated clock for which a late rank works before each barrier."""
pretend_clock()


def work(learner: ModuleType, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Run each order of the case; return the ranks that left a barrier too early, and those that wait forever."""
    source = compile(Path(str(learner.__file__)).read_bytes(), str(learner.__file__), "exec")
    return [take_turns(source, learner.__name__, **each) for each in case["runs"]]


def fresh(source: CodeType, name: str) -> ModuleType:
    """Load the learner's module again: each rank has its own copy, as each process has."""
    module = ModuleType(name)
    exec(source, vars(module))
    return module


def take_turns(
    source: CodeType,
    module: str,
    seed: int,
    size: int,
    quick: int | None,
    slow: int | None,
    late: int | None,
    names: list[str],
    rounds: int,
) -> dict[str, Any]:
    """Let all ranks meet at each of the named barriers in turn, `rounds` times.

    `early`: [rank, name, number, number of ranks that had arrived, whether it had read or waited for a key, whether one
    of these keys existed before the first rank arrived at that barrier]. `cleared`: keys that a rank had cleared, and
    that let another through too early or leave it waiting forever. `polled`: the keys that each waiting rank read last,
    with their values. `numbers`: the numbers in the store.
    """
    came: dict[str, int] = dict.fromkeys(names, 0)
    at: dict[int, list[Any]] = {}
    early: list[list[Any]] = []
    doors: set[str] = set()
    began: dict[tuple[str, int], int] = {}
    turns = Turns(seed, size, PATIENCE_S, quick, slow)
    values: dict[str, bytes] = {}
    cleared: set[str] = set()
    stores = [TurnStore(turns, rank, values, cleared) for rank in range(size)]

    def come(rank: int, name: str, number: int) -> None:
        came[name] += 1
        began.setdefault((name, number), turns.version)
        at[rank] = [name, number]

    def leave(rank: int, name: str, number: int) -> None:
        at.pop(rank)
        if came[name] < size * number:
            looked = stores[rank].looked
            are_old = any(turns.made.get(key, 0) <= began[name, number] for key in looked)
            early.append([rank, name, number, came[name] - size * (number - 1), bool(looked), are_old])
            doors.update(looked)

    def be(rank: int) -> None:
        learner = fresh(source, module)
        barriers = {name: learner.Barrier(stores[rank], name, rank, size) for name in names}
        for number in range(1, rounds + 1):
            for name in names:
                if rank == late:
                    time.sleep(LATE_S)
                turns.do(rank, "come()", functools.partial(come, rank, name, number))
                stores[rank].looked = set()
                barriers[name].wait()
                leave(rank, name, number)

    errors = turns.run([functools.partial(be, rank) for rank in range(size)])
    if errors:
        raise errors[0]
    waits = {str(rank): [*at[rank], turns.does.get(rank, "")] for rank in sorted(at)}
    doors.update(*(stores[rank].looked for rank in at))
    stuck = turns.stopped and ("spins" if turns.stopped == TOO_MUCH else "waits")
    seen = {"counts": dict(turns.counts), "cleared": sorted(doors & cleared), "writes": turns.version}
    seen["lost"] = sorted(turns.lost)
    seen["polled"] = {str(rank): {key: values.get(key) for key in stores[rank].looked} for rank in at}
    seen["numbers"] = {key: int(value) for key, value in values.items() if value.isdigit() and stuck}
    return {"early": early, "stuck": stuck, "waits": waits, **seen}


def meet(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    """Meet at barriers of a real TCPStore; return when this rank arrived at and left each, in ns of one clock.

    A different rank each time waits until the others have arrived. Then count twice with the same key, for the
    prediction.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    port = torch.zeros(1, dtype=torch.int64)
    if rank == 0:
        serving = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port[0] = serving.port
    dist.broadcast(port, 0)
    store = serving if rank == 0 else dist.TCPStore("127.0.0.1", int(port[0]), is_master=False)
    barrier = learner.Barrier(store, "checkpoint", rank, size)
    moments = []
    for number in range(case["rounds"]):
        if rank == number % size:
            store.wait([f"held/{number}/{other}" for other in range(size) if other != rank])
        else:
            store.set(f"held/{number}/{rank}", "")
        came = time.monotonic_ns()
        barrier.wait()
        moments.append([came, time.monotonic_ns()])
    counts = [store.add("predicted", 1) for _ in range(2)]
    dist.all_reduce(port)
    return {"moments": moments, "count": max(counts)}
