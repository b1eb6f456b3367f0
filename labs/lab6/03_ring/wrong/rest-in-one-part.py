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
    each = len(values) // size
    return [values[i * each : (i + 1) * each if i < size - 1 else None] for i in range(size)]


def all_reduce(values: Tensor, peers: Peers) -> None:
    """Replace `values`, on every rank, by the sum over all ranks.

    values:  one dimension, contiguous, of any length and numeric type; the same on all ranks.
    Comm:    each rank sends to the next one and receives from the previous one. In a first lap of n - 1 steps the parts
             are summed, in a second one the sums go around. A rank sends 2(n - 1)/n of the buffer.
    Equals:  the sum on one process, bit for bit the same on all ranks.
    """
    n, r = peers.size, peers.rank
    parts = parts_of(values, n)
    for step in range(n - 1):
        incoming = parts[(r - step - 1) % n]
        buffer = torch.empty_like(incoming)
        peers.exchange((r + 1) % n, parts[(r - step) % n], (r - 1) % n, buffer)
        incoming += buffer
    for step in range(n - 1):
        peers.exchange((r + 1) % n, parts[(r + 1 - step) % n], (r - 1) % n, parts[(r - step) % n])
