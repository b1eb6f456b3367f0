"""A collective library over TCP. DDP trains on it, and `frog collectives check` grades it."""

import socket

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
        if rank == 0:
            for _ in range(1, self.size):
                end, _ = listener.accept()
                end.settimeout(timeout_s)
                self.ends[int.from_bytes(end.recv(1), "big")] = end
        else:
            self.ends[0] = socket.create_connection(addresses[0], timeout_s)
            self.ends[0].sendall(rank.to_bytes(1, "big"))
        listener.close()

    def all_reduce(self, values: np.ndarray) -> None:
        if self.rank:
            self.send(0, values)
            self.receive(0, values)
            return
        arrived = np.empty_like(values)
        for other in range(1, self.size):
            self.receive(other, arrived)
            values += arrived
        for other in range(1, self.size):
            self.send(other, values)

    def broadcast(self, values: np.ndarray, root: int) -> None:
        if root and self.rank == root:
            self.send(0, values)
        if root and self.rank == 0:
            self.receive(root, values)
        for other in range(1, self.size):
            if self.rank == 0 and other != root:
                self.send(other, values)
            if self.rank == other and other != root:
                self.receive(0, values)

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
