"""One case seen twice: tensor by tensor on a rank of a run of Frog's, and in closed form as on a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frog.core.config import DataConfig, ModelConfig, RunConfig, StrategyConfig, TrainConfig
from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.requests import request_run
from frog.plan.estimate.sources import read_named_model
from frog.plan.estimate.step_time import StepModel
from frog.plan.layout import Layout, RankShare, Schedule, run_layout
from frog.plan.links import Group, Links, collective_cost, wire_bytes
from frog.plan.memory import (
    activation_bytes,
    activations_in_flight,
    cluster_states,
    kept_activations,
    loss_bytes,
    rank_memory,
    updated_parameters,
)
from frog.plan.model import PlannedModel, from_model_config
from frog.train.parallel.schedules.simulation import bubble_formula

MODEL = ModelConfig(512, 64, 176, 8, 4, 2, 64)
MIXTURE = replace(MODEL, num_local_experts=4)
UNTIED = replace(MODEL, tie_word_embeddings=False)


RUN_FILE = f"""
[model]
file = "{Path(__file__).parents[2] / "config" / "config.json"}"
num_hidden_layers = 8
[data]
sequence_length = 64
[train]
global_batch_size = 32
grad_accum = 4
precision = "bf16"
[strategy]
"""


def run(model: ModelConfig = MODEL, *, checkpointing: bool = False, accum: int = 4, **strategy: Any) -> RunConfig:
    train = TrainConfig(global_batch_size=32, grad_accum=accum, activation_checkpointing=checkpointing)
    config = RunConfig(
        model=model, data=DataConfig(sequence_length=32), train=train, strategy=StrategyConfig(**strategy)
    )
    assert config.problems() == []
    return config


@pytest.mark.parametrize(
    ("strategy", "others"),
    [
        ('name = "zero3"\nshard = 4', 1),
        ('tp = 2\npp = 2\nschedule = "interleaved"\nvirtual_stages = 2', 4),
        ('name = "zero1"\ncp = 2', 2),
        ('pp = 4\nschedule = "zero_bubble"', 4),
    ],
)
def test_run_file_has_the_layout_of_the_row_that_it_becomes(tmp_path: Path, strategy: str, others: int) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN_FILE + strategy)
    named = read_named_model(str(path))
    assert named.run is not None
    row = request_run(named, {}, clusters()["h100x8"], 8).layout
    layout = run_layout(named.run, 8)
    assert row == replace(layout, sequence_parallel=layout.sequence_parallel and layout.tp > 1, traits=row.traits)
    assert layout.dp == 8 // others


@pytest.mark.parametrize(
    ("model", "world", "strategy"),
    [
        *((MODEL, 4, {"name": name}) for name in ("ddp", "zero1", "zero2", "zero3")),
        (UNTIED, 4, {"name": "zero1", "cp": 2}),
        (MODEL, 8, {"name": "zero3", "shard": 4}),
        (MODEL, 8, {"name": "zero1", "pp": 2}),
        *((MIXTURE, 4, {"name": name, "ep": 2}) for name in ("ddp", "zero1", "zero3")),
        (MIXTURE, 8, {"name": "zero2", "ep": 4}),
    ],
)
def test_states_of_a_rank_are_those_of_the_closed_form(
    model: ModelConfig, world: int, strategy: dict[str, Any]
) -> None:
    config = run(model, **strategy)
    assert config.world_problems(world) == []
    share, memory = RankShare(config, world, 0), rank_memory(config, world, 0)
    parts = share.layout.stage_parameters(from_model_config(model))
    assert sum(parts) == share.whole.numel
    assert [memory.parameters, memory.gradients, memory.optimizer] == cluster_states(share.layout, parts)
    if share.layout.zero:
        assert 4 * updated_parameters(share.layout, parts) == share.partition_bytes


def test_experts_are_split_over_the_ranks_that_hold_the_same_ones() -> None:
    """Two of four experts of each layer, which two of four data ranks hold."""
    share = RankShare(run(MIXTURE, name="zero3", ep=2), 4, 0)
    experts = 8 * 2 * 3 * 64 * 176
    assert share.partition_bytes == 4 * ((share.whole.numel - experts) / 4 + experts / 2)


def test_tensor_parallelism_splits_all_but_the_norms() -> None:
    """The closed form splits these, too: 1,088 of 2 D (a layer's norms) and D (the last one)."""
    share = RankShare(run(tp=2), 2, 0)
    assert share.whole.numel - sum(share.layout.stage_parameters(from_model_config(MODEL))) == (8 * 2 + 1) * 64 / 2


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("schedule", "chunks", "layers"), [("gpipe", 1, 8), ("1f1b", 1, 8), ("zero_bubble", 1, 8), ("interleaved", 2, 8)]
)
@pytest.mark.parametrize("pp", [2, 4])
def test_micro_batches_in_flight_are_those_of_the_schedule(
    pp: int, schedule: str, chunks: int, layers: int, checkpointing: bool
) -> None:
    config = run(checkpointing=checkpointing, accum=8, pp=pp, schedule=schedule, virtual_stages=max(2, chunks))
    share, model = RankShare(config, pp, 0), from_model_config(MODEL)
    expected = kept_activations(model, share.layout) * share.layout.heaviest_layers(layers)
    assert activation_bytes(share) == expected * activations_in_flight(share.layout)


def test_activations_without_a_pipeline_are_all_layers_and_the_loss() -> None:
    share, model = RankShare(run(), 1, 0), from_model_config(MODEL)
    expected = MODEL.num_hidden_layers * kept_activations(model, share.layout) + loss_bytes(model, share.layout)
    assert activation_bytes(share) == expected


@pytest.mark.parametrize(
    ("schedule", "chunks", "name"),
    [("gpipe", 1, "gpipe"), ("1f1b", 1, "1f1b"), ("1f1b", 2, "interleaved"), ("zero_bubble", 1, "zero_bubble")],
)
def test_bubble_of_equal_stages_is_the_textbook_s(schedule: Schedule, chunks: int, name: str) -> None:
    """Without messages and with a negligible output matrix; forward, input and weight passes take as long."""
    model = PlannedModel(8, 4096, 32, 8, 128, 14336, 1)
    layout = Layout(2048, 16, pp=4, schedule=schedule, virtual_stages=chunks)
    cluster = replace(clusters()["h100x8"], gpus_per_node=1, nvlink_domain=1)
    step = StepModel(model, layout, cluster)
    idle = step.bubble - 3 * step.sends / chunks * (1 / 3 if schedule == "zero_bubble" else 1)
    busy = step.stage_seconds[0] * layout.num_micro
    assert idle / (idle + busy) == pytest.approx(bubble_formula(name, 4, 16, chunks), rel=1e-2)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_bytes_over_the_links_are_those_that_leave_a_rank(size: int) -> None:
    """One byte a second and no latency: seconds are bytes. With a rank on each node, gloo's messages carry as many."""
    links = Links(1.0, 1.0, 0.0, 0.0, domain=1)
    for op, seconds in (("all_gather", links.gather), ("all_reduce", links.all_reduce)):
        assert seconds(1e6, Group(size, 1)) == wire_bytes(op, 1e6, size)
        cost = collective_cost(op, 1e6, [list(range(size))])
        assert cost is not None
        assert cost.link_bytes == pytest.approx(wire_bytes(op, 1e6, size))


@pytest.mark.parametrize("leaf", [None, 16])
def test_links_give_columns_what_they_give_each_number(leaf: int | None) -> None:
    links = Links(450e9, 50e9, 1e-5, 2e-5, domain=8, leaf=leaf, oversubscription=3.0)
    pairs = [(size, stride) for size in (1, 2, 3, 8, 12, 64) for stride in (1, 2, 8, 24)]
    columns = Group(*(np.array(column) for column in zip(*pairs, strict=True)))
    for seconds in (links.gather, links.all_reduce, lambda num_bytes, group: links.send(num_bytes, links.route(group))):
        alone = [seconds(1e9, Group(*pair)) for pair in pairs]
        assert seconds(1e9, columns) == pytest.approx(alone, rel=1e-12)
