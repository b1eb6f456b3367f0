"""The events of a run's processes, one JSON object per line: one class per event.

Times that end in `_ns` are `time.monotonic_ns()`, which all processes of one machine share; `unix_ns` is Unix time.
Steps count from 1: the events of step 7 belong to the seventh optimizer step, and a checkpoint of step 7 holds the
state after it. A killed run repeats some steps after it resumes; of a repeated step, the later events count.

JSON has no NaN: null stands for a number that is not finite or does not exist.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

import msgspec

from frog.core.errors import Damage, ErrorFacts
from frog.core.runs.vocabulary import Phase
from frog.core.schema import Typed

Status = Literal["completed", "interrupted", "failed"]

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""Counts, bytes and times; the difference of two fits in 64 bits."""
Rank = Annotated[int, msgspec.Meta(ge=0, lt=2**20)]
"""Ranks, node numbers, numbers of restarts."""
Size = Annotated[int, msgspec.Meta(ge=1, lt=2**20)]
"""Size of a world or of a mesh axis."""
SampleId = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
"""-1 stands for a padding row in a batch of labelled texts, which is ignored."""
StepNumber = Annotated[int, msgspec.Meta(ge=0, lt=2**40)]
ExitCode = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
"""Exit code of a process; negative if a signal killed it."""


class Event(Typed, gc=False, tag_field="event", frozen=True, kw_only=True):
    """A line of an events file; the field `event` names its class."""


class EventOfStep(Event, frozen=True, kw_only=True):
    """An event of a rank; `step` is the step that it belongs to."""

    step: StepNumber


class StartEvent(EventOfStep, tag="start", frozen=True, kw_only=True):
    """A rank starts: all following events belong to this attempt. It resumes after `step` completed steps."""

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
    """Damaged checkpoints that it skipped when resuming."""


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
    """The mesh axis; "world" is the whole mesh."""
    payload_bytes: Count
    """Size of the tensor that is unsharded before or after the collective (see train/comm/axis.py)."""
    seq: Count
    """Number of the collective on this rank, from 0, in order of their starts."""
    start_ns: Count
    end_ns: Count
    wait_ns: Count
    """Time that the rank's own thread was blocked: less than end - start if it kept computing."""


class StepEvent(EventOfStep, tag="step", frozen=True, kw_only=True):
    """A step completed."""

    loss: float | None
    """Mean of this rank."""
    loss_mean: float | None
    """Mean of all ranks, before the update."""
    grad_norm_local: float | None
    """Norm of this rank's own gradient; null if the gradient is reduced during the backward pass."""
    grad_norm: float | None
    """Norm of the reduced gradient, before clipping."""
    learning_rate: float | None
    tokens: Count
    tokens_per_s: float | None
    """Tokens per second of all ranks."""
    mfu: float | None
    memory_bytes: Count
    """The peak so far."""
    loss_scale: float | None
    skipped: bool
    sample_ids: list[SampleId]
    end_ns: Count


class MemoryEvent(EventOfStep, tag="memory", frozen=True, kw_only=True):
    """Memory of a rank, in bytes: parameters, gradients and optimizer state between steps; and the peak of activations
    within step `step`: tensors that autograd keeps for the backward pass, without parameters and token ids.
    """

    parameters: Count
    gradients: Count
    optimizer: Count
    activations: Count | None


class EvalEvent(EventOfStep, tag="eval", frozen=True, kw_only=True):
    """All ranks scored held-out text after `step` steps (only rank 0 writes this event)."""

    loss: float | None
    perplexity: float | None
    bits_per_byte: float | None
    """Null for classifiers, which score no bytes."""
    tokens: Count


class SampleEvent(EventOfStep, tag="sample", frozen=True, kw_only=True):
    """Text was sampled after `step` steps (only rank 0)."""

    prompt: str
    text: str


class CheckpointEvent(EventOfStep, tag="checkpoint", frozen=True, kw_only=True):
    """A rank saved its part of a checkpoint."""

    payload_bytes: Count
    blocked_ns: Count
    """Time that the training loop was blocked."""


class CommitEvent(EventOfStep, tag="commit", frozen=True, kw_only=True):
    """A checkpoint is complete on disk (only rank 0)."""

    payload_bytes: Count
    write_ns: Count


class MembershipEvent(EventOfStep, tag="membership", frozen=True, kw_only=True):
    """The members of an elastic run changed (`comm.on_loss = "shrink"`). Follows the `start` event in the new world."""

    epoch: Count
    """Number of the agreement on the members; 1 is the one at the start."""
    identity: Rank
    """Number that this process keeps until it ends; `rank` in the start event is its position among the members."""
    members: list[Rank]
    """Identities of the current members."""
    lost: list[Rank]
    joined: list[Rank]
    took_ns: Count
    """Time from when this rank detected the change until it continued."""


class ReportedError(Typed, frozen=True, kw_only=True):
    """An error, reported by the process in which it occurred."""

    type: str
    """Class of the error, such as CommError or KeyError."""
    message: str
    """Text for people; programs do not read it."""
    hint: str | None
    facts: ErrorFacts
    """Known facts, without fields that do not apply."""
    unix_ns: Count


class ErrorEvent(EventOfStep, tag="error", frozen=True, kw_only=True):
    """An error occurred: the fields of a `ReportedError`, and the phase."""

    phase: Phase | None
    type: str
    message: str
    hint: str | None
    facts: ErrorFacts
    unix_ns: Count


class EndEvent(EventOfStep, tag="end", frozen=True, kw_only=True):
    """A rank ended."""

    status: Status
    weights_sha256: str | None = None
    """Hash of this rank's weights; None if it failed."""


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
    """Return the fields except `event` of each class of a union, by event name."""
    classes: tuple[type[Event], ...] = get_args(kinds)
    return {str(kind.__struct_config__.tag): frozenset(kind.__struct_fields__) for kind in classes}


FIELDS: Final = fields_of(RankEvent)


class OpenCollective(Typed, gc=False, frozen=True, kw_only=True):
    """A collective that has started but not ended."""

    seq: Count
    op: str
    axis: str
    payload_bytes: Count
    start_ns: Count


class Beat(Typed, gc=False, frozen=True, kw_only=True):
    """A rank's heartbeat, `heartbeats/rank_N.json`: its state, now or when it was killed."""

    rank: Rank
    pid: Count
    node_rank: Rank
    host: str
    machine: str = ""
    """The real machine; each simulated node on it has a different `host`."""
    attempt: Rank
    """Number of restarts by the launcher so far."""
    epoch: Rank = 0
    """Epoch of its world in an elastic run; increases with each membership change."""
    world_size: Size
    timeout_s: float
    """Timeout of its collectives."""
    status: Literal["running", "completed", "interrupted", "failed"]
    step: StepNumber
    phase: Phase | None
    micro: Count
    phase_ns: Count
    """Start of the phase."""
    num_collectives: Count
    open: list[OpenCollective]
    """Active collectives, oldest first."""
    beat_ns: Count
    unix_ns: Count
