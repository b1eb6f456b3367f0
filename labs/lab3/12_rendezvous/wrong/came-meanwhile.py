"""Nodes find each other: one rank listens, every node leaves a card, and all read the same cards."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Store(Protocol):
    """torch.distributed.TCPStore, with time in seconds."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes:
        """The value; the key must be there."""

    def add(self, key: str, amount: int) -> int: ...

    def check(self, keys: list[str]) -> bool:
        """Whether all are there, now."""

    def wait(self, keys: list[str], timeout_s: float | None = None) -> None:
        """Return when all are there. Raises TimeoutError; with None it waits for ever."""


OpenStore = Callable[[str, int, bool, float | None], Store]
"""open_store(host, port, listen, timeout_s): listen there (only this process's own host can), or connect.

Who connects waits until somebody listens, at most timeout_s: then TimeoutError. Called again, in a later round, by
the same process, it returns the same store: what was written is still there.
"""


@dataclass(frozen=True)
class Task:
    """What the launcher told this process."""

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
    """What all must agree on, and which of them this process is."""

    rank: int  # node 0's ranks first, then node 1's: by node_rank, whoever came first
    world_size: int
    hosts: list[str]  # of each rank: hosts[r] is where rank r runs


class NodesMissing(Exception):
    """Not all came within timeout_s."""

    def __init__(self, nodes: list[int]) -> None:
        super().__init__(f"did not come in time: {', '.join(f'node {node}' for node in nodes)}")
        self.nodes = nodes


def join(task: Task, open_store: OpenStore) -> World:
    """Meet the processes of all nodes.

    Comm:    rank 0 of node 0 listens at master_addr:master_port, and no other; one card is written for each node.
    Raises:  NodesMissing: with [0] where nobody listens within timeout_s; else, at most timeout_s after open_store
             returned, with the node_rank of every node that left no card in this round (never an empty list).
    """
    listens = task.node_rank == 0 and task.local_rank == 0
    try:
        store = open_store(task.master_addr, task.master_port, listens, task.timeout_s)
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
