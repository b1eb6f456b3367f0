"""All-reduce for small tensors in few steps, and the choice between it and the ring."""

from typing import Protocol

import torch
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


def ring_all_reduce(values: Tensor, peers: Peers) -> None:
    """Sum in 2(n - 1) steps, of one n-th of the buffer each: exercise 6.3."""
    rank, size = peers.rank, peers.size
    right, left = (rank + 1) % size, (rank - 1) % size
    parts = torch.tensor_split(values, size)
    for step in range(size - 1):
        stays = parts[(rank - step - 1) % size]
        arrived = torch.empty_like(stays)
        peers.exchange(right, parts[(rank - step) % size], left, arrived)
        stays += arrived
    for step in range(size - 1):
        peers.exchange(right, parts[(rank - step + 1) % size], left, parts[(rank - step) % size])


def tree_all_reduce(values: Tensor, peers: Peers) -> None:
    """Replace `values`, on every rank, by the sum over all ranks, in at most 2 log2(n) steps.

    n is rounded up to a power of two. A step is a message of the whole buffer; messages between different
    ranks move at the same time. Works for every number of ranks.

    values:  one dimension, contiguous, of any length and numeric type; the same on all ranks.
    Equals:  the sum on one process, bit for bit the same on all ranks.
    """
    rank, size = peers.rank, peers.size
    power = 1 << (size.bit_length() - 1)
    surplus = size - power
    if rank >= power:
        peers.send(rank - power, values)
        peers.receive(rank - power, values)
        return
    arrived = torch.empty_like(values)
    if rank < surplus:
        peers.receive(rank + power, arrived)
        values += arrived
    distance = 1
    while distance < power:
        peers.exchange(rank ^ distance, values, rank ^ distance, arrived)
        values += arrived
        distance *= 2
    if rank < surplus:
        peers.send(rank + power, values)


def all_reduce(values: Tensor, peers: Peers, alpha_s: float, beta_s: float) -> None:
    """Sum with whichever of the two takes less time on this network.

    A message of S bytes takes alpha_s + S * beta_s; a rank sends and receives one message at a time, and can do both at
    once. All ranks know the same two constants.
    """
    n = peers.size
    if n == 1:
        return
    size = values.numel() * values.element_size()
    power = 1 << (n.bit_length() - 1)
    steps = power.bit_length() - 1
    tree = steps * (alpha_s + size * beta_s)
    ring = 2 * (n - 1) * (alpha_s + size / n * beta_s)
    (tree_all_reduce if tree <= ring else ring_all_reduce)(values, peers)
