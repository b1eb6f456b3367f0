"""Simulated connections between ranks that take turns, with counted bytes and the time that a network would need.

A message of S bytes takes alpha + S * beta, during which it occupies its sender and its receiver; a rank sends and
receives one message at a time, and can do both at once. Each rank's time follows from its messages alone, so it is the
same in every order in which the ranks run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from frog.learn.grader.turns import Turns

PATIENCE_S = 60.0
BUFFER_BYTES = 4096
"""Bytes that the system keeps for a receiver that is not ready. Larger messages make their sender wait."""


class FrameError(Exception):
    """A message of another size or type than the receiver expects."""


@dataclass
class _Message:
    values: Tensor
    starts_s: float
    taken: bool = False


class Peers:
    """A rank's connections to all other ranks."""

    def __init__(self, wires: Wires, rank: int) -> None:
        self._wires, self.rank, self.size = wires, rank, wires.size

    def send(self, to: int, values: Tensor) -> None:
        """Send a copy. Returns when the receiver, or the system's buffer, has taken it."""
        self._wires.send(self.rank, self._checked(to), values)

    def receive(self, source: int, into: Tensor) -> None:
        """Wait for the next message of `source` and write it to `into`."""
        self._wires.receive(self.rank, self._checked(source), into)

    def exchange(self, to: int, values: Tensor, source: int, into: Tensor) -> None:
        """Send and receive at the same time."""
        self._wires.exchange(self.rank, self._checked(to), values, self._checked(source), into)

    def _checked(self, peer: int) -> int:
        if type(peer) is not int or not 0 <= peer < self.size or peer == self.rank:
            raise ValueError(f"rank {self.rank} of {self.size} has no connection to rank {peer!r}")
        return peer


class Wires:
    """All connections of a world."""

    def __init__(self, seed: int, size: int, alpha_s: float = 1.0, beta_s: float = 0.0) -> None:
        self.size, self._alpha_s, self._beta_s = size, alpha_s, beta_s
        self._turns = Turns(seed, size, PATIENCE_S)
        self._queues: dict[tuple[int, int], deque[_Message]] = {}
        self.time_s = [0.0] * size
        """Each rank's simulated time."""
        self.sent = [0] * size
        """Bytes that each rank sent, and received."""
        self.received = [0] * size
        self.messages: list[tuple[int, int, int]] = []
        """Sender, receiver and number of elements of each message."""
        self.contents: list[Tensor] = []
        """The values of the messages with at most 100 elements."""
        self.waits: dict[int, str] = {}
        """What each rank waits for, or waited for last."""

    def run(self, rank_of: Callable[[Peers], Any]) -> list[BaseException]:
        """Run a function as each rank; return the errors, at most one if the first one stopped the others."""
        return self._turns.run([self._be(rank_of, rank) for rank in range(self.size)])

    def _be(self, rank_of: Callable[[Peers], Any], rank: int) -> Callable[[], None]:
        def be() -> None:
            rank_of(Peers(self, rank))

        return be

    @property
    def stopped(self) -> str:
        """The reason why the world was stopped; empty if all ranks ended."""
        return self._turns.stopped or ""

    def waiting(self) -> list[tuple[int, str]]:
        """Return the ranks that had not ended when the world was stopped, and what each was waiting for."""
        return [(rank, self.waits.get(rank, "")) for rank in sorted(self._turns.waiting)]

    def send(self, rank: int, to: int, values: Tensor) -> None:
        message = self._turns.do(rank, "send", lambda: self._put(rank, to, values))
        self.time_s[rank] += self._took_s(message)
        if message.values.nbytes > BUFFER_BYTES:
            self.waits[rank] = f"rank {to} to receive {message.values.numel()} elements"
            self._turns.do(rank, "send", is_ready=lambda: message.taken)

    def receive(self, rank: int, source: int, into: Tensor) -> None:
        message = self._take(rank, source, into)
        self.time_s[rank] = max(self.time_s[rank], message.starts_s) + self._took_s(message)

    def exchange(self, rank: int, to: int, values: Tensor, source: int, into: Tensor) -> None:
        if share_memory(values, into):
            raise ValueError(
                "exchange: `values` and `into` share memory: what arrives overwrites what has not left yet"
            )
        began_s = self.time_s[rank]
        leaving = self._turns.do(rank, "send", lambda: self._put(rank, to, values))
        arriving = self._take(rank, source, into)
        if leaving.values.nbytes > BUFFER_BYTES:
            self.waits[rank] = f"rank {to} to receive {leaving.values.numel()} elements"
            self._turns.do(rank, "send", is_ready=lambda: leaving.taken)
        arrives_s = max(began_s, arriving.starts_s) + self._took_s(arriving)
        self.time_s[rank] = max(began_s + self._took_s(leaving), arrives_s)

    def _took_s(self, message: _Message) -> float:
        return self._alpha_s + message.values.nbytes * self._beta_s

    def _put(self, rank: int, to: int, values: Tensor) -> _Message:
        message = _Message(values.detach().clone().flatten(), self.time_s[rank])
        self._queues.setdefault((rank, to), deque()).append(message)
        self.sent[rank] += message.values.nbytes
        self.messages.append((rank, to, message.values.numel()))
        self.contents += [message.values] if message.values.numel() <= 100 else []
        self._turns.write()
        return message

    def _take(self, rank: int, source: int, into: Tensor) -> _Message:
        queue = self._queues.setdefault((source, rank), deque())
        self.waits[rank] = f"a message of rank {source}"
        message: _Message = self._turns.do(rank, "receive", queue.popleft, is_ready=lambda: bool(queue))
        message.taken = True
        self._turns.write()
        self.received[rank] += message.values.nbytes
        if message.values.numel() != into.numel() or message.values.dtype != into.dtype:
            raise FrameError(
                f"rank {source} sent {message.values.numel()} x {message.values.dtype}, and rank {rank} expected "
                f"{into.numel()} x {into.dtype}"
            )
        with torch.no_grad():
            into.copy_(message.values.view(into.shape))
        return message


def share_memory(a: Tensor, b: Tensor) -> bool:
    """True if the memory between the first and the last element of two tensors overlaps."""
    if a.numel() == 0 or b.numel() == 0 or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    (a_first, a_last), (b_first, b_last) = _span(a), _span(b)
    return a_first <= b_last and b_first <= a_last


def _span(x: Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size() - 1
