"""Mixtures of experts: which rank holds what, and which rows reach it, against counts of single experts and tokens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frog.cli import main
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


def layout_of(**degrees: Any) -> Layout:
    """Return a layout of 32 ranks whose routing is even unless it is stated."""
    others = degrees.get("tp", 1) * degrees.get("cp", 1)
    usual: dict[str, Any] = {"seq_len": 512, "global_batch": 32, "dp": 32 // others, "sequence_parallel": True}
    return Layout(**{**usual, "imbalance": 1.0, **degrees})


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
    layout = layout_of(tp=8, expert_tp=8, imbalance=None)
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


# ---- how even the experts' rows are ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("ep", "chosen"), [(2, 4), (8, 1), (8, 4), (16, 2), (4, 15)])
def test_load_of_random_choices_is_that_of_drawn_ones(ep: int, chosen: int) -> None:
    model = replace(MIXTURE, experts_per_token=chosen)
    layout = layout_of(ep=ep, seq_len=128, imbalance=None)
    draws = np.random.default_rng(7).random((100, layout.tokens * ep, model.experts))
    experts = np.argpartition(draws, chosen, axis=2)[:, :, :chosen]
    ranks = experts * ep // model.experts
    rows = np.stack([(ranks == rank).sum(axis=(1, 2)) for rank in range(ep)], axis=1)
    drawn = float((rows.max(axis=1) / rows.mean(axis=1)).mean()) - 1
    assert layout.expert_load(model) - 1 == pytest.approx(drawn, rel=0.2)


def test_load_is_one_where_no_rank_can_have_more() -> None:
    every = replace(MIXTURE, experts_per_token=16)
    assert layout_of(ep=1, imbalance=None).expert_load(MIXTURE) == 1.0
    assert layout_of(ep=1, imbalance=3.0).expert_load(MIXTURE) == 1.0
    assert layout_of(ep=4, imbalance=None).expert_load(every) == 1.0, "each token chooses all experts"
    assert layout_of(ep=4, imbalance=1.5).expert_load(MIXTURE) == 1.5
    assert layout_of(ep=4, imbalance=30.0).expert_load(MIXTURE) == 4.0, "all four experts of each token on one rank"
    assert layout_of(ep=8, imbalance=30.0).expert_load(MIXTURE) == 4.0, "two of four experts of each token"


def test_all_ranks_wait_for_the_one_with_most_rows() -> None:
    even, uneven = (StepModel(MIXTURE, layout_of(ep=8, imbalance=load), H100).layers for load in (1.0, 2.0))
    assert uneven.expert_rows == 2 * even.expert_rows
    assert uneven.expert_bytes == tuple(2 * size for size in even.expert_bytes)
    before, after = even.layer(mixture=True).forward, uneven.layer(mixture=True).forward
    assert before.attention == after.attention
    assert after.products > before.products
    latency = 2 * even.links.all_to_all(0, Group(8, 1))
    assert after.expert - latency == pytest.approx(2 * (before.expert - latency))


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.25, 2.0])
def test_capacity_bounds_the_rows_of_every_expert(factor: float) -> None:
    """Each rank keeps capacity = factor x tokens x k / experts rows for an expert (GShard, algorithm 1)."""
    layout = layout_of(ep=8, imbalance=None, capacity_factor=factor)
    layers = StepModel(MIXTURE, layout, H100).layers
    capacity = factor * layout.tokens * MIXTURE.experts_per_token / MIXTURE.experts
    assert layers.expert_rows == 8 * capacity, "from each of eight ranks"
    assert layers.expert_bytes == (2 * 1024 * 16 * capacity,) * 2
    kept = next(kept for kept in kept_tensors(MIXTURE, layout) if kept.what.startswith("rows"))
    assert layout.tokens * kept.numbers / kept.split == 2 * 1024 * 2 * 8 * capacity


def test_dropping_tokens_is_faster_than_waiting_for_the_fullest_rank() -> None:
    def seconds(**load: float | None) -> float:
        layout = layout_of(ep=16, seq_len=16384, **{"imbalance": None, **load})
        return StepModel(MIXTURE, layout, H100).step.total

    dropless, dropped = seconds(), seconds(capacity_factor=1.0)
    assert dropped == seconds(imbalance=1.0) < dropless < seconds(imbalance=1.5)
    assert seconds(capacity_factor=1.5) == seconds(imbalance=1.5), "padded up to it"


def test_random_choices_do_not_add_up_over_layers_but_a_stated_imbalance_does() -> None:
    memory = [
        step_memory(MIXTURE, layout_of(ep=8, imbalance=load), H100.gpu.memory).activations for load in (None, 1.0, 1.5)
    ]
    assert memory[0] == memory[1] < memory[2]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"imbalance": 0.9}, "imbalance=0.9: the rank with most rows has at least the mean, 1"),
        ({"imbalance": None, "capacity_factor": 0.0}, "capacity_factor=0: must be above 0"),
        ({"imbalance": 2.0, "capacity_factor": 1.0}, "imbalance=2: with capacity_factor=1 all ranks have equal rows"),
    ],
    ids=str,
)
def test_impossible_loads_are_refused(options: dict[str, Any], problem: str) -> None:
    assert layout_of(ep=8, **options).problems(MIXTURE) == [problem]


def test_dense_models_have_no_load() -> None:
    dense = replace(MIXTURE, experts=0)
    assert layout_of(imbalance=None, capacity_factor=1.0).problems(dense) == [
        "capacity_factor=1: the model has no experts"
    ]


def test_tables_state_the_load_and_token_drop_has_the_mean() -> None:
    row = {"software": "Megatron-Bridge", "n_gpus": "8", "ep": "8", "seq_len": "512", "global_batch": "32"}

    def layout(**cells: str) -> Layout:
        return planned_run(MIXTURE, {**row, **cells}, H100).layout

    assert (layout().capacity_factor, layout().imbalance) == (None, None)
    assert layout(capacity_factor="1.25").expert_load(MIXTURE) == 1.25
    assert layout(imbalance="1.4").expert_load(MIXTURE) == 1.4
    assert layout(arch_notes="every layer MoE; token drop").capacity_factor == 1.0
    with pytest.raises(ConfigError, match="imbalance=0: the rank with most"):
        layout(imbalance="0")


def test_plan_and_search_take_the_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "mixtral", "hidden_size": 1024, "intermediate_size": 512, "num_attention_heads": 8,
        "num_key_value_heads": 8, "num_hidden_layers": 8, "vocab_size": 32000, "num_local_experts": 16,
        "num_experts_per_tok": 4, "max_position_embeddings": 4096,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    usual = ["plan", str(path), "--cluster", "h100x8", "--software", "megatron", "--ep", "8", "--global-batch", "64"]
    for words in ("--capacity-factor 1.25", "--imbalance 1.25"):
        assert main([*usual, *words.split(), "--explain"]) == 0
        out = capsys.readouterr().out
        assert f", {words.removeprefix('--').replace('-', ' ')}, bf16\n" in out
        assert "* 1.25 = " in out, "the rows of an expert"
        assert "load of the rank with most rows" not in out
    assert main([*usual, "--explain"]) == 0
    assert "load of the rank with most rows = 1 + largest of ep normal numbers" in capsys.readouterr().out
    assert main([*usual, "--capacity-factor", "1", "--imbalance", "2"]) == 2
    assert "all ranks have equal rows" in capsys.readouterr().err
    searched = ["plan", "search", str(path), "--cluster", "h100x8", "--global-batch", "64", "--seq-len", "4096"]
    times = []
    for words in ("", "--imbalance 3", "--capacity-factor 0.5"):
        assert main([*searched, *words.split()]) == 0
        out = capsys.readouterr().out
        times.append(float(out.split("layout\n")[1].split()[0]))
    assert times[2] < times[0] <= times[1]
