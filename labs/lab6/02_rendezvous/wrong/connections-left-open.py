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
    end_s = time.monotonic() + timeout_s
    listener = network.listen(0)
    try:
        rank, addresses = agree(network, meeting, listener.address, size, end_s)
    except BaseException:
        listener.close()
        raise
    return World(rank, addresses, listener)


def agree(network: Network, meeting: Address, own: Address, size: int, end_s: float) -> tuple[int, list[Address]]:
    """Serve if this process is the first on the meeting's host; otherwise ask the one that serves."""
    if network.host == meeting[0]:
        try:
            door = network.listen(meeting[1])
        except OSError:  # another process of this host serves
            return ask(network, meeting, own, end_s)
        return serve(network, door, own, size, end_s)
    return ask(network, meeting, own, end_s)


def serve(network: Network, door: Listener, own: Address, size: int, end_s: float) -> tuple[int, list[Address]]:
    """Collect the addresses of the others, and send the list to all of them once it is complete."""
    callers: dict[Connection, Address | None] = {}
    try:
        while len([address for address in callers.values() if address]) < size - 1:
            ready = network.ready([door, *callers], end_s - time.monotonic())
            if not ready:
                raise TimeoutError("not all processes have come")
            for source in ready:
                if source is door:
                    callers[door.accept(0.0)] = None
                    continue
                try:
                    callers[source] = address_of(source.receive(0.0))
                except (EOFError, ValueError):  # it ended, or is not one of us
                    source.close()
                    del callers[source]
        members = [(caller, address) for caller, address in callers.items() if address]
        addresses = [own, *(address for _, address in members)]
        for rank, (caller, _) in enumerate(members, 1):
            caller.send({"rank": rank, "addresses": addresses})
    finally:
        door.close()
    return 0, addresses


def address_of(message: Any) -> Address:
    if not isinstance(message, dict) or "join" not in message:
        raise ValueError(message)
    host, port = message["join"]
    return host, port


def ask(network: Network, meeting: Address, own: Address, end_s: float) -> tuple[int, list[Address]]:
    """Send this process's address to the one that serves, and wait for the list."""
    while time.monotonic() < end_s:
        try:
            connection = network.connect(meeting)
        except ConnectionRefusedError:  # no process serves yet
            time.sleep(0.05)
            continue
        try:
            connection.send({"join": own})
            reply = connection.receive(end_s - time.monotonic())
        except EOFError:  # the one that served has ended
            time.sleep(0.05)
            continue
        finally:
            connection.close()
        return reply["rank"], [(host, port) for host, port in reply["addresses"]]
    raise TimeoutError("no process served")
