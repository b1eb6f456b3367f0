"""All-reduce for small tensors in few steps, and the choice between it and the ring."""

from typing import Protocol

import torch
from ring import all_reduce as ring_all_reduce  # exercise 6.3
from torch import Tensor


class Peers(Protocol):
    """This rank's connections to all other ranks, as in exercise 6.3."""

    rank: int
    size: int

    def send(self, to: int, values: Tensor) -> None:
        """Returns when the system has taken all of it. If its buffer is full, that is when `to` receives."""

    def receive(self, source: int, into: Tensor) -> None:
        """Wait for the next message of `source`, which has as many elements as `into`, and write it there."""

    def exchange(self, to: int, values: Tensor, source: int, into: Tensor) -> None:
        """Send and receive at the same time. `values` and `into` share no element, but may be parts of one tensor."""


def tree_all_reduce(values: Tensor, peers: Peers) -> None:
    """Replace `values`, on every rank, by the sum over all ranks, in at most 2 log2(n) steps.

    n is rounded up to a power of two. A step is a message of the whole buffer; messages between different
    ranks move at the same time. Works for every number of ranks.

    values:  one dimension, contiguous, of any length and numeric type; the same on all ranks.
    Equals:  the sum on one process, bit for bit the same on all ranks.
    """
    raise NotImplementedError("fill in tree_all_reduce")


def all_reduce(values: Tensor, peers: Peers, alpha_s: float, beta_s: float) -> None:
    """Sum with whichever of the two takes less time on this network.

    A message of S bytes takes alpha_s + S * beta_s; a rank sends and receives one message at a time, and can do both at
    once. All ranks know the same two constants.
    """
    raise NotImplementedError("fill in all_reduce")
