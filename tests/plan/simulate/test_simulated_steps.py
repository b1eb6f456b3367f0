"""The simulation of steps, against closed forms: schedules, the planner's formula, an all-reduce, stragglers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from frog.core.errors import ConfigError
from frog.plan.estimate.architectures import model_of
from frog.plan.estimate.constants import FITTED
from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.step_time import StepModel
from frog.plan.layout import Layout, Schedule, Traits
from frog.plan.simulate.disturbances import Disturbances
from frog.plan.simulate.schedule_costs import Costs, schedule_of
from frog.plan.simulate.simulation import simulate_steps
from frog.plan.simulate.trace import Call
from frog.train.parallel.schedules.simulation import simulate

LLAMA_8B = json.loads((Path(__file__).parents[3] / "config" / "llama3_8b.json").read_text())
QUICK = replace(FITTED, link_latency_s=1e-15, network_latency_s=1e-15)


def step_of(gpus: int, vocab: int = 128256, **degrees: int | str | bool | Traits) -> StepModel:
    """Return a step of Llama 3 8B on H100s."""
    layout = Layout(8192, **{"global_batch": gpus, **degrees})  # type: ignore[arg-type]
    layout = replace(layout, dp=gpus // (layout.tp * layout.pp * layout.cp))
    model = model_of({**LLAMA_8B, "vocab_size": vocab})
    assert not layout.problems(model)
    return StepModel(model, layout, clusters()["h100x8"])


def simulated_s(step: StepModel, disturbed: Disturbances | None = None) -> float:
    return simulate_steps(step, disturbed or Disturbances(), 1).step_s[0]


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("1f1b", 4), ("zero_bubble", 1)])
def test_pipeline_of_equal_stages_takes_the_makespan_of_its_schedule(schedule: Schedule, chunks: int) -> None:
    step = step_of(8, vocab=8, pp=8, global_batch=32, schedule=schedule, virtual_stages=chunks)
    gpu = replace(step.cluster.gpu, link_bandwidth=1e18)
    step = replace(step, cluster=replace(step.cluster, gpu=gpu), constants=QUICK)
    costs = Costs(step, schedule_of(step.layout))
    forward, backward = (chunks * costs.work[False, kind].compute for kind in ("F", "B"))
    weights = costs.work[False, "W"].compute if schedule == "zero_bubble" else 0.0
    drawn = simulate(schedule_of(step.layout), forward, backward, weights).makespan
    assert simulated_s(step) == pytest.approx(drawn + step.constants.step_s + costs.optimizer, rel=3e-3)


@pytest.mark.parametrize(
    "step",
    [
        step_of(8),
        step_of(64, zero=3, global_batch=256),
        step_of(128, zero=1, tp=8),
        step_of(64, zero=1, tp=2, pp=2, cp=4, global_batch=512),
        step_of(64, tp=4, pp=4, global_batch=512),
        step_of(64, tp=4, pp=4, global_batch=512, virtual_stages=2),
        step_of(64, tp=4, pp=4, global_batch=512, schedule="zero_bubble"),
    ],
    ids=lambda step: f"pp{step.layout.pp}-tp{step.layout.tp}-zero{step.layout.zero}-{step.layout.schedule}",
)
def test_undisturbed_step_takes_the_planner_s_time(step: StepModel) -> None:
    planned = step.step.total - (step.step.other - step.constants.step_s)
    assert simulated_s(step) == pytest.approx(planned, rel=0.02)


@pytest.mark.parametrize("chunks", [1, 2])
def test_step_through_stages_that_share_nodes_takes_the_planner_s_time(chunks: int) -> None:
    """Two nodes of four stages, and a network so slow that its messages count."""
    step = step_of(16, tp=2, pp=8, global_batch=64, virtual_stages=chunks)
    step = replace(step, cluster=replace(step.cluster, node_bandwidth=step.cluster.node_bandwidth / 4))
    planned = step.step.total - (step.step.other - step.constants.step_s)
    assert simulated_s(step) == pytest.approx(planned, rel=0.03)


@pytest.mark.parametrize("step", [step_of(128, zero=1, tp=8), step_of(64, tp=8, pp=8, global_batch=64)])
def test_leaf_switches_of_one_node_slow_a_simulated_step_as_a_slower_network_does(step: StepModel) -> None:
    tree = replace(step.cluster, nodes_per_leaf=1, oversubscription=4.0)
    slower = replace(step.cluster, node_bandwidth=step.cluster.node_bandwidth / 4)
    assert simulated_s(replace(step, cluster=tree)) == pytest.approx(simulated_s(replace(step, cluster=slower)))
    assert simulated_s(replace(step, cluster=tree)) > 1.01 * simulated_s(step)


def test_slow_network_of_one_node_slows_an_exposed_all_reduce_by_its_factor() -> None:
    step = step_of(64, traits=Traits(overlaps_gradients=False, gradient_bytes=4))
    num_bytes = 4 * step.stage_parameters
    bandwidth = 8 * step.cluster.network_bandwidth_per_gpu * step.constants.network
    latency = 7 * step.constants.link_latency_s + 3 * step.constants.network_latency_s
    all_reduce_s = 2 * (7 / 8 * num_bytes / bandwidth + latency)  # eight nodes, each with one sum
    slower = simulated_s(step, Disturbances(slow_nodes={5: 3.0})) - simulated_s(step)
    assert slower == pytest.approx(2 * all_reduce_s)


@pytest.mark.parametrize("zero", [1, 3])
def test_slow_network_leaves_gathers_inside_a_node_as_they_are(zero: int) -> None:
    """Hybrid sharding gathers among the ranks of a node; only the reduction over the nodes meets the slow network."""
    step = step_of(32, zero=zero, zero_group=8, traits=Traits(overlaps_gradients=False))
    simulated = simulate_steps(step, Disturbances(slow_nodes={1: 50.0}), 1, with_trace=True)
    assert simulated.trace is not None
    calls = [call for call in simulated.trace.stages[0] if isinstance(call, Call)]
    gathers = [call for call in calls if call.op == "all_gather"]
    assert {call.axis for call in gathers} == {"shard"}
    own = simulate_steps(step, Disturbances(), 1, with_trace=True).trace
    assert own is not None
    undisturbed = [call for call in own.stages[0] if isinstance(call, Call) and call.op == "all_gather"]
    first, alone = gathers[0], undisturbed[0]
    assert first.end - first.start == pytest.approx(alone.end - alone.start)
    assert simulated.step_s[0] > 2 * simulated_s(step)


def test_straggler_slows_the_computation_of_all_by_its_factor() -> None:
    step = step_of(16, global_batch=64)
    computing = (
        simulate_steps(step, Disturbances(), 1).seconds["compute"] + Costs(step, schedule_of(step.layout)).optimizer
    )
    slower = simulated_s(step, Disturbances(slow_ranks={9: 1.5})) - simulated_s(step)
    assert slower == pytest.approx(0.5 * computing, rel=0.02)


def test_straggler_of_a_lighter_stage_costs_less_than_one_of_the_heaviest() -> None:
    step = step_of(32, tp=4, pp=4, global_batch=64)
    usual, light, heavy = (simulated_s(step, Disturbances(slow_ranks=slow)) for slow in ({}, {0: 1.4}, {31: 1.4}))
    assert usual < light < heavy


def test_jitter_is_the_same_for_the_same_seed_and_never_makes_a_step_faster() -> None:
    step = step_of(64, tp=2, pp=4, zero=1, global_batch=128)
    first, again, other = (simulated_s(step, Disturbances(jitter=0.05, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert min(first, other) > simulated_s(step) * 1.05


@pytest.mark.parametrize(
    "disturbed", [Disturbances(lost_rank=(3, 2)), Disturbances(cut_node=(1, 2))], ids=["lost rank", "cut node"]
)
@pytest.mark.parametrize("step", [step_of(32, zero=3), step_of(32, tp=4, pp=4, zero=1)], ids=["fsdp", "3d"])
def test_step_never_ends_after_a_loss(step: StepModel, disturbed: Disturbances) -> None:
    first, second = simulate_steps(step, disturbed, 5).step_s
    assert first == pytest.approx(simulated_s(step))
    assert second == math.inf


def test_disturbed_world_of_16384_ranks_is_simulated() -> None:
    step = step_of(16384, tp=8, pp=16, zero=1, global_batch=8192)
    assert simulated_s(step) < simulated_s(step, Disturbances(jitter=0.01, slow_ranks={77: 1.3, 9000: 1.2}))


def test_schedule_that_frog_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="zero_bubble has no virtual stages"):
        simulated_s(step_of(8, pp=4, virtual_stages=2, schedule="zero_bubble"))


def test_fewer_micro_batches_than_stages_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 micro-batches for 8 stages"):
        simulated_s(step_of(8, pp=8, global_batch=2))
