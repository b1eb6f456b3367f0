"""A collective library over TCP. DDP trains on it, and `frog collectives check` grades it."""

import select
import socket
from itertools import pairwise

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
        self.right_rank, self.left_rank = (rank + 1) % self.size, (rank - 1) % self.size
        self.listener, self.addresses = listener, addresses
        listener.settimeout(timeout_s)

    def connect(self) -> None:
        self.right = socket.create_connection(self.addresses[self.right_rank], self.timeout_s)
        self.left, _ = self.listener.accept()
        for end in (self.right, self.left):
            end.setblocking(False)

    def all_reduce(self, values: np.ndarray) -> None:
        """Replace `values` by the sum over all ranks: the same bits on each."""
        if self.size > 1:
            self.connect()
        bounds = [len(values) * index // self.size for index in range(self.size + 1)]
        parts = [values[start:end] for start, end in pairwise(bounds)]
        for step in range(self.size - 1):
            stays = parts[(self.rank - step - 1) % self.size]
            arrived = np.empty_like(stays)
            self.exchange(parts[(self.rank - step) % self.size], arrived)
            stays += arrived
        for step in range(self.size - 1):
            self.exchange(parts[(self.rank - step + 1) % self.size], parts[(self.rank - step) % self.size])
        self.disconnect()

    def broadcast(self, values: np.ndarray, root: int) -> None:
        """Replace `values` by those of rank `root`: each rank passes them on to the right."""
        if self.size > 1:
            self.connect()
        if self.rank != root:
            self.exchange(values[:0], values)
        if self.right_rank != root:
            self.exchange(values, values[:0])
        self.disconnect()

    def disconnect(self) -> None:
        if self.size > 1:
            self.right.close()
            self.left.close()

    def close(self) -> None:
        self.listener.close()

    def exchange(self, out: np.ndarray, into: np.ndarray) -> None:
        """Send to the right and receive from the left, at the same time."""
        leaving, arriving = memoryview(out.tobytes()), memoryview(into.view(np.uint8))
        while leaving or arriving:
            readers, writers = [self.left] if arriving else [], [self.right] if leaving else []
            readable, writable, _ = select.select(readers, writers, [], self.timeout_s)
            if not readable and not writable:
                raise PeerLost(self.left_rank if arriving else self.right_rank)
            try:
                if writable:
                    leaving = leaving[self.right.send(leaving) :]
            except OSError:
                raise PeerLost(self.right_rank) from None
            try:
                if readable:
                    count = self.left.recv_into(arriving)
                    if count == 0:
                        raise ConnectionError
                    arriving = arriving[count:]
            except OSError:
                raise PeerLost(self.left_rank) from None
