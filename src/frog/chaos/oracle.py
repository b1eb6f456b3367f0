"""The undisturbed run: where faults can be aimed, and what a run that recovered must have come to."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from frog.config.fault_kinds import KINDS, Kind
from frog.config.faults import Fault
from frog.core.errors import RunError
from frog.diagnose.diagnosis import Diagnosis
from frog.runs import RankEvents, RecordedRun, read_run
from frog.runs.folder import RunFolder
from frog.runs.record import Record
from frog.runs.schema import CollectiveEvent, CommitEvent, SpanEvent, StartEvent, StepEvent
from frog.runs.vocabulary import MESSAGES

_RTOL = 1e-5
"""Between losses of worlds of different sizes."""

_SLOW_S = 3.0
"""What a campaign's slow phase takes longer. Of one or two late steps the diagnosis asks three times all else."""

_ALTERABLE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", *MESSAGES)
"""Operations that a rank can leave out or do with another tensor: those that `Axis` reports to observers."""


class Place(NamedTuple):
    """A phase that a rank went through in the undisturbed run."""

    rank: int
    step: int
    phase: str
    micro: int
    communicates: bool
    """Whether the rank began a collective in it."""
    alterable: str | None
    """The operation of the first that a fault can alter, in the phase or between it and the next, where a pipeline
    passes on what the phase has made; what torch does by itself inside of a pass it cannot.
    """


@dataclass(frozen=True)
class Oracle:
    """What the undisturbed run did and came to."""

    record: Record
    losses: dict[int, float]
    node_of: dict[int, int]
    """Each rank's node."""
    places: tuple[Place, ...]
    """In the order in which each rank came there, rank after rank."""
    native: bool = False
    """Whether torch or DeepSpeed carries the strategy out."""

    @property
    def world_size(self) -> int:
        return len(self.node_of)

    def draw(self, kinds: Sequence[str], count: int, seed: int) -> list[Fault]:
        """Faults of these kinds, each as often as the others, at places drawn from the seed."""
        generator, faults = random.Random(seed), list[Fault]()
        while len(faults) < count:
            names = list(kinds)
            generator.shuffle(names)
            faults += [self._aim(name, generator) for name in names[: count - len(faults)]]
        return faults

    def everywhere(self, kinds: Sequence[str], seed: int, each_step: bool = True) -> list[Fault]:
        """Every kind at every step in every phase where it can be; the rank and the micro-batch are drawn.

        each_step: else the step is drawn too.
        """
        generator, faults = random.Random(seed), list[Fault]()
        for name in kinds:
            by_phase: dict[tuple[int, str], list[Place]] = {}
            for place in self._targets(name):
                by_phase.setdefault((place.step * each_step, place.phase), []).append(place)
            faults += [_fault(name, generator.choice(by_phase[where])) for where in sorted(by_phase)]
        return faults

    def _aim(self, name: str, generator: random.Random) -> Fault:
        """First the rank, then the step, then the phase: each is as likely as its like, however many places it has."""
        places = self._targets(name)
        for field in ("rank", "step", "phase", "micro"):
            value = generator.choice(sorted({getattr(place, field) for place in places}))
            places = [place for place in places if getattr(place, field) == value]
        return _fault(name, places[0])

    def _targets(self, name: str) -> list[Place]:
        """Where a fault of that kind can be."""
        kind = KINDS[name]
        places = [place for place in self.places if place.phase in kind.phases]
        if kind.alters_collective:
            places = [place for place in places if place.alterable is not None and self._shows(kind, place)]
        if kind.spoils_gradient and self.native:
            places = [place for place in places if place.phase == "backward"]
        if not places:
            raise RunError(f"{name}: the undisturbed run has no place for it", "--kinds leaves it out")
        return places

    def _shows(self, kind: Kind, place: Place) -> bool:
        """Whether a fault there can be found.

        Of a rank's first messages nobody knows how they should have been; one that is too short gloo takes as it is.
        """
        if place.alterable not in MESSAGES:
            return True
        first = min(other.step for other in self.places if (other.rank, other.phase) == (place.rank, place.phase))
        return place.step > first and (kind.collective, place.alterable) != ("resized", "send")

    def next_collective(self, fault: Fault) -> Place | None:
        """Where the rank next speaks to others: from the fault on, or, of a checkpoint, from when it is whole."""
        own = self._from(fault)[KINDS[fault.kind].damages_checkpoint :]
        return next((place for place in own if place.communicates), None)

    def place_of(self, fault: Fault) -> Place | None:
        """Where the fault is."""
        return next(iter(self._from(fault)), None)

    def _from(self, fault: Fault) -> list[Place]:
        own = [place for place in self.places if place.rank == fault.rank]
        address = (fault.step, fault.phase, fault.micro)
        start = next((i for i, place in enumerate(own) if (place.step, place.phase, place.micro) == address), len(own))
        return own[start:]


def _fault(kind: str, place: Place) -> Fault:
    fault = Fault(kind, place.rank, place.step, place.phase, place.micro)
    return replace(fault, seconds=_SLOW_S) if "seconds" in KINDS[kind].own else fault


def read_oracle(folder: RunFolder) -> Oracle:
    """Read the undisturbed run. Raises RunError if it has not come to its end."""
    run = read_run(folder)
    record = run.record
    if record is None or record.status != "completed":
        raise RunError(f"{folder.path}: the undisturbed run has not completed", "look at its logs")
    native = run.setting("strategy", "implementation") != "frog"
    node_of = {rank: int(said.of(StartEvent)[-1].node_rank) for rank, said in sorted(run.ranks.items())}
    places = tuple(place for rank in node_of for place in _places(run.ranks[rank], native))
    return Oracle(record, _losses(run), node_of, places, native)


def _places(said: RankEvents, native: bool) -> list[Place]:
    calls = sorted(said.of(CollectiveEvent), key=lambda event: event.start_ns)
    spans = sorted(said.of(SpanEvent), key=lambda event: event.start_ns)
    places = []
    for span, after in itertools.zip_longest(spans, spans[1:]):
        begun = [call for call in calls if span.start_ns <= call.start_ns]
        inside = [call for call in begun if call.start_ns <= span.end_ns]
        reached = [call for call in begun if after is None or call.start_ns < after.start_ns]
        torchs = native and span.phase in ("forward", "backward")
        alterable = next((call.op for call in reached if call.op in _ALTERABLE and not torchs), None)
        places.append(Place(said.rank, span.step, span.phase, span.micro, bool(inside), alterable))
    return places


def _losses(run: RecordedRun) -> dict[int, float]:
    steps = run.main.by_step(StepEvent).items()
    return {step: event.loss_mean for step, event in steps if event.loss_mean is not None}


def recovery_problems(oracle: Oracle, folder: RunFolder) -> list[str]:
    """How a run that recovered differs from the undisturbed one; in another world rounding is allowed for."""
    record = folder.read_record()
    if record is None or record.status != "completed":
        return [f"did not complete: {record.status if record else 'no record'}"]
    found = []
    if record.order_sha256 != oracle.record.order_sha256:
        found.append("took other samples")
    sizes = {segment.world_size for segment in folder.read_run_json().segments}
    if sizes == {oracle.world_size}:
        if record.weights_sha256 != oracle.record.weights_sha256:
            found.append("weights differ")
        return found
    losses = _losses(read_run(folder))
    far = [step for step, loss in oracle.losses.items() if not _close(losses.get(step), loss)]
    return [*found, *([f"losses differ at steps {', '.join(map(str, far))}"] if far else [])]


def _close(loss: float | None, expected: float) -> bool:
    return loss is not None and abs(loss - expected) <= _RTOL * abs(expected)


def resumed_from(folder: RunFolder) -> int | None:
    """At which step the world began that came after the fault; None if none came.

    Of the world that met the fault rank 0 may have said nothing: it counts by what others, or the launcher, said of it.
    """
    later = read_run(folder).attempts[1:]
    starts = (worker.start for attempt in later for worker in attempt.workers.values() if worker.start)
    return next((start.step for start in starts), None)


def resume_problems(fault: Fault, folder: RunFolder) -> list[str]:
    """Whether it went on from the last checkpoint that was whole, and from none that had been damaged."""
    from_step = resumed_from(folder)
    if from_step is None:
        return ["did not start again"]
    damaged = fault.step if KINDS[fault.kind].damages_checkpoint else None
    main = read_run(folder).attempts[0].workers.get(0)
    committed = main.of(CommitEvent) if main is not None else []
    whole = max((event.step for event in committed if event.step != damaged), default=0)
    found = []
    if from_step < whole:
        found.append(f"began at step {from_step}, though the checkpoint of step {whole} was whole")
    if damaged is not None and from_step >= damaged:
        found.append(f"went on from step {from_step}, whose checkpoint was damaged")
    return found


def diagnosis_problems(fault: Fault, found: Diagnosis, oracle: Oracle) -> list[str]:
    """Where a diagnosis misses the fault, as far as evidence can tell: what it cannot tell is not asked for.

    A closed connection has two ends, which in a world of two look alike, as do the two nodes of a cut; both are seen
    when the rank next speaks to others. Of a node that went, nobody can tell which of its ranks the fault was aimed at,
    nor, if none had said anything yet, where they were.
    A gradient spoiled as the reduction begins looks like one that the backward pass has spoiled. Who was slow in the
    last step alone may have been so by chance: that is reported too.
    """
    kind, node, num_nodes = KINDS[fault.kind], oracle.node_of[fault.rank], len(set(oracle.node_of.values()))
    if not kind.ends and fault.step == oracle.record.step:
        found = next((other for other in found.also if other.fault == fault.kind), found)
    on_node = [rank for rank in oracle.node_of if oracle.node_of[rank] == node]
    wanted: dict[str, Any] = {"fault": fault.kind, "rank": fault.rank, "step": fault.step, "phase": fault.phase}
    if kind.severs:
        place = oracle.next_collective(fault)
        wanted |= {"step": place.step, "phase": place.phase} if place else {"step": found.step, "phase": found.phase}
    if kind.severs and not kind.of_node and oracle.world_size == 2:
        wanted["rank"] = found.rank if found.rank is not None else "one of the two"
    if kind.severs and kind.of_node and num_nodes == 2:
        wanted["rank"] = found.rank
    elif kind.of_node:
        wanted |= {"node_rank": node, "rank": found.rank if found.rank in on_node else f"one of {on_node}"}
    if kind.of_node and not kind.severs and len(on_node) > 1:
        wanted["phase"] = found.phase
    if kind.of_node and fault.step == 0 and found.step is None:
        wanted |= {"step": None, "phase": None}
    if kind.spoils_gradient:
        wanted["phase"] = "backward"
    problems = [
        f"diagnosis: {name} {getattr(found, name)}, not {value}"
        for name, value in wanted.items()
        if getattr(found, name) != value
    ]
    return problems + _collective_problems(fault, found, oracle)


def _collective_problems(fault: Fault, found: Diagnosis, oracle: Oracle) -> list[str]:
    """Whether the collective is named: the one that a rank did otherwise, or in which others waited for it."""
    kind = KINDS[fault.kind]
    if kind.collective is not None:
        place = oracle.place_of(fault)
        op = "all_reduce" if kind.collective == "added" else place.alterable if place else None
        reported = (found.collective or "").partition(" ")[0]
        return [] if reported == op else [f"diagnosis: collective {found.collective}, not {op}"]
    some_are_left = not kind.of_node or len(set(oracle.node_of.values())) > 1
    if kind.peers_wait and some_are_left and found.collective is None and oracle.next_collective(fault) is not None:
        return ["diagnosis: no collective, though others waited in one"]
    return []
