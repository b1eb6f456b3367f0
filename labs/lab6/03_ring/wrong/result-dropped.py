"""Ring all-reduce: n ranks, 2(n - 1) steps, and 2(n - 1)/n of the buffer sent by each rank."""

from typing import Protocol

import torch
from torch import Tensor


class Peers(Protocol):
    """This rank's connections to all other ranks. A message is a tensor, in a frame as in exercise 6.1."""

    rank: int
    size: int

    def send(self, to: int, values: Tensor) -> None:
        """Returns when the system has taken all of it. If its buffer is full, that is when `to` receives."""

    def receive(self, source: int, into: Tensor) -> None:
        """Wait for the next message of `source`, which has as many elements as `into`, and write it there."""

    def exchange(self, to: int, values: Tensor, source: int, into: Tensor) -> None:
        """Send and receive at the same time. `values` and `into` share no element, but may be parts of one tensor."""


def parts_of(values: Tensor, size: int) -> list[Tensor]:
    """Cut `values` into `size` parts, in order, as views. Their lengths differ by at most one; a part may be empty."""
    length = len(values)
    return [values[length * index // size : length * (index + 1) // size] for index in range(size)]


def all_reduce(values: Tensor, peers: Peers) -> None:
    """Replace `values`, on every rank, by the sum over all ranks.

    values:  one dimension, contiguous, of any length and numeric type; the same on all ranks.
    Comm:    each rank sends to the next one and receives from the previous one. In a first lap of n - 1 steps the parts
             are summed, in a second one the sums go around. A rank sends 2(n - 1)/n of the buffer.
    Equals:  the sum on one process, bit for bit the same on all ranks.
    """
    rank, size = peers.rank, peers.size
    right, left = (rank + 1) % size, (rank - 1) % size
    parts = parts_of(values.clone(), size)
    for step in range(size - 1):
        leaves, stays = parts[(rank - step) % size], parts[(rank - step - 1) % size]
        arrived = torch.empty_like(stays)
        peers.exchange(right, leaves, left, arrived)
        stays += arrived
    for step in range(size - 1):
        peers.exchange(right, parts[(rank - step + 1) % size], left, parts[(rank - step) % size])
