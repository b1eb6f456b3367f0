"""A ring all-reduce after which every rank has the sum, or knows which rank was lost."""

import contextlib
import time
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Data:
    """A part of the tensor."""

    values: Tensor


@dataclass(frozen=True)
class Alive:
    """Says that the sender waits for its left neighbor, and has nothing to send yet."""


@dataclass(frozen=True)
class Lost:
    """Says which rank was lost."""

    rank: int


Frame = Data | Alive | Lost


class PeerLost(Exception):
    """A rank was lost during a collective. The tensor is unchanged."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} was lost")
        self.rank = rank


class Peers(Protocol):
    """This rank's connections to all other ranks."""

    rank: int
    size: int

    def send(self, to: int, frame: Frame) -> None:
        """Returns at once. What is sent to a process that has ended is lost.

        Raises:  ConnectionError if the system already knows that the connection is closed.
        """

    def receive(self, source: int, timeout_s: float) -> Frame:
        """Wait for the next frame of `source`.

        Raises:  TimeoutError; ConnectionError if the connection is closed and has no frame left.
        """


def all_reduce(values: Tensor, peers: Peers, timeout_s: float) -> None:
    """Replace `values` by the sum over all ranks, or raise PeerLost on the remaining ranks.

    A rank is lost when its process ends, which closes its connections, or when its machine freezes: then its
    connections stay open, and it sends nothing. A rank that sends nothing for timeout_s counts as lost. One that waits
    for another rank, or is late by less than timeout_s, is not lost.

    A rank on which PeerLost is raised ends its process, and thereby closes its own connections.

    Raises:  PeerLost with the rank that was lost first, on every remaining rank that has no complete sum yet, at most
             1.5 timeout_s after the loss. `values` is unchanged then.
    """
    rank, size = peers.rank, peers.size
    total = values.clone()
    parts = torch.tensor_split(total, size)
    for step in range(size - 1):
        parts[(rank - step - 1) % size].add_(exchange(peers, parts[(rank - step) % size], timeout_s))
    for step in range(size - 1):
        parts[(rank - step) % size].copy_(exchange(peers, parts[(rank - step + 1) % size], timeout_s))
    values.copy_(total)


def exchange(peers: Peers, leaves: Tensor, timeout_s: float) -> Tensor:
    """Send a part to the right neighbor, and return the part that the left neighbor sends."""
    right, left = (peers.rank + 1) % peers.size, (peers.rank - 1) % peers.size
    tell(peers, right, Data(leaves.clone()))
    heard_s = time.monotonic()
    while True:
        try:
            frame = peers.receive(left, timeout_s / 4)
            heard_s = time.monotonic()
        except TimeoutError:
            if time.monotonic() - heard_s >= timeout_s:
                lose(peers, left)
            frame = Alive()
        except ConnectionError:
            lose(peers, left)
        if isinstance(frame, Data):
            return frame.values
        if isinstance(frame, Lost):
            lose(peers, frame.rank)
        tell(peers, right, Alive())  # this rank waits, whether the left one says that it waits too or says nothing


def tell(peers: Peers, to: int, frame: Frame) -> None:
    """Send a frame, if that is possible. A closed connection proves nothing: the news comes from the left."""
    with contextlib.suppress(ConnectionError):
        peers.send(to, frame)


def lose(peers: Peers, rank: int) -> NoReturn:
    """Pass the news on, so that no one takes this rank for the lost one when its process ends."""
    if peers.rank != 0:
        tell(peers, 0, Lost(rank))
    raise PeerLost(rank)
