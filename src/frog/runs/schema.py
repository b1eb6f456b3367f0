"""What a run's processes say while it runs, one JSON object a line: a class for each event, with its fields.

Times that end in `_ns` are `time.monotonic_ns()`, which all processes of one machine share; `unix_ns` is time of day.
Steps count from 1: the events of step 7 belong to the seventh optimizer step, and a checkpoint of step 7 holds the
state after it. A run that was killed takes some steps again after it resumes; of a step taken twice the later counts.

JSON has no NaN: a number that is not finite is written as null, and so is one that does not exist.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

import msgspec

from frog.core.facts import Damage, ErrorFacts
from frog.core.schema import Typed
from frog.runs.vocabulary import Phase

Status = Literal["completed", "interrupted", "failed"]

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""Counts, bytes and times: differences of two fit in 64 bits."""
Rank = Annotated[int, msgspec.Meta(ge=0, lt=2**20)]
"""Of ranks, nodes, their numbers, and how often a run was restarted."""
Size = Annotated[int, msgspec.Meta(ge=1, lt=2**20)]
"""Of a world, and of an axis of its mesh."""
SampleId = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
"""-1 stands for a row that fills a batch of labelled texts, and counts nothing."""
StepNumber = Annotated[int, msgspec.Meta(ge=0, lt=2**40)]
ExitCode = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
"""Of a process; negative if a signal killed it."""


class Event(Typed, gc=False, tag_field="event", frozen=True, kw_only=True):
    """A line of an events file; `event` names its class."""


class EventOfStep(Event, frozen=True, kw_only=True):
    """What a rank says; `step` is the step that it belongs to."""

    step: StepNumber


class StartEvent(EventOfStep, tag="start", frozen=True, kw_only=True):
    """A rank begins, or begins again: all that follows belongs to this attempt. `step` steps were already taken."""

    rank: Rank
    world_size: Size
    local_rank: Rank
    node_rank: Rank
    host: str
    pid: Count
    device: str
    threads: Count
    unix_ns: Count
    mono_ns: Count
    mesh: dict[str, Size]
    """The size of each axis: {"pp": 1, "dp": 4, "cp": 1, "tp": 1}."""
    place: dict[str, Rank]
    """The rank's coordinate on each axis."""
    passed_over: list[Damage]
    """The checkpoints that could not be trusted as it resumed."""


class SpanEvent(EventOfStep, tag="span", frozen=True, kw_only=True):
    """A phase of a step ran."""

    phase: Phase
    micro: Count
    """The micro-batch, from 0."""
    start_ns: Count
    end_ns: Count


class CollectiveEvent(EventOfStep, tag="collective", frozen=True, kw_only=True):
    """A collective ran."""

    op: str
    axis: str
    """The mesh axis; "world" is all of it."""
    payload_bytes: Count
    """Of the tensor that is whole before or after (comm/axis.py says for each)."""
    seq: Count
    """Counts the rank's collectives from 0, in the order in which they began."""
    start_ns: Count
    end_ns: Count
    wait_ns: Count
    """How long the rank's own thread was blocked: less than end - start where it went on computing."""


class StepEvent(EventOfStep, tag="step", frozen=True, kw_only=True):
    """A step is done."""

    loss: float | None
    """This rank's own mean."""
    loss_mean: float | None
    """Of all ranks, before the update."""
    grad_norm_local: float | None
    """Of this rank's own gradient; null where it is reduced as it comes."""
    grad_norm: float | None
    """Of the reduced gradient, before clipping."""
    learning_rate: float | None
    tokens: Count
    tokens_per_s: float | None
    """Of all ranks."""
    mfu: float | None
    memory_bytes: Count
    """The peak so far."""
    loss_scale: float | None
    skipped: bool
    sample_ids: list[SampleId]
    end_ns: Count


class MemoryEvent(EventOfStep, tag="memory", frozen=True, kw_only=True):
    """What a rank holds, in bytes: parameters, gradients and optimizer state as they lie between steps; activations at
    their peak within step `step`: what autograd keeps for the backward pass, parameters and token ids left out.
    """

    parameters: Count
    gradients: Count
    optimizer: Count
    activations: Count | None


class EvalEvent(EventOfStep, tag="eval", frozen=True, kw_only=True):
    """Held-out text was scored after `step` steps, over all ranks (rank 0 alone says it)."""

    loss: float | None
    perplexity: float | None
    bits_per_byte: float | None
    """Null for what classifies: it scores no bytes."""
    tokens: Count


class SampleEvent(EventOfStep, tag="sample", frozen=True, kw_only=True):
    """Text was sampled after `step` steps (rank 0 alone)."""

    prompt: str
    text: str


class CheckpointEvent(EventOfStep, tag="checkpoint", frozen=True, kw_only=True):
    """A rank saved its part of a checkpoint."""

    payload_bytes: Count
    blocked_ns: Count
    """How long the step loop was blocked."""


class CommitEvent(EventOfStep, tag="commit", frozen=True, kw_only=True):
    """A checkpoint is whole on disk (rank 0 alone)."""

    payload_bytes: Count
    write_ns: Count


class MembershipEvent(EventOfStep, tag="membership", frozen=True, kw_only=True):
    """The world has changed while the run went on: `comm.on_loss = "shrink"`. Follows the `start` in the new one."""

    epoch: Count
    """Counts the agreements on who is there: 1 is the meeting at the start."""
    identity: Rank
    """This process's number for all its life; `rank` in the start event is its place among the members."""
    members: list[Rank]
    """Who is there now, by identity."""
    lost: list[Rank]
    joined: list[Rank]
    took_ns: Count
    """From where this rank learnt of it to where it went on."""


class ReportedError(Typed, frozen=True, kw_only=True):
    """An error as the process that met it reports it."""

    type: str
    """Its class: CommError, KeyError."""
    message: str
    """For people; no program reads it."""
    hint: str | None
    facts: ErrorFacts
    """What is known of it; of these those are left out that do not apply."""
    unix_ns: Count


class ErrorEvent(EventOfStep, tag="error", frozen=True, kw_only=True):
    """Something went wrong: with the fields of a `ReportedError`, and where."""

    phase: Phase | None
    type: str
    message: str
    hint: str | None
    facts: ErrorFacts
    unix_ns: Count


class EndEvent(EventOfStep, tag="end", frozen=True, kw_only=True):
    """The rank's last word."""

    status: Status
    weights_sha256: str | None = None
    """Of what this rank itself has of them; None if it failed."""


RankEvent = (
    StartEvent
    | SpanEvent
    | CollectiveEvent
    | StepEvent
    | MemoryEvent
    | EvalEvent
    | SampleEvent
    | CheckpointEvent
    | CommitEvent
    | MembershipEvent
    | ErrorEvent
    | EndEvent
)
"""A line of `events/rank_N.jsonl`."""


def fields_of(kinds: Any) -> dict[str, frozenset[str]]:
    """Of each class of a union, by the name of its event, the fields besides `event`."""
    classes: tuple[type[Event], ...] = get_args(kinds)
    return {str(kind.__struct_config__.tag): frozenset(kind.__struct_fields__) for kind in classes}


FIELDS: Final = fields_of(RankEvent)


class OpenCollective(Typed, gc=False, frozen=True, kw_only=True):
    """A collective that has begun and not ended."""

    seq: Count
    op: str
    axis: str
    payload_bytes: Count
    start_ns: Count


class Beat(Typed, gc=False, frozen=True, kw_only=True):
    """A rank's heartbeat, `heartbeats/rank_N.json`: where it is, or was when it was killed."""

    rank: Rank
    pid: Count
    node_rank: Rank
    host: str
    machine: str = ""
    """Pretended nodes of one machine have hosts of their own."""
    attempt: Rank
    """How often the launcher had restarted the run."""
    epoch: Rank = 0
    """Of its world, where that may change: it grows with each change."""
    world_size: Size
    timeout_s: float
    """How long its collectives may take."""
    status: Literal["running", "completed", "interrupted", "failed"]
    step: StepNumber
    phase: Phase | None
    micro: Count
    phase_ns: Count
    """When the phase began."""
    num_collectives: Count
    open: list[OpenCollective]
    """The oldest first."""
    beat_ns: Count
    unix_ns: Count
