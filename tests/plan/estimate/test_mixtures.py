"""Mixtures of experts: which rank holds what, and which rows reach it, against counts of single experts and tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from frog.core.errors import ConfigError
from frog.plan.estimate.explain import explain_memory, explain_step
from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.requests import request_run
from frog.plan.estimate.rows import planned_run
from frog.plan.estimate.sources import NamedModel
from frog.plan.estimate.step_time import StepModel
from frog.plan.layout import Layout, Traits
from frog.plan.links import Group
from frog.plan.memory import kept_tensors, step_memory
from frog.plan.model import PlannedModel
from frog.plan.plan_text import layout_words

MIXTURE = PlannedModel(8, 1024, 8, 8, 128, 4096, 32000, experts=16, experts_per_token=4, expert_ffn=512, gated=True)
H100 = clusters()["h100x8"]
LAYOUTS = [
    {"tp": 8, "ep": 2, "expert_tp": 1},
    {"tp": 8, "ep": 2, "expert_tp": 8},
    {"tp": 4, "ep": 4, "expert_tp": 2},
    {"tp": 8, "ep": 1},
    {"tp": 8, "ep": 1, "expert_tp": 1},
    {"tp": 2, "ep": 16},
    {"tp": 1, "ep": 4, "expert_tp": 4},
    {"tp": 2, "cp": 2, "ep": 8, "expert_tp": 2},
]


def layout_of(**degrees: int) -> Layout:
    others = degrees.get("tp", 1) * degrees.get("cp", 1)
    usual: dict[str, Any] = {"seq_len": 512, "global_batch": 32, "dp": 32 // others, "sequence_parallel": True}
    return Layout(**{**usual, **degrees})


def experts_of_ranks(layout: Layout) -> Iterator[tuple[int, int, int]]:
    """Yield (rank, expert, part) of all ranks of one stage, as Megatron places them: expert tp fastest, then ep."""
    for rank in range(layout.dp * layout.cp * layout.tp):
        part, place = rank % layout.expert_split, rank // layout.expert_split % layout.ep
        for expert in range(MIXTURE.experts):
            if expert * layout.ep // MIXTURE.experts == place:
                yield rank, expert, part


@pytest.mark.parametrize("degrees", LAYOUTS, ids=str)
def test_parameters_of_experts_are_those_of_single_experts_on_single_ranks(degrees: dict[str, int]) -> None:
    layout = layout_of(**degrees)
    assert layout.problems(MIXTURE) == []
    held = list(experts_of_ranks(layout))
    of_rank = Counter(rank for rank, _, _ in held)
    each = 3 * 1024 * 512 // layout.expert_split
    assert {MIXTURE.layers * count * each for count in of_rank.values()} == {layout.stage_parameters(MIXTURE)[1]}
    copies = Counter((expert, part) for _, expert, part in held)
    assert set(copies.values()) == {layout.num_expert_copies}
    assert len(copies) == MIXTURE.experts * layout.expert_split


@pytest.mark.parametrize("degrees", LAYOUTS, ids=str)
def test_rows_of_experts_are_those_of_single_tokens(degrees: dict[str, int]) -> None:
    """Each rank has its own tokens, and sends each to the part of its experts that has its place in expert tp."""
    layout = layout_of(**degrees)
    tokens = layout.tokens // layout.tp
    arrived: Counter[int] = Counter()
    rows: Counter[tuple[int, int]] = Counter()
    for source in range(layout.expert_ranks):
        for token in range(tokens):
            for choice in range(MIXTURE.experts_per_token):
                expert = (token * MIXTURE.experts_per_token + choice) % MIXTURE.experts
                owner = expert * layout.ep // MIXTURE.experts * layout.expert_split
                arrived[owner + source % layout.expert_split] += 1
                for part in range(layout.expert_split):  # gathered
                    rows[owner + part, expert] += 1
    layers = StepModel(MIXTURE, layout, H100).layers
    assert set(rows.values()) == {layers.expert_rows}
    assert set(arrived.values()) == {tokens * MIXTURE.experts_per_token}
    of_rank = sum(count for (rank, _), count in rows.items() if rank == 0)
    kept = next(kept for kept in kept_tensors(MIXTURE, layout) if kept.what.startswith("rows"))
    assert layout.tokens * kept.numbers / kept.split == 2 * 1024 * of_rank, "entering and leaving"
    if layout.expert_split > 1 and not layers.gathers_stream:
        assert layers.gathered_row_bytes == 2 * 1024 * of_rank
    else:
        assert layers.gathered_row_bytes == 0


def test_ranks_that_split_experts_gather_rows_and_scatter_sums() -> None:
    apart = StepModel(MIXTURE, layout_of(tp=8, ep=2, expert_tp=1), H100)
    split = StepModel(MIXTURE, layout_of(tp=8, ep=2, expert_tp=4), H100)
    sent = apart.layers.expert_bytes
    assert split.layers.expert_bytes == sent, "each rank sends its own tokens"
    times = [step.layers.layer(mixture=True).forward.expert for step in (apart, split)]
    dispatched = [sum(step.links.all_to_all(size, Group(2, stride), 1) for size in sent) for step, stride in
                  ((apart, 1), (split, 4))]  # fmt: skip
    gathered = 2 * split.links.gather(2 * 512 * 1024 * 4 * 4 / 8, Group(4, 1))
    assert times == pytest.approx([dispatched[0], dispatched[1] + gathered])


def test_tokens_stay_split_around_experts_unless_all_ranks_need_them() -> None:
    """Of the stream's two exchanges in a pass, a mixture with sequence parallelism has only attention's."""
    shared = replace(MIXTURE, shared_experts=1)
    for model, layout, exchanges in [
        (MIXTURE, layout_of(tp=8, ep=2, expert_tp=1), 1),
        (MIXTURE, layout_of(tp=8, ep=2, expert_tp=8), 1),
        (MIXTURE, layout_of(tp=8, ep=1), 2),
        (MIXTURE, layout_of(tp=8, ep=1, expert_tp=1), 1),
        (shared, layout_of(tp=8, ep=2, expert_tp=1), 2),
        (MIXTURE, replace(layout_of(tp=8, ep=2), sequence_parallel=False), 2),
    ]:
        layers = StepModel(model, layout, H100).layers
        each = layers.links.all_reduce(layers.stream_bytes, Group(8, 1))
        assert layers.layer(mixture=True).forward.tensor == pytest.approx(exchanges * each)


def test_splitting_experts_divides_their_states_by_the_same_number() -> None:
    traits = Traits("fused")
    memory = [
        step_memory(MIXTURE, replace(layout_of(tp=8, ep=2, expert_tp=size), traits=traits), H100.gpu.memory)
        for size in (1, 2, 4, 8)
    ]
    experts = 8 * 16 * 3 * 1024 * 512 / 2
    for size, found in zip((1, 2, 4, 8), memory, strict=True):
        assert memory[0].parameters - found.parameters == pytest.approx(2 * (experts - experts / size))


def test_gradients_of_split_experts_are_averaged_by_their_copies_alone() -> None:
    step = StepModel(MIXTURE, replace(layout_of(tp=8), zero=0), H100)
    shared, experts = step.stage_parameter_parts
    assert step.layout.num_expert_copies == 4
    groups = Group(4, 8), Group(4, 8)
    expected = sum(
        step.links.all_reduce(4 * numel, group) for numel, group in zip((shared, experts), groups, strict=True)
    )
    assert step.step_transfers[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("degrees", "problem"),
    [
        ({"tp": 8, "ep": 8, "expert_tp": 8}, "ep=8 x expert_tp=8 = 64 does not divide dp x tp x cp = 32"),
        ({"tp": 8, "ep": 1, "expert_tp": 3}, "ep=1 x expert_tp=3 = 3 does not divide dp x tp x cp = 32"),
        ({"tp": 2, "ep": 1, "expert_tp": 0}, "expert_tp=0: must be at least 1"),
        ({"tp": 8, "ep": 12}, "experts=16 do not divide by ep=12"),
    ],
    ids=str,
)
def test_impossible_places_of_experts_are_refused(degrees: dict[str, int], problem: str) -> None:
    assert problem in layout_of(**degrees).problems(MIXTURE)


def test_dense_model_and_narrow_experts_refuse_expert_tp() -> None:
    dense, narrow = replace(MIXTURE, experts=0), replace(MIXTURE, expert_ffn=516)
    layout = layout_of(tp=8, expert_tp=8)
    assert layout.problems(dense) == ["expert_tp=8: the model has no experts"]
    assert layout.problems(narrow) == ["expert_ffn=516 does not divide by expert_tp=8"]


@pytest.mark.parametrize(
    ("software", "options", "split"),
    [
        ("megatron", {}, 8),
        ("megatron", {"expert_tp": "2"}, 2),
        ("megatron-bridge", {}, 1),
        ("torchtitan", {}, 1),
        ("megatron", {"ep": "16"}, 1),
        ("megatron", {"ep": "1"}, 8),
    ],
    ids=str,
)
def test_programs_split_experts_by_their_defaults(software: str, options: dict[str, str], split: int) -> None:
    """Megatron-Core's default is tp, if so many ranks are there: 16 x 8 do not divide 64."""
    run = request_run(NamedModel(MIXTURE), {"software": software, "tp": "8", "ep": "2", **options}, H100, 64)
    assert run.layout.expert_split == split
    assert (f"expert_tp={split}" in run.assumed) == (options.get("ep") != "1" and "expert_tp" not in options)
    assert f"x expert tp {split}" in layout_words(run)


def test_table_states_expert_tp() -> None:
    row = {"software": "Megatron-Core", "n_gpus": "32", "tp": "8", "ep": "2", "seq_len": "512", "global_batch": "32"}
    assert planned_run(MIXTURE, {**row, "expert_tp": "4"}, H100).layout.expert_split == 4
    assert "expert_tp=8" in planned_run(MIXTURE, row, H100).assumed
    with pytest.raises(ConfigError, match="expert_tp='four': must be a number"):
        planned_run(MIXTURE, {**row, "expert_tp": "four"}, H100)


def test_explained_experts_can_be_repeated() -> None:
    step = StepModel(MIXTURE, layout_of(tp=8, ep=2, expert_tp=4), H100)
    terms = {term.name: term for term in (*explain_step(step), *explain_memory(step, step.memory))}
    for name in (
        "experts of the rank",
        "rows of an expert in a micro-batch",
        "rows that the ranks of an expert gather",
    ):
        assert eval(terms[name].sum) == pytest.approx(terms[name].value)  # arithmetic of our own
    assert terms["experts of the rank"].value == step.stage_parameter_parts[1]
