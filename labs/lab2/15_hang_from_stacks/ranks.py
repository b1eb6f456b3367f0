"""Make four processes hang in several ways, one after the other, and return their stacks."""

import faulthandler
import os
import re
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

SIZE = 4
HOME = "/home/you/project/trainer.py"
"""The program's path in the stacks."""
ENDS_IN = {"loads": "get", "cleans": "clean", "logs": "log", "evaluates": "all_reduce", "saves": "barrier"}
"""The innermost function of the odd rank's training thread outside the library, for each kind of hang."""


def make_group(name: str, rank: int, size: int) -> Any:
    return dist.ProcessGroupGloo(dist.FileStore(name, size), rank, size, timedelta(seconds=60))


def make_groups(number: int, rank: int, is_cut: bool) -> list[Any]:
    """Create groups for gradients and control. With a cut link, a member of the first exists but never answers."""
    size, groups = SIZE + is_cut, []
    makers = [threading.Thread(target=lambda: groups.append(make_group(f"gradients{number}", rank, size)))]
    if is_cut and rank == 0:
        makers.append(threading.Thread(target=lambda: _kept.append(make_group(f"gradients{number}", SIZE, size))))
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    return [*groups, make_group(f"control{number}", rank, SIZE)]


_kept: list[Any] = []


def take_stacks(number: int, rank: int, threads: list[threading.Thread], last: str) -> str:
    """Return the stacks of these threads, once the first of them has reached the function `last`."""
    path = Path(f"stacks{number}.{rank}")
    idents = [thread.ident for thread in threads]
    while True:
        with path.open("w") as file:
            faulthandler.dump_traceback(file)
        found = dict.fromkeys(idents, "")
        for part in re.split(r"\n(?=Thread|Current)", path.read_text()):
            ident = int(part.split()[1 if part.startswith("Thread") else 2], 16)
            if ident in found:
                found[ident] = part.strip() + "\n"
        if all(found.values()) and re.search(rf" in {last}$", found[idents[0]], re.MULTILINE):
            return "\n".join(found[ident] for ident in idents)
        if not threads[0].is_alive():
            raise RuntimeError(f"the training thread has ended: {path.read_text()}")
        time.sleep(0.005)


def wait_for_all(number: int, rank: int) -> None:
    """Wait until every rank has its stacks. A rank that continues earlier would free the others from their hang."""
    store = dist.FileStore(f"taken{number}", SIZE)
    store.set(str(rank), "has its stacks")
    store.wait([str(other) for other in range(SIZE)], timedelta(seconds=60))


def hang(case: dict[str, Any], number: int, rank: int, source: str) -> list[str]:
    """Hang in one way; return the stacks of this rank's threads."""
    trainer = ModuleType("trainer")
    exec(compile("#\n" * case["shift"] + source, HOME, "exec"), vars(trainer))
    is_odd = rank == case["odd"]
    mine, theirs = ("trains", "evaluates") if case["does"] == "trains" else (case["does"], "trains")
    plan = {"does": mine if is_odd else theirs, "ends": threading.Event()}
    groups = make_groups(number, rank, case["does"] == "cut")
    one = trainer.Trainer(*groups, torch.ones(8), plan)
    stop = threading.Event()
    targets = [(one.run, ()), (trainer.prefetch, (stop,)), (trainer.heartbeat, (stop,))]
    threads = [threading.Thread(target=target, args=args, daemon=True) for target, args in targets]
    for thread in threads:
        thread.start()
    last = ENDS_IN.get(case["does"], "all_reduce") if is_odd else "all_reduce"
    stacks = take_stacks(number, rank, threads, last)
    wait_for_all(number, rank)
    stop.set()
    plan["ends"].set()
    _kept.append(one)
    return stacks.split("\n\n")


def run(learner: ModuleType, case: dict[str, Any]) -> Any:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    return [hang(one, number, rank, case["source"]) for number, one in enumerate(case["runs"])]


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    return [learner.find_hang(list(stacks)) for stacks in case["stacks"]]
