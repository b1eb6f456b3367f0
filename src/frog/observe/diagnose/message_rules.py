"""Rules about messages between two ranks, or around a ring: sends, receives and shifts, which repeat in every step.

No third rank sees the messages between two ranks, and a message of the wrong size may not fail anywhere. But a rank
begins the same messages in the same order in every step, so each step is compared with the rank's own first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frog.core.runs.vocabulary import MESSAGES, PHASES
from frog.observe.diagnose.case import Case
from frog.observe.diagnose.collectives import CollectiveCall, CollectiveCalls
from frog.observe.diagnose.diagnosis import Diagnosis, note

_LAST = {False: PHASES.index("backward"), True: PHASES.index("evaluate")}
"""The last phase of a step that has messages, in training and in scoring."""


@dataclass(frozen=True)
class Deviation:
    """The first difference between a rank's messages in a step and those in its first step."""

    rank: int
    kind: str
    """shape, extra or missing."""
    step: int
    expected: CollectiveCall | None
    """The message at this place in the first step."""
    found: CollectiveCall | None
    """The message at this place in this step."""

    @property
    def call(self) -> CollectiveCall:
        """The wrong or missing message."""
        call = self.expected if self.kind == "missing" else self.found
        assert call is not None
        return call


def changed_message(case: Case, calls: CollectiveCalls) -> Diagnosis | None:
    """Find a rank that sent or received different messages than in its first step."""
    deviations = [deviation for rank in case.ranks if (deviation := _first_deviation(rank, calls.of(rank))) is not None]
    if not deviations:
        return None
    first = min(deviations, key=lambda deviation: deviation.step)
    rank, call = first.rank, first.call
    findings = {
        "shape": f"rank {rank} began {first.found} instead of {first.expected} as in earlier steps: a tensor of the "
        "wrong size",
        "missing": f"rank {rank} skipped {first.expected}, which it began in earlier steps: a missing message",
        "extra": f"rank {rank} began {first.found}, which it did not begin in earlier steps: an extra message",
    }
    lines = [
        note(
            case.attempt.unix_ns(rank, message.mono_ns),
            f"rank {rank}",
            f"began {message} in step {message.step}",
            message.file,
        )
        for message in (first.expected, first.found)
        if message is not None
    ]
    where = f"in step {first.step}" + (f", {call.phase}" if call.phase else "")
    return Diagnosis(
        first.kind,
        f"{findings[first.kind]}, {where}",
        rank=rank,
        node_rank=case.attempt.node_of(rank),
        step=first.step,
        phase=call.phase,
        collective=str(call),
        evidence=(*lines, *(line for r in case.ranks for line in (case.report_error(r), case.report_exit(r)) if line)),
        advice="two ranks must send and receive the same messages, in the same order and of the same size: look for "
        "a message "
        f"inside an `if rank == ...` or for uneven micro-batches, in the code of the {call.phase or 'same'} phase\n"
        "results since then may be wrong, even if nothing failed: resume from a checkpoint before that step",
    )


def unanswered(case: Case, calls: CollectiveCalls) -> Diagnosis | None:
    """Find a rank that waited for a message of another living rank, if no earlier step shows the expected message."""
    first = case.first_lost
    facts = case.comm_errors[first].facts if first is not None else None
    if facts is None or facts.cause != "timed_out" or facts.peer is None or facts.op not in MESSAGES:
        return None
    peer, nodes = facts.peer, {case.attempt.node_of(rank) for rank in case.ranks}
    if len(nodes) > 1 or case.own_errors or case.silent(peer):
        return None
    call = f"{facts.op} of {facts.payload_bytes} bytes over {facts.axis}"
    return Diagnosis(
        "stuck",
        f"rank {first} waited {facts.waited_s:.0f} s for rank {peer} in {call}; rank {peer} never sent or received "
        f"the message, but its heartbeat continued {case.where(peer)}",
        **case.about(peer),
        collective=call,
        certain=False,
        evidence=tuple(line for rank in case.ranks if (line := case.report_error(rank)))[:8],
        advice=f"what does rank {peer} do there instead? Look for a message inside an `if rank == ...`, or a "
        "schedule in which "
        f"the two ranks wait for each other\n`{case.run.folder.resume_command}`",
    )


def _first_deviation(rank: int, calls: Sequence[CollectiveCall]) -> Deviation | None:
    """Find deviations step by step, separately for training and evaluation; the first step of each is the reference."""
    messages: dict[tuple[int, bool], list[CollectiveCall]] = {}
    for call in calls:
        if call.op in MESSAGES and call.step is not None:
            messages.setdefault((call.step, call.phase == "evaluate"), []).append(call)
    last = max((call.position for call in calls), default=(0, 0))
    pattern: dict[bool, list[CollectiveCall]] = {}
    for (step, scoring), own in sorted(messages.items()):
        before = pattern.setdefault(scoring, own)
        number = _differs_at(before, own, ended=last > (step, _LAST[scoring]))
        if number is not None:
            return Deviation(rank, _kind(before, own, number), step, _at(before, number), _at(own, number))
    return None


def _differs_at(before: Sequence[CollectiveCall], own: Sequence[CollectiveCall], ended: bool) -> int | None:
    """Return the index of the first message that differs; None if there is none so far."""
    for number, (expected, call) in enumerate(zip(before, own, strict=False)):
        if _form(expected) != _form(call):
            return number
    if len(own) > len(before):
        return len(before)
    return len(own) if ended and len(own) < len(before) else None


def _form(call: CollectiveCall) -> tuple[object, ...]:
    return call.op, call.axis, call.phase, call.payload_bytes


def _kind(before: Sequence[CollectiveCall], own: Sequence[CollectiveCall], number: int) -> str:
    """Decide which of the three kinds explains the messages that follow."""
    rest, pattern = [_form(call) for call in own[number:]], [_form(call) for call in before[number:]]
    if not rest or not pattern:
        return "extra" if rest else "missing"
    same_but_for_size = rest[0][:-1] == pattern[0][:-1]
    if same_but_for_size and _begins(pattern[1:], rest[1:]):
        return "shape"
    if _begins(pattern[1:], rest):
        return "missing"
    if _begins(pattern, rest[1:]):
        return "extra"
    return "shape" if same_but_for_size else "missing"


def _begins(pattern: Sequence[object], found: Sequence[object]) -> bool:
    return list(pattern[: len(found)]) == list(found)


def _at(calls: Sequence[CollectiveCall], number: int) -> CollectiveCall | None:
    return calls[number] if number < len(calls) else None
