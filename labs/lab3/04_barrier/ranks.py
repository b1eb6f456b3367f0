"""Run the learner's barrier with ranks that take turns, in an order that a seed decides; then on a real store."""

import functools
import time
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
import torch.distributed as dist

from frog.learn.grader.turns import TOO_MUCH, Turns, TurnStore, pretend_clock

PATIENCE_S = 5.0
"""Of the pretended clock: how long ranks may ask again and again when nobody writes."""
LATE_S = 3.0
"""Of the pretended clock: how long a late rank works before it comes to each barrier."""
pretend_clock()


def work(learner: ModuleType, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Each run of the case: who left a barrier before all had come, and who waits for ever."""
    source = compile(Path(str(learner.__file__)).read_bytes(), str(learner.__file__), "exec")
    return [take_turns(source, learner.__name__, **each) for each in case["runs"]]


def fresh(source: CodeType, name: str) -> ModuleType:
    """The learner's module once more: each rank has its own, as each process has."""
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
    """All ranks meet at each of the named barriers in turn, `rounds` times.

    `early`: [rank, name, number, how many had come, whether it had read or waited for a key, whether one of these keys
    was there before the first rank came to that barrier]. `cleared`: keys that let a rank through too early, or for
    which one waits for ever, and that somebody had cleared. `polled`: the keys that each waiting rank looked at last,
    with their values. `numbers`: the numbers that the store holds.
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
    """Meet at barriers of a real TCPStore; when this rank came to each and left it, in nanoseconds of one clock.

    One rank, another each time, is held back until the others have come. Then count twice to the same key, as for the
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
