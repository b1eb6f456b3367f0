"""Events compared with the plan."""

from __future__ import annotations

from frog.core.config import DataConfig, ModelConfig, RunConfig, StrategyConfig, TrainConfig
from frog.core.runs import RankEvents
from frog.core.runs.event_schema import CollectiveEvent, SpanEvent
from frog.core.runs.vocabulary import Phase
from frog.plan.layout import RankShare
from frog.plan.measure import axis_sizes, compare_step, step_collectives, traffic_problems

CONFIG = RunConfig(
    model=ModelConfig(20, 8, 16, 3, 4, 2, 16),
    data=DataConfig(sequence_length=8),
    train=TrainConfig(global_batch_size=8),
    strategy=StrategyConfig(name="zero1"),
)
P = 4 * CONFIG.model.num_parameters()


def collective(op: str, payload_bytes: int, start_ns: int, axis: str = "dp", step: int = 3) -> CollectiveEvent:
    end_ns = start_ns + 5
    return CollectiveEvent(
        step=step, op=op, axis=axis, payload_bytes=payload_bytes, seq=0, start_ns=start_ns, end_ns=end_ns, wait_ns=2
    )


def span(phase: Phase, start_ns: int, end_ns: int, step: int = 3) -> SpanEvent:
    return SpanEvent(step=step, phase=phase, micro=0, start_ns=start_ns, end_ns=end_ns)


STEP = [
    span("data", 100, 110),
    span("forward", 110, 200),
    collective("reduce_scatter", P, 210),
    collective("all_reduce", 12, 220),
    collective("all_reduce", 24, 222, axis="world"),
    span("reduce", 200, 250),
    collective("all_gather", P, 260),
    span("optimize", 250, 300),
]


def test_zero1_step_matches_plan() -> None:
    assert traffic_problems(CONFIG, 4, RankEvents(STEP, rank=1), 3) == []
    compared = {
        (one.axis, one.op): one for one in compare_step(CONFIG, 4, 1, step_collectives(RankEvents(STEP, rank=1), 3))
    }
    assert compared["dp", "all_gather"].ratio == 1.0
    assert compared["dp", "all_gather"].sent_bytes == 3 / 4 * P
    assert compared["dp", "all_reduce"].expected is None
    assert ("world", "all_reduce") not in compared


def test_collectives_of_other_steps_and_evaluations_are_excluded() -> None:
    more = [
        collective("all_gather", P, 150, step=2),
        span("evaluate", 310, 400),
        collective("all_gather", P, 320),
        span("checkpoint", 400, 500),
    ]
    assert traffic_problems(CONFIG, 4, RankEvents(STEP + more, rank=1), 3) == []
    assert step_collectives(RankEvents(STEP, rank=1), 4) == []


def test_deviations_from_plan_are_reported_with_both_numbers() -> None:
    again = [*STEP, collective("all_gather", P, 270)]
    assert traffic_problems(CONFIG, 4, RankEvents(again, rank=1), 3) == [
        f"all_gather over dp: {2 * P} bytes in 2 messages, {P} expected"
    ]
    without = [event for event in STEP if getattr(event, "op", "") != "reduce_scatter"]
    assert traffic_problems(CONFIG, 4, RankEvents(without, rank=1), 3) == [
        f"reduce_scatter over dp: 0 bytes in 0 messages, {P} expected"
    ]
    stray = [*STEP, collective("broadcast", P, 270)]
    assert traffic_problems(CONFIG, 4, RankEvents(stray, rank=1), 3) == [
        f"broadcast over dp: {P} bytes in 1 messages, 0 expected"
    ]
    assert traffic_problems(CONFIG, 4, RankEvents([], rank=1), 3), "a run without events does not match the plan"


def test_every_axis_has_its_size() -> None:
    config = RunConfig(model=CONFIG.model, strategy=StrategyConfig(name="zero1", tp=2, pp=2, cp=2, shard=2))
    sizes = axis_sizes(RankShare(config, 32))
    assert sizes == {
        "pp": 2, "dp": 4, "cp": 2, "tp": 2, "data": 8, "shard": 2, "replicate": 4, "model": 4, "tied": 2, "ep": 1,
        "expert_data": 8, "world": 32,
    }  # fmt: skip
