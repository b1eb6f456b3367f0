"""The undisturbed run: it shows where faults can be aimed, and the results that a recovered run must reach."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from frog.core.config.fault_kinds import KINDS, Kind
from frog.core.config.faults import Fault
from frog.core.errors import RunError
from frog.core.runs import RankEvents, RecordedRun, read_run
from frog.core.runs.event_schema import CollectiveEvent, CommitEvent, SpanEvent, StartEvent, StepEvent
from frog.core.runs.folder import RunFolder
from frog.core.runs.record import Record
from frog.core.runs.vocabulary import MESSAGES
from frog.observe.diagnose.diagnosis import Diagnosis

_RTOL = 1e-5
"""Relative tolerance of losses between worlds of different sizes."""

_SLOW_S = 3.0
"""Delay of a campaign's slow phase. One or two late steps count only if they take three times as long as the rest."""

_ALTERABLE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", *MESSAGES)
"""Operations that a rank can skip or call with another tensor: those that `Axis` reports to observers."""


class Place(NamedTuple):
    """A phase that a rank entered in the undisturbed run."""

    rank: int
    step: int
    phase: str
    micro: int
    communicates: bool
    """True if the rank began a collective in it."""
    alterable: str | None
    """The first operation that a fault can alter, in the phase or between it and the next, when a pipeline sends the
    results of the phase; operations that torch calls internally cannot be altered."""


@dataclass(frozen=True)
class Oracle:
    """The course and the results of the undisturbed run."""

    record: Record
    losses: dict[int, float]
    node_of: dict[int, int]
    """The node of each rank."""
    places: tuple[Place, ...]
    """All phases, rank after rank, in the order in which the rank entered them."""
    native: bool = False
    """True if torch or DeepSpeed implements the strategy."""

    @property
    def world_size(self) -> int:
        return len(self.node_of)

    def draw(self, kinds: Sequence[str], count: int, seed: int) -> list[Fault]:
        """Draw faults of these kinds, in equal numbers, at places that depend on the seed."""
        generator, faults = random.Random(seed), list[Fault]()
        while len(faults) < count:
            names = list(kinds)
            generator.shuffle(names)
            faults += [self._aim(name, generator) for name in names[: count - len(faults)]]
        return faults

    def everywhere(self, kinds: Sequence[str], seed: int, each_step: bool = True) -> list[Fault]:
        """Return every kind at every step in every phase where it is possible; the rank and the micro-batch are drawn.

        each_step: False to draw the step too.
        """
        generator, faults = random.Random(seed), list[Fault]()
        for name in kinds:
            by_phase: dict[tuple[int, str], list[Place]] = {}
            for place in self._targets(name):
                by_phase.setdefault((place.step * each_step, place.phase), []).append(place)
            faults += [_fault(name, generator.choice(by_phase[where])) for where in sorted(by_phase)]
        return faults

    def _aim(self, name: str, generator: random.Random) -> Fault:
        """Draw the rank, then the step, then the phase: each uniformly, regardless of its number of places."""
        places = self._targets(name)
        for field in ("rank", "step", "phase", "micro"):
            value = generator.choice(sorted({getattr(place, field) for place in places}))
            places = [place for place in places if getattr(place, field) == value]
        return _fault(name, places[0])

    def _targets(self, name: str) -> list[Place]:
        """Return the places where a fault of this kind can occur."""
        kind = KINDS[name]
        places = [place for place in self.places if place.phase in kind.phases]
        if kind.alters_collective:
            places = [place for place in places if place.alterable is not None and self._shows(kind, place)]
        if kind.spoils_gradient and self.native:
            places = [place for place in places if place.phase == "backward"]
        if not places:
            raise RunError(f"{name}: no place in the undisturbed run allows it", "exclude it with --kinds")
        return places

    def _shows(self, kind: Kind, place: Place) -> bool:
        """True if a fault at this place can be detected.

        The evidence does not show the correct form of a rank's first messages, and gloo accepts a message that is too
        short.
        """
        if place.alterable not in MESSAGES:
            return True
        first = min(other.step for other in self.places if (other.rank, other.phase) == (place.rank, place.phase))
        return place.step > first and (kind.collective, place.alterable) != ("resized", "send")

    def next_collective(self, fault: Fault) -> Place | None:
        """Return the rank's next collective after the fault, or after the damaged checkpoint is complete."""
        own = self._from(fault)[KINDS[fault.kind].damages_checkpoint :]
        return next((place for place in own if place.communicates), None)

    def place_of(self, fault: Fault) -> Place | None:
        """Return the place of the fault."""
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
    """Read the undisturbed run. Raises RunError if it has not finished."""
    run = read_run(folder)
    record = run.record
    if record is None or record.status != "completed":
        raise RunError(f"{folder.path}: the undisturbed run is incomplete", "see its logs")
    native = run.setting("strategy", "implementation") != "frog" or run.setting("strategy", "file") is not None
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
    """Compare a recovered run with the undisturbed one; a world of another size may differ by rounding."""
    record = folder.read_record()
    if record is None or record.status != "completed":
        return [f"incomplete: {record.status if record else 'no record'}"]
    problems = []
    if record.order_sha256 != oracle.record.order_sha256:
        problems.append("used other samples")
    sizes = {segment.world_size for segment in folder.read_run_json().segments}
    if sizes == {oracle.world_size}:
        if record.weights_sha256 != oracle.record.weights_sha256:
            problems.append("weights differ")
        return problems
    losses = _losses(read_run(folder))
    far = [step for step, loss in oracle.losses.items() if not _close(losses.get(step), loss)]
    return [*problems, *([f"losses differ at steps {', '.join(map(str, far))}"] if far else [])]


def _close(loss: float | None, expected: float) -> bool:
    return loss is not None and abs(loss - expected) <= _RTOL * abs(expected)


def resumed_from(folder: RunFolder) -> int | None:
    """Return the step at which the world restarted after the fault; None if it did not.

    A world counts even if its rank 0 recorded nothing: the events of other ranks and of the launcher are enough.
    """
    later = read_run(folder).attempts[1:]
    starts = (worker.start for attempt in later for worker in attempt.workers.values() if worker.start)
    return next((start.step for start in starts), None)


def resume_problems(fault: Fault, folder: RunFolder) -> list[str]:
    """Check that it resumed from the last complete checkpoint, and not from a damaged one."""
    from_step = resumed_from(folder)
    if from_step is None:
        return ["did not restart"]
    damaged = fault.step if KINDS[fault.kind].damages_checkpoint else None
    main = read_run(folder).attempts[0].workers.get(0)
    committed = main.of(CommitEvent) if main is not None else []
    whole = max((event.step for event in committed if event.step != damaged), default=0)
    problems = []
    if from_step < whole:
        problems.append(f"started at step {from_step}, although the checkpoint of step {whole} was complete")
    if damaged is not None and from_step >= damaged:
        problems.append(f"resumed from step {from_step}, whose checkpoint was damaged")
    return problems


def diagnosis_problems(fault: Fault, diagnosis: Diagnosis, oracle: Oracle) -> list[str]:
    """Compare a diagnosis with the fault, as far as the evidence allows.

    The two ends of a closed connection look alike in a world of two, and so do the two nodes of a cut; both faults
    show up when the rank next communicates. If a node failed, the evidence does not show which of its ranks the fault
    was aimed at, nor their phase if they had not recorded anything. A gradient corrupted at the start of the reduction
    looks like one corrupted by the backward pass. A rank that was slow only in the last step may have been slow by
    chance, so that finding may be a secondary one.
    """
    kind, node, num_nodes = KINDS[fault.kind], oracle.node_of[fault.rank], len(set(oracle.node_of.values()))
    if not kind.ends and fault.step == oracle.record.step:
        diagnosis = next((other for other in diagnosis.also if other.fault == fault.kind), diagnosis)
    on_node = [rank for rank in oracle.node_of if oracle.node_of[rank] == node]
    wanted: dict[str, Any] = {"fault": fault.kind, "rank": fault.rank, "step": fault.step, "phase": fault.phase}
    if kind.severs:
        place = oracle.next_collective(fault)
        where = place or diagnosis
        wanted |= {"step": where.step, "phase": where.phase}
    if kind.severs and not kind.of_node and oracle.world_size == 2:
        wanted["rank"] = diagnosis.rank if diagnosis.rank is not None else "one of the two"
    if kind.severs and kind.of_node and num_nodes == 2:
        wanted["rank"] = diagnosis.rank
    elif kind.of_node:
        wanted |= {"node_rank": node, "rank": diagnosis.rank if diagnosis.rank in on_node else f"one of {on_node}"}
    if kind.of_node and not kind.severs and len(on_node) > 1:
        wanted["phase"] = diagnosis.phase
    if kind.of_node and fault.step == 0 and diagnosis.step is None:
        wanted |= {"step": None, "phase": None}
    if kind.spoils_gradient:
        wanted["phase"] = "backward"
    problems = [
        f"diagnosis: {name} {getattr(diagnosis, name)}, not {value}"
        for name, value in wanted.items()
        if getattr(diagnosis, name) != value
    ]
    return problems + _collective_problems(fault, diagnosis, oracle)


def _collective_problems(fault: Fault, diagnosis: Diagnosis, oracle: Oracle) -> list[str]:
    """Check that the diagnosis names the collective that a rank altered, or in which other ranks waited for it."""
    kind = KINDS[fault.kind]
    if kind.collective is not None:
        place = oracle.place_of(fault)
        op = place.alterable if place else None
        if kind.collective == "added":
            op = "all_reduce"
        reported = (diagnosis.collective or "").partition(" ")[0]
        return [] if reported == op else [f"diagnosis: collective {diagnosis.collective}, not {op}"]
    some_are_left = not kind.of_node or len(set(oracle.node_of.values())) > 1
    if kind.peers_wait and some_are_left and diagnosis.collective is None and oracle.next_collective(fault) is not None:
        return ["diagnosis: no collective, although others waited in one"]
    return []
