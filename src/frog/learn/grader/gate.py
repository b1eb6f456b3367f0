"""Match the communication of a world's ranks before it begins.

A rank reports each operation that it calls, and continues when all participants have called it. The judge therefore
knows immediately, without a timeout, that a rank will never arrive or that ranks have called different operations, and
a program always gets the same verdict, however busy the machine is. This file keeps only the state: it starts nothing
and waits for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MESSAGES = {"send", "isend", "recv", "irecv"}


@dataclass(frozen=True)
class Operation:
    """An operation that a rank has called."""

    op: str
    group: tuple[int, ...]
    """The participating ranks; for a message, its two ends (a receiver from any source lists only itself)."""
    sizes: tuple[str, ...] = ()
    """Properties that must be the same on all participants: "12 x float32", "SUM", "root 0"."""
    is_async: bool = False
    peer: int | None = None
    """The other end of a message; None to receive from any source."""
    tag: int = 0
    line: str = ""
    """The calling line in the learner's file."""
    numel: int = 0
    dtype: str = ""
    num_bytes: int = 0
    batch: int | None = None
    """The number of the batch_isend_irecv that started it, from 0; None for any other operation."""

    @property
    def is_message(self) -> bool:
        return self.op in MESSAGES

    @property
    def sends(self) -> bool:
        return self.op in ("send", "isend")

    @property
    def is_from_anyone(self) -> bool:
        return self.op in ("recv", "irecv") and self.peer is None


@dataclass(frozen=True)
class Problem:
    """Operations that can never match."""

    id: str
    observed: str
    ranks: tuple[int, ...]


@dataclass
class _Rank:
    """The gate's view of one rank."""

    operations: list[Operation] = field(default_factory=list)
    in_group: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    """The numbers of the rank's collectives by group, in order."""
    places: list[int] = field(default_factory=list)
    """Each operation's index among those of its group, from 0."""
    other_ends: dict[int, int] = field(default_factory=dict)
    """The rank at the other end of each matched message."""
    waits_for: int | None = None
    """The number of the operation that the rank waits for."""
    finished: str = ""
    """How the rank ended; empty while it runs."""

    @property
    def is_stopped(self) -> bool:
        return bool(self.finished) or self.waits_for is not None


class Gate:
    """The operations that the ranks of a world have called."""

    def __init__(self, size: int) -> None:
        self.ranks = [_Rank() for _ in range(size)]
        self.mismatch: Problem | None = None
        """Two ranks whose operations should match but differ: in a group, or as the two ends of a message."""

    def enter(self, rank: int, operation: Operation) -> None:
        """Record that a rank has called its next operation; the rank waits unless the operation is asynchronous."""
        state = self.ranks[rank]
        number = len(state.operations)
        state.operations.append(operation)
        if not operation.is_async:
            state.waits_for = number
        if operation.is_message:
            state.places.append(0)
            self._match(rank, number)
        else:
            mine = state.in_group.setdefault(operation.group, [])
            state.places.append(len(mine))
            mine.append(number)
            self.mismatch = self.mismatch or self._compare(rank, number)

    def wait(self, rank: int, number: int) -> None:
        """Record that a rank waits for its asynchronous operation with this number, from 0."""
        self.ranks[rank].waits_for = number

    def finish(self, rank: int, how: str) -> None:
        self.ranks[rank].finished = how

    def release(self) -> list[tuple[int, int | None]]:
        """Return the ranks that may continue, each with the sender that it receives from, or None."""
        self._match_from_anyone()
        free = []
        for rank, state in enumerate(self.ranks):
            number = state.waits_for
            if number is not None and not self._missing(rank, number):
                state.waits_for = None
                free.append((rank, state.other_ends.get(number)))
        return free

    @property
    def all_stopped(self) -> bool:
        """True if every rank waits or has ended."""
        return all(state.is_stopped for state in self.ranks)

    def problem(self) -> Problem | None:
        """Return operations that can no longer match, whatever the running ranks do. Call after `release`."""
        return self.mismatch or self._deadlock()

    # ---- matching ----------------------------------------------------------------------------------------------------

    def _missing(self, rank: int, number: int) -> list[int]:
        """Return the ranks that have not yet called an operation of this rank."""
        state = self.ranks[rank]
        operation = state.operations[number]
        if operation.is_message:
            if number in state.other_ends:
                return []
            return [operation.peer] if operation.peer is not None else self._others(rank)
        place = state.places[number]
        return [other for other in operation.group if len(self._of(other, operation)) <= place]

    def _others(self, rank: int) -> list[int]:
        return [other for other in range(len(self.ranks)) if other != rank]

    def _of(self, rank: int, operation: Operation) -> list[int]:
        """Return the numbers of a rank's collectives in the group of this operation."""
        return self.ranks[rank].in_group.get(operation.group, [])

    def _match(self, rank: int, number: int) -> None:
        """Find the other end of a message among those reported so far, in order of arrival."""
        mine = self.ranks[rank].operations[number]
        if mine.peer is None or not 0 <= mine.peer < len(self.ranks):
            return
        for other_number, other in enumerate(self.ranks[mine.peer].operations):
            fits = other.is_message and other.sends != mine.sends and (other.peer, other.tag) == (rank, mine.tag)
            if fits and other_number not in self.ranks[mine.peer].other_ends:
                self._join(rank, number, mine.peer, other_number)
                return

    def _match_from_anyone(self) -> None:
        """Match a receiver from any source with the lowest sender, once all other possible senders have stopped."""
        for rank, state in enumerate(self.ranks):
            number = state.waits_for
            if number is None or number in state.other_ends:
                continue
            receive = state.operations[number]
            if not receive.is_from_anyone:
                continue
            messages = [(other, self._sent(other, rank, receive.tag)) for other in self._others(rank)]
            sent = {other: message for other, message in messages if message is not None}
            if sent and all(self.ranks[other].is_stopped or other in sent for other in self._others(rank)):
                self._join(rank, number, *next(iter(sent.items())))

    def _sent(self, sender: int, receiver: int, tag: int) -> int | None:
        """Return the sender's first unmatched message to a rank."""
        state = self.ranks[sender]
        return next(
            (
                number
                for number, operation in enumerate(state.operations)
                if operation.sends
                and (operation.peer, operation.tag) == (receiver, tag)
                and number not in state.other_ends
            ),
            None,
        )

    def _join(self, rank: int, number: int, other: int, other_number: int) -> None:
        self.ranks[rank].other_ends[number] = other
        self.ranks[other].other_ends[other_number] = rank
        ends = [(rank, self.ranks[rank].operations[number]), (other, self.ranks[other].operations[other_number])]
        sent, taken = sorted(ends, key=lambda end: not end[1].sends)
        if sent[1].num_bytes > taken[1].num_bytes:
            self.mismatch = self.mismatch or Problem(
                "different-collectives", _overflow_text(sent, taken), (sent[0], taken[0])
            )

    # ---- mismatches --------------------------------------------------------------------------------------------------

    def _compare(self, rank: int, number: int) -> Problem | None:
        """Return a problem if another rank called a different operation at this place in the group's order."""
        operation, place = self.ranks[rank].operations[number], self.ranks[rank].places[number]
        for other in operation.group:
            numbers = self._of(other, operation)
            if len(numbers) <= place:
                continue
            theirs = self.ranks[other].operations[numbers[place]]
            if _kind(theirs) != _kind(operation):
                first, second = sorted([(rank, operation), (other, theirs)], key=lambda came: came[0])
                text = _mismatch_text(self._ordinal(rank, number), first, second)
                return Problem("different-collectives", text, (first[0], second[0]))
        return None

    def _ordinal(self, rank: int, number: int) -> int:
        """Return a collective's position among those of its group, from 1; creating a group does not count."""
        state = self.ranks[rank]
        numbers = state.in_group[state.operations[number].group][: state.places[number] + 1]
        return sum(state.operations[n].op != "new_group" for n in numbers) or 1

    def _deadlock(self) -> Problem | None:
        """Find a rank that waits for one that has ended, or a cycle of waiting ranks."""
        for rank, state in enumerate(self.ranks):
            if state.finished or state.waits_for is None:
                continue
            missing = self._missing(rank, state.waits_for)
            ended = [other for other in missing if not 0 <= other < len(self.ranks) or self.ranks[other].finished]
            needs_all = (
                state.operations[state.waits_for].peer is not None or not state.operations[state.waits_for].is_message
            )
            if missing and (self.all_stopped or (ended if needs_all else len(ended) == len(missing))):
                return Problem("one-rank-waits", self._waiting_text(rank, missing), (rank, *missing))
        return None

    def _waiting_text(self, rank: int, missing: list[int]) -> str:
        """Return "rank 0 waited in all_reduce (its collective 1, step.py:12); rank 1 never arrived: it had …"."""
        number = self.ranks[rank].waits_for or 0
        operation = self.ranks[rank].operations[number]
        what = _name(operation) if operation.is_message else f"its collective {self._ordinal(rank, number)}"
        came = f"rank {rank} waited in {operation.op} ({what}{_at(operation)})"
        return "; ".join([came, *(f"rank {other} never arrived: {self.place(other)}" for other in missing)]) + "."

    def place(self, rank: int) -> str:
        """Describe a rank's state."""
        if not 0 <= rank < len(self.ranks):
            return "this rank does not exist"
        state = self.ranks[rank]
        if state.finished:
            return f"it had {state.finished}"
        if state.waits_for is not None:
            operation = state.operations[state.waits_for]
            return f"it was waiting in {operation.op} ({_name(operation)}{_at(operation)})"
        return "it was still running"


def _kind(operation: Operation) -> tuple[str, tuple[str, ...]]:
    return operation.op, operation.sizes


def _name(operation: Operation) -> str:
    if operation.is_message:
        whom = "anyone" if operation.peer is None else f"rank {operation.peer}"
        return f"{'to' if 'send' in operation.op else 'from'} {whom}, tag {operation.tag}"
    return _sizes(operation)


def _sizes(operation: Operation) -> str:
    return ", ".join(operation.sizes) or "no tensor"


def _at(operation: Operation) -> str:
    return f", {operation.line}" if operation.line else ""


def _mismatch_text(ordinal: int, first: tuple[int, Operation], other: tuple[int, Operation]) -> str:
    """Return "For collective 3 of their group, rank 0 called all_reduce (…) and rank 1 called broadcast …"."""
    elsewhere = ", not in your file" if first[1].line or other[1].line else ""
    said = [f"rank {rank} called {op.op} ({_name(op)}{_at(op) or elsewhere})" for rank, op in (first, other)]
    return f"For collective {ordinal} of their group, {' and '.join(said)}. They would wait forever or mix up data."


def _overflow_text(sent: tuple[int, Operation], taken: tuple[int, Operation]) -> str:
    """Return "rank 0 sent 12 x float32 (send, ring.py:7) to rank 1, tag 0, whose buffer holds only 4 …"."""
    (sender, send), (receiver, recv) = sent, taken
    what, room = (f"{_sizes(end)} ({end.op}{_at(end)})" for end in (send, recv))
    return f"rank {sender} sent {what} to rank {receiver}, tag {send.tag}, whose buffer holds only {room}."
