from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Store(Protocol):
    """The operations of torch.distributed.TCPStore, with time in seconds."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes:
        """Return the value; the key must exist."""

    def add(self, key: str, amount: int) -> int: ...

    def check(self, keys: list[str]) -> bool:
        """Return True if all keys exist now."""

    def wait(self, keys: list[str], timeout_s: float | None = None) -> None:
        """Return when all keys exist. Raises TimeoutError; with None it waits forever."""


OpenStore = Callable[[str, int, bool, float | None], Store]


@dataclass(frozen=True)
class Task:
    """The information that the launcher gave this process."""

    node_rank: int
    num_nodes: int
    local_rank: int
    num_ranks: int  # on this node; another node may have more or fewer
    host: str
    master_addr: str  # the host of node 0
    master_port: int
    round: int  # 0 at first, one more after each restart
    timeout_s: float


@dataclass(frozen=True)
class World:
    """The facts that all processes must agree on, and this process's rank."""

    rank: int  # node 0's ranks first, then node 1's: ordered by node_rank, not by arrival
    world_size: int
    hosts: list[str]  # hosts[r] is where rank r runs


class NodesMissing(Exception):
    """Some nodes did not arrive within timeout_s."""

    def __init__(self, nodes: list[int]) -> None:
        super().__init__(f"did not come in time: {', '.join(f'node {node}' for node in nodes)}")
        self.nodes = nodes


import json
import time


def join(task, open_store):
    listen = task.node_rank == 0 and task.local_rank == 0
    try:
        store = open_store(task.master_addr, task.master_port, listen, task.timeout_s)
    except TimeoutError:
        raise NodesMissing([0]) from None
    key = lambda n: f"round/{task.round}/node/{n}"
    if task.local_rank == 0:
        store.set(key(task.node_rank), json.dumps([task.num_ranks, task.host]))
    keys = [key(n) for n in range(task.num_nodes)]
    try:
        store.wait(keys, task.timeout_s)
    except TimeoutError:
        missing = [n for n in range(task.num_nodes) if not store.check([key(n)])]
        if missing:
            raise NodesMissing(missing) from None
    cards = [json.loads(store.get(k)) for k in keys]
    hosts = [host for count, host in cards for _ in range(count)]
    first = sum(count for count, _ in cards[: task.node_rank])
    return World(
        sum(min(c, task.local_rank) for c, _ in cards) + sum(c > task.local_rank for c, _ in cards[: task.node_rank]),
        len(hosts),
        hosts,
    )
