"""A probe that needs torch: `python -m frog.learn.doctor.doctor_rank RANK FILE`, one of two ranks with the store FILE.

Rank 0 first reports the torch version. Then both run every gloo operation and compare its result with the expected one.
Rank 1 then imports the packages that depend on torch, which is loaded by then.
"""

from __future__ import annotations

import datetime
import importlib
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from frog.core.env import bind_loopback
from frog.core.processes import leave, leave_with_parent
from frog.learn.doctor.seen import attempt, report

_TIMEOUT_S = 5.0
"""Time-out of one operation."""

_VALUES = ([1, 3, -2, 8], [4, 6, 8, -1])
"""Each rank's input: integers, which every data type represents exactly."""

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_TYPES = (*_FLOATS, torch.int64)

_REDUCED: dict[str, list[float]] = {
    "SUM": [5, 9, 6, 7],
    "AVG": [2.5, 4.5, 3, 3.5],
    "MIN": [1, 3, -2, -1],
    "MAX": [4, 6, 8, 8],
    "PRODUCT": [4, 18, -16, -8],
}

_PACKAGES = ("transformers", "accelerate", "datasets")

Operation = Callable[[int, Any], None]
"""Runs one operation as this rank, in a group."""


def main(rank: int, file: str) -> None:
    """Join the world of two and report the findings."""
    leave_with_parent()
    warnings.simplefilter("ignore")
    bind_loopback("127.0.0.1")
    if rank == 0:
        report("torch", True, f"{torch.__version__}, {_build()}")
        attempt("fork with torch", _fork)  # before this process computes: a fork does not copy OpenMP's threads
        attempt("cpu", lambda: _computes("cpu"))
    timeout = datetime.timedelta(seconds=_TIMEOUT_S)
    store = FileStore(file, 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
    for name, operation in operations(store).items():
        group = dist.new_group([0, 1], timeout=timeout)  # one group per operation, so that a hang affects no other
        attempt(f"gloo {name}", partial(_right, operation, rank, group))
    if rank == 0:
        attempt("gpu", _gpu)
    else:
        for name in _PACKAGES:
            attempt(name, partial(_version, name))


def operations(store: Any) -> dict[str, Operation]:
    """Return the operations by name. Each raises ValueError if its result is wrong."""
    return {
        **{f"all_reduce {name}": _all_reduce(name) for name in _REDUCED},
        "all_gather": _all_gather,
        "reduce_scatter": _reduce_scatter,
        "broadcast": _broadcast,
        "reduce": _reduce,
        "gather": _gather,
        "scatter": _scatter,
        "all_to_all": _all_to_all,
        "send and recv": _send_and_recv,
        "barrier": partial(_barrier, store),
    }


def _right(operation: Operation, rank: int, group: Any) -> str:
    operation(rank, group)
    return "right"


def expect(found: Tensor, expected: Sequence[float]) -> None:
    """Compare a result with the expected values.

    Raises:  ValueError with both if they differ.
    """
    if found.tolist() != list(expected):
        kind = str(found.dtype).removeprefix("torch.")
        raise ValueError(f"wrong: {found.tolist()} in {kind}, expected {expected}")


def _mine(rank: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(_VALUES[rank], dtype=dtype)


def _all_reduce(name: str) -> Operation:
    def run(rank: int, group: Any) -> None:
        for dtype in _FLOATS if name == "AVG" else _TYPES:
            x = _mine(rank, dtype)
            dist.all_reduce(x, getattr(dist.ReduceOp, name), group)
            expect(x, _REDUCED[name])

    return run


def _all_gather(rank: int, group: Any) -> None:
    parts = [torch.zeros(4), torch.zeros(4)]
    dist.all_gather(parts, _mine(rank), group)
    expect(torch.cat(parts), _VALUES[0] + _VALUES[1])


def _reduce_scatter(rank: int, group: Any) -> None:
    part = torch.zeros(2)
    dist.reduce_scatter(part, list(_mine(rank).chunk(2)), group=group)
    expect(part, _REDUCED["SUM"][2 * rank : 2 * rank + 2])


def _broadcast(rank: int, group: Any) -> None:
    x = _mine(rank)
    dist.broadcast(x, 1, group)
    expect(x, _VALUES[1])


def _reduce(rank: int, group: Any) -> None:
    x = _mine(rank)
    dist.reduce(x, 1, group=group)
    if rank == 1:
        expect(x, _REDUCED["SUM"])


def _gather(rank: int, group: Any) -> None:
    parts = [torch.zeros(4), torch.zeros(4)] if rank == 1 else None
    dist.gather(_mine(rank), parts, 1, group)
    if parts:
        expect(torch.cat(parts), _VALUES[0] + _VALUES[1])


def _scatter(rank: int, group: Any) -> None:
    part = torch.zeros(2)
    dist.scatter(part, list(_mine(1).chunk(2)) if rank == 1 else None, 1, group)
    expect(part, _VALUES[1][2 * rank : 2 * rank + 2])


def _all_to_all(rank: int, group: Any) -> None:
    x = torch.zeros(4)
    dist.all_to_all_single(x, _mine(rank), group=group)
    expect(x, [*_VALUES[0][2 * rank : 2 * rank + 2], *_VALUES[1][2 * rank : 2 * rank + 2]])


def _send_and_recv(rank: int, group: Any) -> None:
    x = torch.zeros(4)
    if rank == 0:
        dist.send(_mine(0), 1, group)
        dist.recv(x, 1, group)
    else:
        dist.recv(x, 0, group)
        dist.send(_mine(1), 0, group)
    expect(x, _VALUES[1 - rank])


def _barrier(store: Any, rank: int, group: Any) -> None:
    """Delay rank 1 and check that rank 0 waits for it."""
    if rank == 1:
        time.sleep(0.05)
        store.set("came", "yes")
    dist.barrier(group)
    if not store.check(["came"]):
        raise ValueError("wrong: rank 0 continued before rank 1 arrived")


def _build() -> str:
    return f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"


def _computes(device: str) -> str:
    """Check the sum of a product of two matrices of ones."""
    ones = torch.ones(64, 64, device=device)
    total = float((ones @ ones).sum())
    if total != 64**3:
        raise ValueError(f"wrong: a matrix product sums to {total}, expected {64.0**3}")
    return f"works, with {torch.get_num_threads()} threads" if device == "cpu" else "works"


def _gpu() -> str:
    """Test each device other than the CPU."""
    gpus = []
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            gpus.append(f"cuda:{number} ({torch.cuda.get_device_name(number)}) {_computes(f'cuda:{number}')}")
    if torch.backends.mps.is_available():
        gpus.append(f"mps {_computes('mps')}")
    if not gpus:
        raise ValueError("none")
    return "; ".join(gpus)


def _version(package: str) -> str:
    return str(importlib.import_module(package).__version__)


def _fork() -> str:
    """Check that a forked copy of this process, which has loaded torch, can compute."""
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            _computes("cpu")
            os._exit(0)
        except BaseException:
            os._exit(1)
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise ValueError(f"a forked process with torch ended with {code}")
    return "a forked process with torch works"


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
    leave(0)
