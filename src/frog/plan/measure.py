"""Compare a run's events with the plan: the bytes that one rank sent in one step, and the formulas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from frog.core.config import RunConfig
from frog.core.runs import RankEvents
from frog.core.runs.event_schema import CollectiveEvent
from frog.core.runs.read import step_collectives
from frog.plan.layout import FLOAT_BYTES, RankShare
from frog.plan.links import wire_bytes
from frog.plan.traffic import Flow, step_traffic

TOLERANCE = 0.01

_AGREED_BYTES = 64
"""Bytes of a step's agreement in addition to one number per rank (its loss): the norm, the request to stop."""


@dataclass(frozen=True)
class Comparison:
    """The traffic of one rank on one axis by one operation in one step: sent, and expected."""

    axis: str
    op: str
    size: int
    payload_bytes: int
    num_messages: int
    expected: Flow | None
    """None if no formula covers it."""

    @property
    def sent_bytes(self) -> float:
        """Bytes that left the rank."""
        return wire_bytes(self.op, self.payload_bytes, self.size)

    @property
    def expected_bytes(self) -> float:
        return self.expected.wire_bytes if self.expected else 0.0

    @property
    def ratio(self) -> float | None:
        """Sent divided by expected bytes; None if nothing is expected."""
        return self.payload_bytes / self.expected.payload_bytes if self.expected else None


def compare_step(
    config: RunConfig, world_size: int, rank: int, collectives: Iterable[CollectiveEvent], step: int | None = None
) -> list[Comparison]:
    """Compare a rank's collectives of one step with the formulas; in the formulas' order, then the uncovered ones.

    The axis `world` is omitted: it carries the few agreed numbers. Without `step`, the formulas describe
    a step in which the ranks synchronize.
    """
    sent: dict[tuple[str, str], list[int]] = {}
    for collective in collectives:
        if collective.axis != "world":
            sent.setdefault((collective.axis, collective.op), []).append(collective.payload_bytes)
    meets = step is None or config.meets(step)
    plan = step_traffic(config, world_size, rank) if has_formula(config) and meets else []
    expected = {(flow.axis, flow.op): flow for flow in plan}
    sizes = axis_sizes(RankShare(config, world_size, rank))
    comparisons = []
    for axis, op in [*expected, *sorted(sent.keys() - expected.keys())]:
        payloads = sent.get((axis, op), [])
        size = sizes.get(axis, world_size)
        comparisons.append(Comparison(axis, op, size, sum(payloads), len(payloads), expected.get((axis, op))))
    return comparisons


def has_formula(config: RunConfig) -> bool:
    """True if the formulas cover this run. They do not cover a strategy of one's own, torch's compressed gradients, nor
    tensor parallelism's activations at a lower precision, some of which are sent in 16 bits and some in 32.
    """
    strategy = config.strategy
    if not strategy.entry.has_formulas:
        return False
    return strategy.compression in ("off", "int8") and (strategy.tp == 1 or config.train.precision == "fp32")


def axis_sizes(share: RankShare) -> dict[str, int]:
    """Return every axis that a collective may name, with its number of ranks."""
    sizes = share.sizes
    return {
        **sizes,
        "data": share.layout.data,
        "shard": share.layout.shard,
        "replicate": share.replicate,
        "model": sizes["pp"] * sizes["tp"],
        "tied": 2,
        "ep": share.config.strategy.ep,
        "expert_data": share.layout.data // share.layout.ep,
        "world": share.world_size,
    }


def traffic_problems(config: RunConfig, world_size: int, events: RankEvents, step: int) -> list[str]:
    """Return where a rank's traffic in a step differs from the formulas by over 1 %; empty if it matches.

    An axis and operation without a formula may have 1 % of the rank's total traffic.
    """
    return problems(compare_step(config, world_size, events.rank, step_collectives(events, step), step), world_size)


def problems(comparisons: Iterable[Comparison], world_size: int) -> list[str]:
    """Describe the comparisons that differ by more than 1 % and a few numbers."""
    comparisons = list(comparisons)
    whole = sum(row.expected_bytes for row in comparisons)
    agreed_bytes = _AGREED_BYTES + FLOAT_BYTES * world_size
    texts = []
    for row in comparisons:
        expected = row.expected.payload_bytes if row.expected else 0
        if abs(row.payload_bytes - expected) > TOLERANCE * (expected or whole) + agreed_bytes:
            sent = f"{row.payload_bytes} bytes in {row.num_messages} messages"
            texts.append(f"{row.op} over {row.axis}: {sent}, {expected:.0f} expected")
    return texts
