"""Rules about lines of NCCL's watchdog alone, which show the collective of each rank, but none before it."""

from __future__ import annotations

from frog.observe.diagnose.diagnosis import Diagnosis, span
from frog.observe.diagnose.program.evidence import Call, Evidence, Group, place
from frog.observe.diagnose.program.rank_reports import RECORD_COLLECTIVES, describe_call, report_ranks, they_wait


def numbers_apart(evidence: Evidence) -> Diagnosis | None:
    """Find ranks of one group that timed out in different collectives with different numbers."""
    by_group: dict[Group, dict[int, Call]] = {}
    for number, rank in evidence.ranks.items():
        if not rank.has_calls and len(rank.calls) == 1 and not rank.calls[0].done:
            by_group.setdefault(rank.calls[0].group, {})[number] = rank.calls[0]
    return next((found for calls in by_group.values() if (found := _apart(evidence, calls)) is not None), None)


def _apart(evidence: Evidence, calls: dict[int, Call]) -> Diagnosis | None:
    """Compare the lowest number with the next one: the ranks that are ahead completed something at the lowest."""
    numbers = sorted({call.seq for call in calls.values()})
    group = next(iter(calls.values())).group
    if len(numbers) < 2 or set(group.members) - calls.keys():
        return None
    behind = sorted(number for number, call in calls.items() if call.seq == numbers[0])
    ahead = sorted(number for number, call in calls.items() if call.seq == numbers[1])
    low, high = calls[behind[0]], calls[ahead[0]]
    if (low.op, low.elements) == (high.op, high.elements):
        return None
    odd = ahead if len(ahead) < len(behind) else behind
    return Diagnosis(
        "order",
        f"{they_wait(behind)} in {describe_call(evidence, low)}, "
        f"{they_wait(ahead)} in {describe_call(evidence, high)}: "
        f"{span(odd)} probably called a collective more or less than the others before, or data for number {low.seq} "
        "never arrived",
        rank=odd[0],
        node_rank=evidence.ranks[odd[0]].node_rank,
        line=place(evidence.ranks[odd[0]].line) or None,
        collective=describe_call(evidence, low),
        certain=False,
        evidence=report_ranks(evidence, [*odd, *(number for number in sorted(calls) if number not in odd)]),
        advice=f"look for a collective under a condition that only {span(odd)} "
        f"{'meets' if len(odd) == 1 else 'meet'}, such as a step without gradients or an error that was caught\n"
        f"flight-recorder dumps of all ranks show where they parted ({RECORD_COLLECTIVES})",
    )
