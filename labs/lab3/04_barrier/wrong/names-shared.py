"""Stop all ranks until the last has arrived, with only a store."""

from typing import Protocol


class Store(Protocol):
    """The operations of torch.distributed.TCPStore that this exercise may use."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def add(self, key: str, amount: int) -> int: ...

    def wait(self, keys: list[str]) -> None: ...


class Barrier:
    """A barrier for world_size ranks that can be used any number of times. Every rank has its own Barrier object."""

    def __init__(self, store: Store, name: str, rank: int, world_size: int) -> None:
        self.store = store
        self.name = name
        self.rank = rank
        self.world_size = world_size
        self.number = 0

    def wait(self) -> None:
        """Return when all ranks have called wait as many times as this one."""
        self.number += 1
        if self.store.add(f"barrier/{self.number}/came", 1) == self.world_size:
            self.store.set(f"barrier/{self.number}/open", "")
        self.store.wait([f"barrier/{self.number}/open"])
