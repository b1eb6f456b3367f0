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
        raise NotImplementedError("fill in Library")

    def all_reduce(self, values: np.ndarray) -> None:
        """Replace `values` by the sum over all ranks: the same bits on each.

        Comm:    2(n - 1)/n of the array leave each rank.
        Raises:  PeerLost, at most a little more than timeout_s after a rank was lost.
        """
        raise NotImplementedError("fill in all_reduce")

    def broadcast(self, values: np.ndarray, root: int) -> None:
        """Replace `values` by those of rank `root`. Raises PeerLost."""
        raise NotImplementedError("fill in broadcast")

    def close(self) -> None:
        """Close all connections."""
        raise NotImplementedError("fill in close")
