"""Recomputation of some layers, as in Megatron, against a list of layers that are walked through one by one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from frog.cli import main
from frog.core.errors import ConfigError
from frog.plan.estimate.explain import explain_memory
from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.rows import planned_run
from frog.plan.estimate.step_time import StepModel
from frog.plan.layout import Layout
from frog.plan.memory import kept_activations, layer_activations, layer_input, layer_memory
from frog.plan.model import PlannedModel

MODEL = PlannedModel(48, 4096, 32, 8, 128, 14336, 128256)
H100 = clusters()["h100x8"]


def layout_of(**changes: Any) -> Layout:
    return Layout(**{"seq_len": 4096, "global_batch": 64, "recompute": "full", **changes})


def walked(layout: Layout) -> tuple[float, int, float]:
    """Return the kept bytes of a stage and micro-batch, its layers that run twice, and the most bytes when a layer's
    gradient is complete, beyond those kept.

    Megatron walks through each chunk: `block` checkpoints its first layers, `uniform` units of layers.
    """
    whole, stored = layer_activations(MODEL, layout), layer_input(MODEL, layout)
    in_chunk = MODEL.layers // layout.pp // layout.virtual_stages
    asked = layout.recompute_layers or 1
    units: list[tuple[int, bool]] = []
    for _ in range(layout.virtual_stages):
        if layout.recompute_layers is None:
            units += [(1, True)] * in_chunk
        elif layout.recompute_method == "uniform":
            units += [(min(asked, in_chunk - first), True) for first in range(0, in_chunk, asked)]
        else:
            units += [(1, layer < asked) for layer in range(in_chunk)]
    kept = now = sum(stored if again else whole * size for size, again in units)
    peak = -math.inf
    for size, again in reversed(units):
        now += whole * size if again else 0.0
        peak = max(peak, now - kept if again else now - whole * size - kept)
        now -= whole * size + (stored if again else 0.0)
    return kept, sum(size for size, again in units if again), peak


CASES = [
    {},
    {"recompute_layers": 1},
    {"recompute_layers": 7},
    {"recompute_layers": 47},
    {"recompute_layers": 48},
    {"recompute_layers": 100},
    {"pp": 4, "recompute_layers": 5},
    {"pp": 4, "virtual_stages": 3, "recompute_layers": 3},
    {"pp": 4, "virtual_stages": 3, "recompute_layers": 4},
    {"recompute_layers": 4, "recompute_method": "uniform"},
    {"recompute_layers": 7, "recompute_method": "uniform"},
    {"recompute_layers": 1, "recompute_method": "uniform"},
    {"pp": 4, "virtual_stages": 2, "recompute_layers": 4, "recompute_method": "uniform"},
]


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_kept_bytes_and_repeated_layers_are_those_of_a_walk_through_the_layers(changes: dict[str, Any]) -> None:
    layout = layout_of(**changes)
    assert layout.problems(MODEL) == []
    kept, again, peak = walked(layout)
    layers = MODEL.layers // layout.pp
    assert kept_activations(MODEL, layout) * layers == pytest.approx(kept)
    assert layout.layers_computed_again(MODEL.layers) == again
    memory = layer_memory(MODEL, layout)
    if layout.virtual_stages == 1:  # with chunks, others' layers are free before
        assert 0 <= memory.recomputed - memory.freed - peak <= layer_input(MODEL, layout), "of a shorter last unit"
    passes = StepModel(MODEL, layout, H100).layers.layer(mixture=False)
    assert passes.recomputed.total * layers == pytest.approx(passes.forward.total * again)


def test_partial_recomputation_is_between_none_and_full() -> None:
    def needs(**changes: Any) -> tuple[float, float]:
        step = StepModel(MODEL, layout_of(dp=8, global_batch=64, **changes), H100)
        return step.step.total, -step.memory.total

    points = [
        needs(recompute="none"),
        *(needs(recompute_layers=layers) for layers in (1, 12, 36)),
        needs(recompute_layers=48),
    ]
    assert points == sorted(points), "the more layers, the slower and the smaller"
    assert points[-1] == needs()
    at_once = needs(recompute_layers=4, recompute_method="uniform")
    assert at_once[0] == needs()[0]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"recompute": "none", "recompute_layers": 2}, "recompute_layers=2: needs recompute=full, not none"),
        ({"recompute_layers": 0}, "recompute_layers=0: must be at least 1"),
    ],
    ids=str,
)
def test_impossible_recomputation_is_refused(changes: dict[str, Any], problem: str) -> None:
    assert layout_of(**changes).problems(MODEL) == [problem]


def test_table_states_the_layers_and_the_method() -> None:
    row = {"software": "Megatron-Core", "n_gpus": "1", "seq_len": "512", "global_batch": "8", "recompute": "full"}
    layout = planned_run(MODEL, {**row, "recompute_layers": "4", "recompute_method": "uniform"}, H100).layout
    assert (layout.recompute_layers, layout.recompute_method) == (4, "uniform")
    for cells, problem in [
        ({"recompute_method": "block"}, "recompute_method=block: of how many layers"),
        ({"recompute_layers": "4", "recompute_method": "some"}, "recompute_method='some': must be block or uniform"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            planned_run(MODEL, {**row, **cells}, H100)


@pytest.mark.parametrize("changes", [CASES[2], CASES[9]], ids=str)
def test_explained_bytes_can_be_repeated(changes: dict[str, Any]) -> None:
    step = StepModel(replace(MODEL, vocab=1000), layout_of(**changes), H100)
    terms = {term.name: term for term in explain_memory(step, step.memory)}
    names = ["bytes of a mean layer", "activations of the first stage"]
    names += ["4 layers that are computed again"] if "recompute_method" in changes else []
    for name in names:
        assert eval(terms[name].sum) == pytest.approx(terms[name].value, rel=1e-4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--recompute full --recompute-layers 4", "full recomputation of 4 layers of each rank"),
        ("--recompute full --recompute-layers 4 --pp 2 --gpus 2", "full recomputation of 4 layers of each stage"),
        (
            "--recompute full --recompute-layers 4 --recompute-method uniform --pp 2 --gpus 2 --virtual-stages 2",
            "full recomputation, 4 layers at once",
        ),
    ],
)
def test_plan_names_the_layers(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "config/llama3_8b.json", "--cluster", "h100x8", "--software", "megatron", "--global-batch", "64"]
    assert main([*command, *words.split()]) == 0
    assert f"{said}, bf16" in capsys.readouterr().out
    assert main([*command, "--recompute-layers", "4"]) == 2
    assert "recompute_layers=4: needs recompute=full" in capsys.readouterr().err
