"""Processes without ranks find each other at one address, and leave it with the same list."""

import time
from dataclasses import dataclass
from typing import Any, Protocol

Address = tuple[str, int]
"""A host and a port."""


class Connection(Protocol):
    """A TCP connection that carries messages: values that JSON can express, in frames as in exercise 6.1."""

    peer: Address  # the other end's

    def send(self, message: Any) -> None: ...

    def receive(self, timeout_s: float) -> Any:
        """Wait for the next message.

        Raises:  TimeoutError; EOFError if the other end is closed; ValueError if the bytes are not a message.
        """

    def close(self) -> None: ...


class Listener(Protocol):
    """An open port. Connections wait in it until they are accepted."""

    address: Address

    def accept(self, timeout_s: float) -> Connection:
        """Raises:  TimeoutError."""

    def close(self) -> None: ...


class Network(Protocol):
    """The network as this process sees it."""

    host: str  # the name under which other hosts reach this one

    def listen(self, port: int) -> Listener:
        """Open a port of this host; with port 0, a free one. Raises OSError if a process listens there already."""

    def connect(self, address: Address) -> Connection:
        """Raises:  ConnectionRefusedError if no process listens there at this moment."""

    def ready(self, sources: list[Any], timeout_s: float) -> list[Any]:
        """Return the listeners whose accept, and the connections whose receive, need not wait, as `select` does.

        Waits until there is one; returns an empty list after timeout_s.
        """


@dataclass(frozen=True)
class World:
    """The result of a rendezvous. `addresses` is the same list on all ranks."""

    rank: int
    addresses: list[Address]  # addresses[r]: where rank r listens
    listener: Listener  # this rank's own, open, at addresses[rank]


def join(network: Network, meeting: Address, size: int, timeout_s: float) -> World:
    """Find the other processes and agree on ranks: 0 to size - 1, each once, in any order.

    All processes call it, at any time, with the same `meeting`, an address that no process owns yet. A process on that
    host serves there: the first whose `listen` succeeds. The others connect, once it listens.

    - Each rank listens on a port that the system chose.
    - Anything may connect to the meeting: a monitor, a port scanner. They send something else, or nothing at all.
    - A process may end before the world is complete. Another one then joins instead.

    When join returns or raises, the returned listener is the only port or connection that it leaves open.

    Raises:  TimeoutError if the world is not complete timeout_s after this process called join.
    """
    raise NotImplementedError("fill in join")
