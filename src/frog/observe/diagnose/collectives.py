"""Compare the collectives of all ranks, and find the first in which they differ.

Ranks of one axis must call the same collectives in the same order. Axes that span the whole world use the same
connections, so they count as one. Events and heartbeats are compared call by call; a call is identified by its step,
operation and size. If ranks differ and neither side has a majority, an earlier step, or the known order of the training
loop, shows which call was expected. Of two expected calls, the earlier one has not been skipped yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from frog.core.runs.event_schema import Beat, CollectiveEvent, OpenCollective, SpanEvent
from frog.core.runs.vocabulary import BETWEEN_TWO, PHASES
from frog.observe.diagnose.case import Case, Position

_DIMS = {
    "pp": ("pp",), "dp": ("dp",), "cp": ("cp",), "tp": ("tp",), "data": ("dp", "cp"), "model": ("pp", "tp"),
    "tied": ("pp",),
}  # fmt: skip
"""The axes whose groups follow from the mesh. Others (for experts, hybrid sharding) are not compared."""

_SCORE_BYTES = 24
_ID_BYTES = 8


@dataclass(frozen=True)
class CollectiveCall:
    """A collective that a rank began."""

    step: int | None
    phase: str | None
    op: str
    axis: str
    payload_bytes: int | None
    seq: int | None
    ended: bool
    mono_ns: int | None
    file: str

    @property
    def key(self) -> tuple[object, ...]:
        # The sizes of an all-to-all may differ from rank to rank: they depend on the number of tokens per expert.
        return self.step, self.op, self.axis, None if self.op == "all_to_all" else self.payload_bytes

    @property
    def position(self) -> tuple[int, int]:
        """The position in the loop: step and place in it. The start is before all phases, the end after them."""
        if self.phase in PHASES:
            return self.step or 0, PHASES.index(self.phase)
        return (self.step, len(PHASES)) if self.step else (0, -1)

    @property
    def form(self) -> tuple[object, ...]:
        """The call without its step, to compare steps."""
        return self.key[1:]

    def __str__(self) -> str:
        size = f" of {self.payload_bytes} bytes" if self.payload_bytes else ""
        return f"{self.op}{size} over {self.axis}"


_GUESS = "or it called the wrong collective"
"""The reason of a mismatch if nothing distinguishes an extra collective from a wrong one."""


@dataclass(frozen=True)
class Mismatch:
    """The first difference between the ranks of an axis."""

    kind: str
    """shape, extra or missing."""
    odd: int
    """The rank that differs."""
    odd_call: CollectiveCall | None
    """Its call at this place."""
    others: dict[int, CollectiveCall]
    """The calls of the other ranks at this place."""
    index: int
    certain: bool
    why: str

    @property
    def is_guess(self) -> bool:
        """True if the odd rank's collective may be a wrong one rather than an extra one."""
        return self.why == _GUESS

    @property
    def expected(self) -> CollectiveCall:
        return next(iter(self.others.values()))


@dataclass(frozen=True)
class Absence:
    """A collective that some ranks began and others never called."""

    waiting: dict[int, CollectiveCall]
    absent: list[int]

    @property
    def call(self) -> CollectiveCall:
        return next(iter(self.waiting.values()))


class CollectiveCalls:
    """All collectives that the ranks of a world called, by axis."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._by_rank = {rank: _calls_of(case, rank) for rank in case.ranks}

    def of(self, rank: int) -> list[CollectiveCall]:
        """Return all calls of a rank, in the order in which it began them."""
        return self._by_rank[rank]

    @cached_property
    def sequences(self) -> list[dict[int, list[CollectiveCall]]]:
        """The calls of each rank, for each set of ranks that calls collectives together."""
        axes = sorted({call.axis for calls in self._by_rank.values() for call in calls})
        sets = {axis: self.sets_of(axis) for axis in axes}
        world = [axis for axis in axes if sets[axis] == [self.case.ranks]]
        groups = [(world, self.case.ranks)] if world else []
        groups += [([axis], ranks) for axis in axes if axis not in world for ranks in sets[axis]]
        return [{rank: self._called(rank, over) for rank in ranks} for over, ranks in groups if len(ranks) > 1]

    def _called(self, rank: int, axes: list[str]) -> list[CollectiveCall]:
        return [call for call in self._by_rank[rank] if call.axis in axes and call.op not in BETWEEN_TWO]

    def sets_of(self, axis: str) -> list[list[int]]:
        """Return the sets of ranks into which an axis divides the world; none if the mesh does not determine them."""
        if axis == "world":
            return [self.case.ranks]
        dims, places = _DIMS.get(axis), _places(self.case)
        sets: dict[tuple[int, ...], list[int]] = {}
        for rank, place in places.items() if dims is not None else ():
            sets.setdefault(tuple(at for name, at in place.items() if name not in (dims or ())), []).append(rank)
        # In a pipeline, only the first and the last rank have the tied embedding.
        return [[ranks[0], ranks[-1]] if axis == "tied" else ranks for ranks in sets.values()]

    @cached_property
    def mismatch(self) -> Mismatch | None:
        """Return the mismatch that happened first, over all axes."""
        mismatches = [m for calls in self.sequences if (m := self._compare(calls)) is not None]
        return min(mismatches, key=lambda m: (m.expected.step or 0, m.expected.seq or 0), default=None)

    @cached_property
    def absence(self) -> Absence | None:
        """Return the first collective that some ranks of an axis began and others did not."""
        absences: list[Absence] = []
        for calls in self.sequences:
            shortest = min(map(len, calls.values()))
            waiting = {rank: seq[shortest] for rank, seq in calls.items() if len(seq) > shortest}
            if waiting and all(not call.ended for call in waiting.values()):
                absences.append(Absence(waiting, [rank for rank in calls if rank not in waiting]))
        return min(absences, key=lambda a: (a.call.step or 0, a.call.seq or 0), default=None)

    def _compare(self, calls: Mapping[int, list[CollectiveCall]]) -> Mismatch | None:
        """Return the first mismatch between the ranks of an axis."""
        for index in range(max(map(len, calls.values()), default=0)):
            here = {rank: called[index] for rank, called in calls.items() if len(called) > index}
            if len({call.key for call in here.values()}) > 1:
                return self._judge(calls, here, index)
        return None

    def _judge(
        self, calls: Mapping[int, list[CollectiveCall]], here: dict[int, CollectiveCall], index: int
    ) -> Mismatch:
        """Decide which rank is the odd one, and what it did."""
        counts = Counter(call.key for call in here.values())
        expected = {c.key for rank, c in here.items() if _as_announced(calls[rank], index) or self._is_of_the_loop(c)}
        first = {call.key: (call.position, self._turn(call)) for call in here.values()}
        right = min(counts, key=lambda key: (-counts[key], key not in expected, first[key]))
        odd = next(rank for rank, call in here.items() if call.key != right)
        others = {rank: call for rank, call in here.items() if call.key == right}
        comes_after = 0 <= self._turn(next(iter(others.values()))) < self._turn(here[odd])
        kind, why = _kind(calls[odd], calls[next(iter(others))], index, comes_after)
        wrong = here[odd].key
        distinct = right in expected and (wrong not in expected or first[right] < first[wrong])
        certain = counts[right] > counts[wrong] or distinct
        return Mismatch(kind, odd, here[odd], others, index, certain and why != _GUESS, why)

    def _is_of_the_loop(self, call: CollectiveCall) -> bool:
        """True if the training loop itself makes such a call: the whole gradient with the numbers sent along, the
        three numbers of the score, the samples of completed steps before a checkpoint, the barriers and broadcasts.
        """
        if call.op in ("barrier", "broadcast"):
            return True
        if call.phase == "evaluate":
            return call.op == "all_reduce" and call.payload_bytes == _SCORE_BYTES
        if call.phase == "checkpoint":
            batch = self.case.run.count("train", "global_batch_size") or 1
            return call.op == "all_gather" and (call.payload_bytes or 0) % (_ID_BYTES * batch) == 0
        riders = (call.payload_bytes or 0) - 4 * (file.num_parameters if (file := self.case.run.file) else 0)
        return self._turn(call) >= 0 or (call.op == "all_reduce" and 0 <= riders <= 4 * (len(self.case.ranks) + 1))

    def _turn(self, call: CollectiveCall) -> int:
        """Return a call's number among those of a pipeline's reduction; -1 for any other call."""
        form = (call.op, call.axis, call.payload_bytes)
        return self._reduction.index(form) if call.phase == "reduce" and form in self._reduction else -1

    @cached_property
    def _reduction(self) -> list[tuple[object, ...]]:
        """Return what a pipeline sums, in order: the tied embedding's gradient, then the agreed values.

        The order is reversed if the data ranks' reduction overlaps with the backward pass.
        """
        mesh, setting = _mesh(self.case), self.case.run.setting
        if mesh.get("pp", 1) == 1:
            return []
        embedding = setting("model", "vocab_size", default=0) * setting("model", "hidden_size", default=0)
        tied = ("all_reduce", "tied", 4 * embedding // mesh.get("tp", 1))
        agreed = ("all_reduce", "world", 4 * (mesh.get("dp", 1) * mesh.get("cp", 1) + 1))
        overlaps = (setting("strategy", "name"), setting("strategy", "reduction")) == ("ddp", "overlapped")
        return [agreed, tied] if overlaps else [tied, agreed]


def _kind(odd: list[CollectiveCall], other: list[CollectiveCall], index: int, comes_after: bool) -> tuple[str, str]:
    x, y = odd[index], other[index]
    if x.step != y.step and x.step is not None and y.step is not None:
        if x.step > y.step:
            return "missing", f"it had already reached step {x.step}"
        return "extra", f"the others had already reached step {y.step}"
    if x.position[1] > y.position[1]:
        return "missing", f"it had already reached {x.phase or 'the end'}"
    if x.position[1] < y.position[1]:
        return "extra", f"it was still in {x.phase or 'its start'}"
    if comes_after:
        return "missing", "its call comes after that of the others in every step"
    after_x, after_y = odd[index + 1 : index + 2], other[index + 1 : index + 2]
    if after_x and after_x[0].key == y.key:
        return "extra", "its next call matches this call of the others"
    if after_y and after_y[0].key == x.key:
        return "missing", "its call matches the next call of the others"
    if (x.op, x.axis) == (y.op, y.axis):
        return "shape", "the same operation in the same place, with another size"
    return "extra", _GUESS


def _as_announced(calls: list[CollectiveCall], index: int) -> bool:
    """True if an earlier step had such a call at this place in this phase."""
    counts: Counter[tuple[object, ...]] = Counter()
    seen: set[tuple[object, ...]] = set()
    for number, call in enumerate(calls[: index + 1]):
        ordinal = counts[call.step, call.phase]
        counts[call.step, call.phase] += 1
        where = (call.form, call.phase, ordinal)
        if number == index:
            return where in seen
        if call.step != calls[index].step:
            seen.add(where)
    return False


def _calls_of(case: Case, rank: int) -> list[CollectiveCall]:
    """Return all calls of a rank, in the order in which it began them."""
    worker, beat, position = case.attempt.workers.get(rank), case.beat(rank), case.position(rank)
    by_seq: dict[int, CollectiveCall] = {}
    spans: dict[int, list[SpanEvent]] = {}
    for span in worker.of(SpanEvent) if worker else []:
        spans.setdefault(span.step, []).append(span)
    for event in worker.of(CollectiveEvent) if worker else []:
        phase = _phase_of(event.step, event, spans.get(event.step, []), beat, position)
        by_seq[event.seq] = CollectiveCall(
            event.step, phase, event.op, event.axis, event.payload_bytes, event.seq, True,
            event.end_ns, case.events_file(rank),
        )  # fmt: skip
    for call in beat.open if beat else []:
        if beat is not None and call.seq not in by_seq:
            phase = _phase_of(beat.step, call, spans.get(beat.step, []), beat, position)
            by_seq[call.seq] = CollectiveCall(
                beat.step, phase, call.op, call.axis, call.payload_bytes, call.seq, False,
                call.start_ns, case.beat_file(rank),
            )  # fmt: skip
    # A call that began but left no trace is a gap in the numbering: later calls cannot be compared.
    ordered = [by_seq[seq] for number, seq in enumerate(sorted(by_seq)) if seq == number]
    if len(ordered) < len(by_seq) or not all(call.ended for call in ordered):
        return ordered
    failed = failed_call(case, rank)  # in case a later attempt overwrote its heartbeat
    return [*ordered, failed] if failed is not None and failed.seq in (None, len(ordered)) else ordered


def failed_call(case: Case, rank: int) -> CollectiveCall | None:
    """Return the failed collective that a rank's error describes."""
    error, position = case.error(rank), case.position(rank)
    facts = error.facts if error is not None and error.lost_peers else None
    if error is None or facts is None or facts.op is None or facts.op == "rendezvous":
        return None
    return CollectiveCall(
        position.step, position.phase, facts.op, facts.axis or "world", facts.payload_bytes or 0, facts.seq, False,
        None, error.file,
    )  # fmt: skip


def _phase_of(
    step: int, call: CollectiveEvent | OpenCollective, spans: list[SpanEvent], beat: Beat | None, position: Position
) -> str | None:
    """Return the phase in which a collective began; for a message between two ranks, also the phase just before it.

    A pipeline sends the result of a phase when that phase has ended.
    """
    at = call.start_ns
    inside = next((span.phase for span in spans if span.start_ns <= at < span.end_ns), None)
    if inside is not None:
        return inside
    if beat is not None and beat.step == step and beat.phase and beat.phase_ns <= at:
        return beat.phase
    if call.op in BETWEEN_TWO and (ended := [span for span in spans if span.end_ns <= at]):
        return max(ended, key=lambda span: span.end_ns).phase
    return position.phase if step == position.step else None


def _mesh(case: Case) -> dict[str, int]:
    """Return the sizes of the mesh's dimensions; empty if no rank reported them."""
    starts = [worker.start for worker in case.attempt.workers.values() if worker.start]
    return starts[0].mesh if starts else {}


def _places(case: Case) -> dict[int, dict[str, int]]:
    """Return each rank's coordinates on the mesh; compute those of a rank that reported none."""
    mesh = _mesh(case)
    places = {}
    for rank in case.ranks if mesh else ():
        rest, place = rank, {}
        for name, size in reversed(list(mesh.items())):
            rest, place[name] = divmod(rest, size)
        places[rank] = place
    return places
