"""All ranks stop until the last has come: from a store alone."""

from typing import Protocol


class Store(Protocol):
    """What torch.distributed.TCPStore has, and here all of it."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def add(self, key: str, amount: int) -> int: ...

    def wait(self, keys: list[str]) -> None: ...


class Barrier:
    """A place where world_size ranks meet, as often as they like. Every rank has a Barrier object of its own."""

    def __init__(self, store: Store, name: str, rank: int, world_size: int) -> None:
        self.store = store
        self.name = name
        self.rank = rank
        self.world_size = world_size

    def wait(self) -> None:
        """Return when all ranks have called wait as often as this one has."""
        came = self.store.add(self.name, 1)
        turn = (came - 1) // self.world_size
        if came % self.world_size == 0:
            self.store.set(f"{self.name}/{turn}", "open")
        self.store.wait([f"{self.name}/{turn}"])
