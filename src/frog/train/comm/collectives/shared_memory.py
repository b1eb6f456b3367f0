"""Collectives among ranks of one machine, through shared memory.

A buffer passes through in slices small enough for the cache, in two alternating slots, so that ranks fill one while
they empty the other. Counters record each rank's progress; each has its own cache line, and only its rank writes it:

    POSTED     slices that this rank has written for the others
    REDUCED    slices whose inputs this rank has read; its own part of the result is available
    COLLECTED  slices whose result this rank has copied
    SMALL      small messages that this rank has written

Slice g may be written once all ranks have REDUCED g-2, whose slot it reuses. A result may replace that of g-2 once all
have COLLECTED it; when every rank has POSTED g, that is the case.

Next to its data each rank writes a note: which collective it is in, and its number of bytes; the readers compare it
with their own. A rank that waits for another one also compares when the other has written something it has not reached.

Assumes: Linux, and a processor on which other cores see writes in order, such as x86-64. Otherwise `usable` is False.
"""

from __future__ import annotations

import mmap
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frog.train.comm.collectives.arithmetic import Buffer, Reduction
from frog.train.comm.collectives.errors import Mismatch
from frog.train.comm.collectives.exchange import cuts, pieces
from frog.train.comm.collectives.waiting import Waiter

SMALL_BYTES = 32 << 10
SLICE_BYTES = 1 << 20
_LINE_BYTES = 128
_CONTROL_BYTES, _NOTES_AT = 64 << 10, 32 << 10
COUNTERS = ("POSTED", "REDUCED", "COLLECTED", "SMALL", "COMMITTED")
POSTED, REDUCED, COLLECTED, SMALL, COMMITTED = range(5)
_ALL_REDUCE, _REDUCE_SCATTER, _ALL_GATHER, _ALL_TO_ALL, _BROADCAST = range(5)


def usable() -> bool:
    """True on Linux, which can reserve memory and wake sleepers, on a processor that preserves the order of writes."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def size_of(num_ranks: int) -> int:
    """Return the bytes of a segment: two slices and two small messages per rank, and two results."""
    return _CONTROL_BYTES + 2 * num_ranks * (SMALL_BYTES + SLICE_BYTES) + 2 * SLICE_BYTES


def create(num_ranks: int) -> Path | None:
    """Create a file of memory for `num_ranks`; None if there is too little room. The mapping process may unlink it."""
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    descriptor, name = tempfile.mkstemp(prefix="frog-", dir=folder)
    try:
        os.posix_fallocate(descriptor, 0, size_of(num_ranks))  # without it, a shortage would be a bus error later
    except OSError:
        os.unlink(name)
        return None
    finally:
        os.close(descriptor)
    return Path(name)


def _note(collective: int, num_bytes: int) -> int:
    return num_bytes << 8 | collective


def _said(note: int) -> str:
    names = ("an all-reduce", "a reduce-scatter", "an all-gather", "an all-to-all", "a broadcast")
    return f"{names[note & 0xFF]} of {note >> 8} bytes"


class Segment:
    """The memory that the ranks of a group on one machine share, seen from one of them."""

    def __init__(self, path: Path, rank: int, size: int, timeout_s: float, look: Callable[[], None]) -> None:
        """look: called regularly while this rank waits; raises if a peer has left."""
        self.rank, self.size = rank, size
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), size_of(size))
        whole: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        small, slots, results = np.split(
            whole[_CONTROL_BYTES:], np.cumsum([2 * size * SMALL_BYTES, 2 * size * SLICE_BYTES])
        )
        self._small = small.reshape(2, size, SMALL_BYTES)
        self._slots = slots.reshape(2, size, SLICE_BYTES)
        self._results = results.reshape(2, SLICE_BYTES)
        self._peers_are_there = look
        self._waiter = Waiter(memory, _LINE_BYTES, rank, size, timeout_s, self._look)
        self._notes = memoryview(memory)[_NOTES_AT:_CONTROL_BYTES].cast("Q")
        self._slices = self._smalls = self._commits = self._note = 0

    def all_reduce_small(self, x: Buffer, reduction: Reduction) -> None:
        """Write all of `x`, and sum every rank's values in rank order.

        Comm:    one step; each rank writes S bytes and reads (n-1) S. At most SMALL_BYTES.
        """
        number, self._smalls = self._smalls, self._smalls + 1
        room = self._small[number & 1, :, : x.nbytes].view(x.dtype)
        room[self.rank] = x
        note = _note(_ALL_REDUCE, x.nbytes)
        self._lay_out(number, note, SMALL)
        self._compare(number, note, SMALL)
        reduction.combine(room[0], room[1], x)
        for rank in range(2, self.size):
            reduction.combine(x, room[rank], x)
        reduction.finish(x)

    def all_reduce_of_two(self, x: Buffer, reduction: Reduction) -> None:
        """Reduce between two ranks: each writes all of `x` and sums all, with the same bytes and half the waiting.

        Comm:    one step per slice; each rank writes and reads S bytes.
        """
        note = _note(_ALL_REDUCE, x.nbytes)
        for piece in pieces(x, SLICE_BYTES):
            number = self._slices
            self._slices += 1
            self._waiter.until(REDUCED, number - 1)
            self._room(number, self.rank, piece)[0] = piece
            self._lay_out(number, note)
            self._compare(number, note)
            reduction.total([self._room(number, rank, piece)[0] for rank in range(2)], piece)
            self._done(number)

    def all_reduce(self, x: Buffer, reduction: Reduction) -> None:
        """Sum this rank's part of each slice, in rank order, and copy the other parts from their ranks.

        Comm:    two steps per slice; each rank writes and reads (n-1)/n S bytes for the sums, and writes S/n and reads
                 (n-1)/n S for the results.
        """
        slices = pieces(x, SLICE_BYTES)
        first, self._slices = self._slices, self._slices + len(slices)
        note = _note(_ALL_REDUCE, x.nbytes)
        self._post(first, slices[0], note)
        for number, piece in enumerate(slices, first):
            if number + 1 < self._slices:
                self._post(number + 1, slices[number + 1 - first], note)
            part = cuts(len(piece), self.size)
            mine = piece[part[self.rank]]
            self._compare(number, note)
            self._reduce(number, piece, mine, reduction)
            result = self._results[number & 1, : piece.nbytes].view(x.dtype)
            result[part[self.rank]] = mine
            self._waiter.say(REDUCED, number + 1)
            self._waiter.until(REDUCED, number + 1)
            for rank, span in enumerate(part):
                if rank != self.rank:
                    piece[span] = result[span]
            self._waiter.say(COLLECTED, number + 1)

    def reduce_scatter(self, parts: Sequence[Buffer], out: Buffer, reduction: Reduction) -> None:
        """Set `out` to the sum of all ranks' parts for this rank, in rank order.

        Comm:    one step per slice; each rank writes and reads (n-1)/n S bytes.
        """
        step_bytes = SLICE_BYTES // self.size
        rows = [pieces(part, step_bytes) for part in parts]
        note = _note(_REDUCE_SCATTER, out.nbytes)
        for index, mine in enumerate(pieces(out, step_bytes)):
            number = self._slices
            self._slices += 1
            self._waiter.until(REDUCED, number - 1)
            room = self._room(number, self.rank, mine, self.size)
            for peer in range(self.size):
                if peer != self.rank:
                    room[peer] = rows[peer][index]
            self._lay_out(number, note)
            self._compare(number, note)
            terms = [
                rows[rank][index] if rank == self.rank else self._room(number, rank, mine, self.size)[self.rank]
                for rank in range(self.size)
            ]
            reduction.total(terms, mine, room[self.rank])  # `out` may be part of `parts`
            self._done(number)

    def all_gather(self, parts: Sequence[Buffer]) -> None:
        """Fill `parts`; each rank already has its own part.

        Comm:    one step per slice; each rank writes S/n bytes and reads (n-1)/n S.
        """
        rows = [pieces(part, SLICE_BYTES) for part in parts]
        note = _note(_ALL_GATHER, parts[self.rank].nbytes)
        for index, mine in enumerate(rows[self.rank]):
            number = self._slices
            self._slices += 1
            self._waiter.until(REDUCED, number - 1)
            self._room(number, self.rank, mine)[0] = mine
            self._lay_out(number, note)
            self._compare(number, note)
            for peer, row in enumerate(rows):
                if peer != self.rank:
                    row[index][:] = self._room(number, peer, mine)[0]
            self._done(number)

    def all_to_all(self, leave: Sequence[Buffer], arrive: Sequence[Buffer]) -> None:
        """Set `arrive[i]` to rank i's `leave` for this rank; all have the same size. The caller copies its own part.

        Comm:    one step per slice; each rank writes and reads (n-1)/n S bytes.
        """
        step_bytes = SLICE_BYTES // self.size
        out, into = ([pieces(part, step_bytes) for part in parts] for parts in (leave, arrive))
        note = _note(_ALL_TO_ALL, leave[self.rank].nbytes)
        for index, mine in enumerate(out[self.rank]):
            number = self._slices
            self._slices += 1
            self._waiter.until(REDUCED, number - 1)
            room = self._room(number, self.rank, mine, self.size)
            for peer in range(self.size):
                if peer != self.rank:
                    room[peer] = out[peer][index]
            self._lay_out(number, note)
            self._compare(number, note)
            for peer in range(self.size):
                if peer != self.rank:
                    into[peer][index][:] = self._room(number, peer, mine, self.size)[self.rank]
            self._done(number)

    def broadcast(self, x: Buffer, root: int) -> None:
        """Copy `root`'s `x` to all ranks.

        Comm:    one step per slice; root writes S bytes and every other rank reads them.
        """
        note = _note(_BROADCAST, x.nbytes)
        for piece in pieces(x, SLICE_BYTES):
            number = self._slices
            self._slices += 1
            result = self._results[number & 1, : piece.nbytes].view(x.dtype)
            if self.rank == root:
                self._waiter.until(COLLECTED, number - 1)
                result[:] = piece
                self._lay_out(number, note)
            else:
                self._compare(number, note, ranks=(root,))
                piece[:] = result
            self._done(number)

    def commit(self) -> None:
        """Return once every rank has called this and has its result in its own memory. Comm: one step, no bytes."""
        self._commits += 1
        self._waiter.say(COMMITTED, self._commits)
        self._waiter.until(COMMITTED, self._commits)

    def _room(self, number: int, rank: int, like: Buffer, rows: int = 1) -> Buffer:
        """Return the memory for `rank`'s slice `number`: rows as long as `like`."""
        return self._slots[number & 1, rank, : rows * like.nbytes].view(like.dtype).reshape(rows, len(like))

    def _lay_out(self, number: int, note: int, counter: int = POSTED) -> None:
        """Publish that this rank has written `number`, and its note."""
        self._notes[self._place(number, self.rank, counter)] = note
        self._waiter.say(counter, number + 1)

    def _compare(self, number: int, note: int, counter: int = POSTED, ranks: Sequence[int] | None = None) -> None:
        """Wait until these ranks (default: all) have written `number`. Raises Mismatch if their notes differ."""
        self._note = note
        self._waiter.until(counter, number + 1, ranks)
        for rank in range(self.size) if ranks is None else ranks:
            if self._notes[self._place(number, rank, counter)] != note:
                raise self._mismatch(number, rank, counter)

    def _look(self, rank: int) -> None:
        """Raise Mismatch if the awaited rank is in a collective that this rank has not reached."""
        for counter, number in ((POSTED, self._slices), (SMALL, self._smalls)):
            if (seen := self._waiter.seen(rank, counter)) > number:
                raise self._mismatch(seen - 1, rank, counter)
        self._peers_are_there()

    def _mismatch(self, number: int, rank: int, counter: int) -> Mismatch:
        theirs = _said(self._notes[self._place(number, rank, counter)])
        return Mismatch(f"rank {rank} of the group is in {theirs}; this rank is in {_said(self._note)}", rank)

    def _place(self, number: int, rank: int, counter: int) -> int:
        return (2 * (counter == SMALL) + (number & 1)) * self.size + rank

    def _post(self, number: int, piece: Buffer, note: int) -> None:
        self._waiter.until(REDUCED, number - 1)
        room = self._room(number, self.rank, piece)[0]
        own = cuts(len(piece), self.size)[self.rank]
        room[: own.start] = piece[: own.start]
        room[own.stop :] = piece[own.stop :]
        self._lay_out(number, note)

    def _reduce(self, number: int, piece: Buffer, mine: Buffer, reduction: Reduction) -> None:
        own = cuts(len(piece), self.size)[self.rank]
        terms = [mine if rank == self.rank else self._room(number, rank, piece)[0][own] for rank in range(self.size)]
        reduction.total(terms, mine, self._room(number, self.rank, piece)[0][own])

    def _done(self, number: int) -> None:
        for counter in (POSTED, REDUCED, COLLECTED):
            self._waiter.say(counter, number + 1)
