"""Groups whose ranks are threads of the test: real sockets and shared memory, without processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from harness import LIMIT_S

from frog.train.comm.collectives.cost import Costs
from frog.train.comm.collectives.group import Group, open_group
from frog.train.comm.collectives.rendezvous import FolderBook

T = TypeVar("T")

RING = Costs(alpha_s=0.0)
DOUBLING = Costs(alpha_s=1e9)


def be_all(be: Callable[[int], None], size: int) -> None:
    """Call `be` with each rank's number, each in its own thread, until all have returned."""
    threads = [threading.Thread(target=be, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "a rank hangs"


def together(
    folder: Path,
    size: int,
    act: Callable[[Group], T],
    nodes: tuple[str, ...] | None = None,
    memory: bool = True,
    costs: Costs | None = None,
    timeout_s: float = 20.0,
) -> list[T]:
    """Return the result of `act` for each rank of a group. Raises the first error of a rank."""
    folder.mkdir(exist_ok=True)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def be(rank: int) -> None:
        try:
            node = nodes[rank] if nodes else "one"
            group = open_group(
                FolderBook(folder, timeout_s), rank, size, secret=b"secret", node=node,
                memory=memory, costs=costs, timeout_s=timeout_s,
            )  # fmt: skip
            try:
                results[rank] = act(group)
            finally:
                group.close()
        except BaseException as error:
            errors.append(error)

    be_all(be, size)
    if errors:
        raise errors[0]
    return results
