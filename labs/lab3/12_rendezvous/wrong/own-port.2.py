"""Nodes find each other: one rank listens, every node writes a card, and all read the same cards."""

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
"""open_store(host, port, listen, timeout_s): listen there (only this process's own host can), or connect.

A connecting process waits until a process listens, at most timeout_s: then TimeoutError. If the same process calls it
again, in a later round, it returns the same store, with all keys still in it.
"""


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


def join(task: Task, open_store: OpenStore) -> World:
    """Find the processes of all nodes, and this process's rank among them.

    Comm:    only rank 0 of node 0 listens, at master_addr:master_port; one card is written for each node.
    Raises:  NodesMissing: with [0] if nothing listens within timeout_s; otherwise, at most timeout_s after open_store
             returned, with the node_rank of every node without a card in this round (never an empty list).
    """
    listens = task.node_rank == 0 and task.local_rank == 0
    try:
        store = open_store(task.master_addr, 0, listens, task.timeout_s)
    except TimeoutError:
        raise NodesMissing([0]) from None
    keys = [f"{task.round}/{node}" for node in range(task.num_nodes)]
    if task.local_rank == 0:
        store.set(keys[task.node_rank], f"{task.num_ranks} {task.host}")
    try:
        store.wait(keys, task.timeout_s)
    except TimeoutError:
        raise NodesMissing([node for node, key in enumerate(keys) if not store.check([key])]) from None
    cards = [store.get(key).decode().split() for key in keys]
    hosts = [host for num_ranks, host in cards for _ in range(int(num_ranks))]
    first = sum(int(num_ranks) for num_ranks, _ in cards[: task.node_rank])
    return World(first + task.local_rank, len(hosts), hosts)
