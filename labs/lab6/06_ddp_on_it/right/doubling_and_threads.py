"""A collective library over TCP. DDP trains on it, and `frog collectives check` grades it."""

import socket
import threading

import numpy as np


class PeerLost(Exception):
    """A rank was lost during a collective."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} was lost")
        self.rank = rank


class Library:
    """Connections to the other ranks, made once, and the collectives that run over them.

    All ranks call the same collectives in the same order. Arrays have one dimension, are contiguous, and have as many
    elements on all ranks: none, fewer than there are ranks, or millions; of any type that numpy can add.
    """

    def __init__(self, rank: int, listener: socket.socket, addresses: list[tuple[str, int]], timeout_s: float) -> None:
        """Connect.

        listener:   listens at this rank's address.
        addresses:  by rank, where this rank reaches each other one, whose listener may have been opened only now.
        timeout_s:  a rank that sends nothing for so long, while this one waits for it, is lost.
        """
        self.rank, self.size, self.timeout_s = rank, len(addresses), timeout_s
        self.ends: dict[int, socket.socket] = {}
        listener.settimeout(timeout_s)
        for lower in range(rank):
            self.ends[lower] = socket.create_connection(addresses[lower], timeout_s)
            self.ends[lower].sendall(bytes([rank]))
        for _ in range(rank + 1, self.size):
            end, _ = listener.accept()
            end.settimeout(timeout_s)
            self.ends[end.recv(1)[0]] = end
        listener.close()

    def all_reduce(self, values: np.ndarray) -> None:
        """Each rank sums one part of the array, which all others send to it, and returns it to them."""
        parts = np.array_split(values, self.size)
        mine = parts[self.rank]
        arrived = {other: np.empty_like(mine) for other in self.ends}
        self.all_at_once(parts, arrived)
        total = np.zeros_like(mine)
        for rank in range(self.size):
            total += mine if rank == self.rank else arrived[rank]
        mine[:] = total
        self.all_at_once([mine] * self.size, {other: parts[other] for other in self.ends})

    def all_at_once(self, leaving: list[np.ndarray], arriving: dict[int, np.ndarray]) -> None:
        errors: list[PeerLost] = []

        def send() -> None:
            try:
                for step in range(1, self.size):
                    to = (self.rank + step) % self.size
                    self.send(to, leaving[to])
            except PeerLost as error:
                errors.append(error)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            for step in range(1, self.size):
                source = (self.rank - step) % self.size
                self.receive(source, arriving[source])
        finally:
            sender.join()
        if errors:
            raise errors[0]

    def broadcast(self, values: np.ndarray, root: int) -> None:
        for other in self.ends if self.rank == root else ():
            self.send(other, values)
        if self.rank != root:
            self.receive(root, values)

    def close(self) -> None:
        for end in self.ends.values():
            end.close()

    def send(self, to: int, values: np.ndarray) -> None:
        try:
            self.ends[to].sendall(values.tobytes())
        except OSError:
            raise PeerLost(to) from None

    def receive(self, source: int, into: np.ndarray) -> None:
        arriving = memoryview(into.view(np.uint8))
        try:
            while arriving:
                count = self.ends[source].recv_into(arriving)
                if count == 0:
                    raise ConnectionError
                arriving = arriving[count:]
        except OSError:
            raise PeerLost(source) from None
