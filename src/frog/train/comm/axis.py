"""The collectives of one mesh axis: each is timed, reported as an event, and explained if it fails.

`start_...` begins a collective and returns a `Pending`; the plain call begins and waits. `n` is the size of the axis.
On an axis of one rank, collectives do nothing, report nothing and cost nothing.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from frog.core.errors import CommError, ErrorFacts
from frog.core.runs.observer import OBSERVERS
from frog.core.runs.vocabulary import MESSAGES
from frog.train.comm.backend import Backend, choose_backend, reduce_scatter_single


class Note(Protocol):
    """An unfinished collective, as the events see it."""

    seq: int
    """The collective's index on this rank, counted from 0."""

    def done(self, end_ns: int, wait_ns: int) -> None:
        """Record that the collective ended at `end_ns`, and that it blocked the rank's own thread for `wait_ns`."""


Recorder = Callable[[str, str, int], Note]
"""A function called as each collective begins, with the operation, the axis and the bytes of the payload."""


class Silent:
    """A recorder that records nothing, for a world without events."""

    seq = 0

    def __call__(self, op: str, axis: str, payload_bytes: int) -> Silent:
        return self

    def done(self, end_ns: int, wait_ns: int) -> None:
        return


class Pending:
    """An unfinished collective. It owns its buffers until `wait` returns."""

    def __init__(
        self, axis: Axis, op: str, payload_bytes: int, begin: Callable[[], Sequence[Any]], peer: int | None = None
    ) -> None:
        self._axis, self._op, self._payload_bytes, self._peer = axis, op, payload_bytes, peer
        self._start_ns = time.monotonic_ns()
        self._end_ns: int | None = None
        self._note = axis.record(op, axis.name, payload_bytes)
        try:
            self._works = begin()
        except (RuntimeError, ValueError) as error:
            raise self._explain(error) from error
        self._wait_ns = time.monotonic_ns() - self._start_ns
        # The last byte may arrive long before the caller waits; sends and receives do not report when they end.
        if self._works and axis.backend.stamps_end and op not in MESSAGES:
            self._works[-1].get_future().add_done_callback(self._ended)

    def _ended(self, future: object) -> None:
        self._end_ns = time.monotonic_ns()

    def wait(self) -> None:
        """Return when the result is available. Raises CommError if the collective fails."""
        start_ns = time.monotonic_ns()
        try:
            for work in self._works:
                work.wait()
        except RuntimeError as error:
            raise self._explain(error) from error
        now_ns = time.monotonic_ns()
        self._note.done(min(self._end_ns or now_ns, now_ns), self._wait_ns + now_ns - start_ns)

    def _explain(self, error: Exception) -> CommError:
        axis, peer = self._axis, "" if self._peer is None else f", peer {self._peer}"
        where = f"rank {axis.ranks[axis.rank]}, {axis.name} {axis.rank} of {axis.size}{peer}"
        return failed(
            axis.backend, error, f"{self._op} of {self._payload_bytes} bytes", where, self._start_ns,
            op=self._op, axis=axis.name, payload_bytes=self._payload_bytes, seq=self._note.seq, peer=self._peer,
        )  # fmt: skip


_LOST = "another rank has left or hangs; its own log says why"
_UNLIKE = "all ranks of an axis must call the same collectives with the same sizes in the same order; run frog diagnose"


def failed(backend: Backend, error: Exception, what: str, where: str, start_ns: int, **known: Any) -> CommError:
    """Return the error of a collective that began at `start_ns`, with a message for people and the `known` facts."""
    waited_s, cause = (time.monotonic_ns() - start_ns) / 1e9, backend.cause_of(error)
    return CommError(
        f"{what} failed after {waited_s:.1f} s [{where}]: {backend.shorten(error)}",
        _UNLIKE if cause == "mismatch" else _LOST,
        ErrorFacts(cause=cause, waited_s=round(waited_s, 3), **known),
    )


class _Nothing(Pending):
    """The result of starting a collective on an axis of one rank."""

    def __init__(self) -> None:
        return

    def wait(self) -> None:
        return


NOTHING = _Nothing()

_P = ParamSpec("_P")
_Start = Callable[Concatenate["Axis", _P], Pending]


def _observed(start: _Start[_P]) -> _Start[_P]:
    """Report each collective of several ranks as it begins; an observer may change its arguments."""
    op = start.__name__.removeprefix("start_")

    @functools.wraps(start)
    def begin(axis: Axis, /, *args: _P.args, **kwargs: _P.kwargs) -> Pending:
        if OBSERVERS and axis.size > 1:
            changed: Any = args
            for observer in OBSERVERS:
                changed = observer.collective_begins(op, axis.size, changed)
                if changed is None:
                    return NOTHING
            return start(axis, *changed, **kwargs)
        return start(axis, *args, **kwargs)

    return begin


class Axis:
    """An ordered subset of the world's ranks, seen from one of them."""

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        world_rank: int,
        device: torch.device,
        group: Any,
        recorder: list[Recorder],
        backend: Backend | None = None,
    ) -> None:
        self.name, self.ranks, self.device = name, tuple(ranks), device
        self.size, self.rank = len(self.ranks), self.ranks.index(world_rank)
        self.group = group
        """torch's process group; None for the whole world."""
        self.backend = backend or choose_backend("auto", device)
        self._recorder = recorder

    def alone(self) -> Axis:
        """An axis of only this rank, along which collectives do nothing."""
        own = self.ranks[self.rank]
        return Axis("alone", (own,), own, self.device, None, self._recorder, self.backend)

    @property
    def record(self) -> Recorder:
        return self._recorder[0]

    def _start(self, op: str, payload_bytes: int, begin: Callable[[], Any], peer: int | None = None) -> Pending:
        return NOTHING if self.size == 1 else Pending(self, op, payload_bytes, lambda: [begin()], peer)

    @_observed
    def start_all_reduce(self, x: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Pending:
        """Sum `x` over the axis, or take its maximum, in place. Bytes reported: x's; a rank sends 2(n-1)/n of them."""
        return self._start("all_reduce", x.nbytes, lambda: dist.all_reduce(x, op, self.group, async_op=True))

    @_observed
    def start_all_gather(self, whole: Tensor, part: Tensor) -> Pending:
        """Fill `whole` with every rank's `part`, in rank order. Bytes reported: whole; a rank sends (n-1)/n of them.

        Shapes:  part (...), contiguous; whole n times as many elements, contiguous
        """
        if self.size == 1:
            whole.view(-1).copy_(part.reshape(-1))
            return NOTHING
        target, own = whole.view(-1), part.reshape(-1)
        return self._start(
            "all_gather", whole.nbytes, lambda: self.backend.all_gather(target, own, self.size, self.group)
        )

    @_observed
    def start_reduce_scatter(self, part: Tensor, whole: Tensor) -> Pending:
        """Fill `part` with the sum of this rank's slice over all ranks' `whole`. Bytes reported: those of whole.

        If the backend has no efficient reduce-scatter, the ranks exchange slices (all-to-all), and each rank sums the
        slices it received, in rank order: half the bytes of an all-reduce, and the same sum on every machine.
        """
        target, source = part.view(-1), whole.view(-1)
        if self.size == 1:
            target.copy_(source)
            return NOTHING
        if not self.backend.has_reduce_scatter:
            return _SumOfSlices(self, target, source)
        return self._start(
            "reduce_scatter",
            whole.nbytes,
            lambda: reduce_scatter_single(target, source, group=self.group, async_op=True),
        )

    @_observed
    def start_broadcast(self, x: Tensor, source: int = 0) -> Pending:
        """Copy `x` from rank `source` of the axis to all its ranks. Bytes reported: those of x."""
        rank = self.ranks[source]
        return self._start("broadcast", x.nbytes, lambda: dist.broadcast(x, rank, group=self.group, async_op=True))

    @_observed
    def start_all_to_all(
        self, received: Tensor, sent: Tensor, counts: tuple[list[int], list[int]] | None = None
    ) -> Pending:
        """Send the i-th slice of `sent` to rank i; fill `received` with its slices, in order. Bytes reported: sent's.

        `counts` are the numbers of rows received from and sent to each rank; without it the slices are equal.
        """
        if self.size == 1:
            received.copy_(sent)
            return NOTHING
        arrive, leave = counts or (None, None)
        return self._start(
            "all_to_all",
            sent.nbytes,
            lambda: dist.all_to_all_single(received, sent, arrive, leave, group=self.group, async_op=True),
        )

    @_observed
    def start_send(self, x: Tensor, to: int, tag: int = 0) -> Pending:
        """Send `x`, contiguous, to rank `to` of the axis. Messages between two ranks arrive in order."""
        peer = self.ranks[to]
        return self._start("send", x.nbytes, lambda: dist.isend(x, peer, group=self.group, tag=tag), peer)

    @_observed
    def start_receive(self, x: Tensor, source: int, tag: int = 0) -> Pending:
        """Fill `x` with the message from rank `source` of the axis."""
        peer = self.ranks[source]
        return self._start("recv", x.nbytes, lambda: dist.irecv(x, peer, group=self.group, tag=tag), peer)

    @_observed
    def start_shift(self, received: Sequence[Tensor], sent: Sequence[Tensor]) -> Pending:
        """Pass `sent` to the next rank of the ring, and receive from the previous one. Bytes reported: sent's."""
        if self.size == 1:
            for target, source in zip(received, sent, strict=True):
                target.copy_(source)
            return NOTHING
        after, before = self.ranks[(self.rank + 1) % self.size], self.ranks[(self.rank - 1) % self.size]

        def begin() -> Sequence[Any]:
            moves = [dist.P2POp(dist.isend, x, after, self.group) for x in sent]
            moves += [dist.P2POp(dist.irecv, x, before, self.group) for x in received]
            return dist.batch_isend_irecv(moves)

        return Pending(self, "send_recv", sum(x.nbytes for x in sent), begin)

    def all_reduce(self, x: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> None:
        self.start_all_reduce(x, op).wait()

    def all_gather(self, whole: Tensor, part: Tensor) -> None:
        self.start_all_gather(whole, part).wait()

    def reduce_scatter(self, part: Tensor, whole: Tensor) -> None:
        self.start_reduce_scatter(part, whole).wait()

    def broadcast(self, x: Tensor, source: int = 0) -> None:
        self.start_broadcast(x, source).wait()

    def all_to_all(self, received: Tensor, sent: Tensor, counts: tuple[list[int], list[int]] | None = None) -> None:
        self.start_all_to_all(received, sent, counts).wait()


class _SumOfSlices(Pending):
    """A reduce-scatter: an all-to-all, then on `wait` the sum."""

    def __init__(self, axis: Axis, part: Tensor, whole: Tensor) -> None:
        self._part, self._slices = part, torch.empty_like(whole)
        super().__init__(
            axis,
            "reduce_scatter",
            whole.nbytes,
            lambda: [dist.all_to_all_single(self._slices, whole, group=axis.group, async_op=True)],
        )

    def wait(self) -> None:
        super().wait()
        torch.sum(self._slices.view(self._axis.size, -1), dim=0, out=self._part)
