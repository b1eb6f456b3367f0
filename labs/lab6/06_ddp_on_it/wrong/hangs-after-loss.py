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
        self.ends: list[socket.socket] = []
        if self.size > 1:
            listener.settimeout(timeout_s)
            self.right = socket.create_connection(addresses[self.right_rank], timeout_s)
            self.left, _ = listener.accept()
            self.ends = [self.right, self.left]
            for end in self.ends:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end.setblocking(False)
        listener.close()

    def all_reduce(self, values: np.ndarray) -> None:
        """Replace `values` by the sum over all ranks: the same bits on each."""
        bounds = [len(values) * index // self.size for index in range(self.size + 1)]
        parts = [values[start:end] for start, end in pairwise(bounds)]
        for step in range(self.size - 1):
            stays = parts[(self.rank - step - 1) % self.size]
            arrived = np.empty_like(stays)
            self.exchange(parts[(self.rank - step) % self.size], arrived)
            stays += arrived
        for step in range(self.size - 1):
            self.exchange(parts[(self.rank - step + 1) % self.size], parts[(self.rank - step) % self.size])

    def broadcast(self, values: np.ndarray, root: int) -> None:
        """Replace `values` by those of rank `root`: each rank passes them on to the right."""
        if self.rank != root:
            self.exchange(values[:0], values)
        if self.right_rank != root:
            self.exchange(values, values[:0])

    def close(self) -> None:
        for end in self.ends:
            end.close()

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
                    arriving = arriving[count:]
            except OSError:
                raise PeerLost(self.left_rank) from None
