"""Pipelines in worlds of 2 and 4 compute what one process computes; broken pipelines do not.

Each world starts once and runs all its cases; before a broadcast, every rank has different initial weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import Harness

pytestmark = pytest.mark.slow

WORKER = Path(__file__).parent / "pipeline_worker.py"
MODEL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")
TIED = "embed_tokens.weight"
Results = list[dict[str, dict[str, Any]]]
"""The result of each case, by rank."""


def case(mesh: dict[str, int], schedule: str, accum: int = 4, *, tied: bool = True, **more: Any) -> dict[str, Any]:
    model = {**MODEL, "tie_word_embeddings": tied, **more.pop("model", {})}
    virtual = 2 if schedule == "interleaved" else 1
    given = {"mesh": mesh, "schedule": schedule, "accum": accum, "model": model, "virtual": virtual}
    rest = {
        "batch": 2,
        "checkpointing": False,
        "frozen": [],
        "uneven": False,
        "autocast": False,
        "scale": 1.0,
        "mutant": None,
    }
    return {**given, **rest, **more}


PP2, PP4 = {"pp": 2}, {"pp": 4}
MIXTURE = {"num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.1}

CASES_2 = {
    **{
        f"{schedule}, {tying}, {accum} micro-batches": case(PP2, schedule, accum, tied=tying == "tied")
        for schedule in SCHEDULES
        for tying in ("tied", "untied")
        for accum in (4, 8)
    },
    **{f"{schedule}, checkpointed": case(PP2, schedule, tied=False, checkpointing=True) for schedule in SCHEDULES},
    **{f"{schedule}, 5 layers": case(PP2, schedule, model={"num_hidden_layers": 5}) for schedule in SCHEDULES},
    **{f"{schedule}, uneven shares, scaled": case(PP2, schedule, uneven=True, scale=8.0) for schedule in SCHEDULES},
    # 64 or more rows may use the products of another library
    **{f"{schedule}, long": case(PP2, schedule, tied=False, batch=6) for schedule in SCHEDULES},
    "frozen stage": case(PP2, "zero_bubble", tied=False, frozen=["embed_tokens", "layers.0", "layers.1"]),
    "frozen parts": case(PP2, "zero_bubble", frozen=["up_proj", "post_attention_layernorm"]),
    **{f"{schedule}, bf16": case(PP2, schedule, tied=False, autocast=True) for schedule in SCHEDULES},
    **{f"{schedule}, mixture": case(PP2, schedule, tied=False, model=MIXTURE) for schedule in ("1f1b", "zero_bubble")},
}
MUTANTS_2 = {
    f"{mutant}, {schedule}": case(PP2, schedule, mutant=mutant)
    for mutant, schedules in {
        "forgotten tied sum": SCHEDULES,
        "off-by-one schedule": SCHEDULES[:2],
        "labels of the next micro-batch": SCHEDULES,
        "one buffer for all messages": ("gpipe", "1f1b"),
        "gradient passed on unchanged": ("interleaved",),
        "weight gradients of the micro-batch before": ("zero_bubble",),
        "sum for average": SCHEDULES[1:2],
    }.items()
    for schedule in schedules
}
DEEP = {"num_hidden_layers": 8}
DP2_PP2, TP2_PP2 = {"dp": 2, "pp": 2}, {"tp": 2, "pp": 2}
CASES_4 = {
    **{
        f"pp4, {schedule}, {accum}": case(PP4, schedule, accum, model=DEEP)
        for schedule in SCHEDULES
        for accum in (4, 8)
    },
    **{f"pp4, {schedule}, untied": case(PP4, schedule, tied=False, model=DEEP) for schedule in SCHEDULES},
    **{f"dp2 pp2, {schedule}": case(DP2_PP2, schedule) for schedule in SCHEDULES},
    **{f"tp2 pp2, {schedule}": case(TP2_PP2, schedule) for schedule in SCHEDULES},
    "tp2 pp2, checkpointed": case(TP2_PP2, "zero_bubble", tied=False, checkpointing=True),
}
MUTANTS_4 = {
    "forgotten tied sum": case(PP4, "1f1b", mutant="forgotten tied sum"),
    "forgotten tied sum, dp2 pp2": case(DP2_PP2, "zero_bubble", mutant="forgotten tied sum"),
    "gradient passed on unchanged": case(PP4, "zero_bubble", mutant="gradient passed on unchanged"),
    "one buffer for all messages": case(PP4, "gpipe", mutant="one buffer for all messages"),
}


def run_world(harness: Harness, folder: Path, size: int, cases: dict[str, dict[str, Any]]) -> Results:
    (folder / "cases.json").write_text(json.dumps(cases))
    words = ("frog", "run", "--nproc", str(size), "--", str(WORKER), str(folder / "cases.json"), str(folder))
    harness.run(*words, limit_s=510)
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def two(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_world(harness, tmp_path_factory.mktemp("two"), 2, {**CASES_2, **MUTANTS_2})


@pytest.fixture(scope="module")
def four(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_world(harness, tmp_path_factory.mktemp("four"), 4, {**CASES_4, **MUTANTS_4})


def is_right(found: dict[str, Any]) -> bool:
    return max(found["loss"], found["gradient"]) <= 1 and not found["unexpected"]


def check(name: str, case: dict[str, Any], results: Results) -> None:
    trained, repeated = [], []
    for rank, result in enumerate(results):
        found = result[name]
        assert is_right(found), f"rank {rank}: {found}"
        assert found["evaluated"] <= 1
        assert found["peak_in_flight"] == found["simulated_peak"]
        trained += found["trained"]
        repeated += found["repeats"]
    if set(case["mesh"]) == {"pp"}:
        assert repeated == ([TIED] if case["model"]["tie_word_embeddings"] else [])
        assert len(trained) - len([name for name in repeated if name in trained]) == len(set(trained))


@pytest.mark.parametrize("name", CASES_2)
def test_pipeline_of_two_ranks_equals_one_process(two: Results, name: str) -> None:
    check(name, CASES_2[name], two)


@pytest.mark.parametrize("name", CASES_4)
def test_pipeline_of_four_ranks_equals_one_process(four: Results, name: str) -> None:
    check(name, CASES_4[name], four)


@pytest.mark.parametrize("name", MUTANTS_2)
def test_pipeline_mutants_on_two_ranks_are_detected(two: Results, name: str) -> None:
    assert not all(is_right(result[name]) for result in two)


@pytest.mark.parametrize("name", MUTANTS_4)
def test_pipeline_mutants_on_four_ranks_are_detected(four: Results, name: str) -> None:
    assert not all(is_right(result[name]) for result in four)


def test_pipeline_gradients_are_bitwise_equal_to_one_process(two: Results, four: Results) -> None:
    """The gradients are in float32. The tied weight is an exception: its two parts are summed at the end."""
    pure = [(two, name) for name, given in CASES_2.items() if not given["autocast"]]
    pure += [(four, name) for name, given in CASES_4.items() if given["mesh"] == PP4]
    for results, name in pure:
        for result in results:
            found = result[name]
            different = set(found["trained"]) - set(found["bitwise"])
            assert different <= {TIED}, f"{name}: {different}"


def test_pipeline_stages_cover_the_whole_model(two: Results) -> None:
    first, last = (result["1f1b, untied, 4 micro-batches"]["names"] for result in two)
    assert [name for name in first if "layers" not in name] == [TIED]
    assert [name for name in last if "layers" not in name] == ["lm_head.weight", "norm.weight"]
    assert {name.split(".")[1] for name in first if "layers" in name} == {"0", "1"}
    assert {name.split(".")[1] for name in last if "layers" in name} == {"2", "3"}
    first, last = (result["interleaved, tied, 4 micro-batches"]["names"] for result in two)
    assert {name.split(".")[1] for name in first if "layers" in name} == {"0", "2"}
    assert [name for name in last if "layers" not in name] == [TIED, "norm.weight"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pipeline_messages_match_the_formula(two: Results, four: Results, schedule: str) -> None:
    virtual = 2 if schedule == "interleaved" else 1
    for results, size, name in ((two, 2, f"{schedule}, tied, 8 micro-batches"), (four, 4, f"pp4, {schedule}, 8")):
        sent = [result[name]["collectives"]["send pp"] for result in results]
        received = [result[name]["collectives"]["recv pp"] for result in results]
        count = 2 * 8 * (size * virtual - 1)
        assert sum(number for number, _ in sent) == sum(number for number, _ in received) == count
        assert sum(total for _, total in sent) == count * 2 * 16 * 32 * 4  # B x T x D floats each
    half = [result[f"tp2 pp2, {schedule}"]["collectives"]["send pp"][1] for result in four]
    assert sum(half) == 2 * 4 * (2 * virtual - 1) * 2 * 16 * 32 * 4  # each tp rank sends its share of the positions


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_pipeline_action_is_a_span(two: Results, schedule: str) -> None:
    virtual, backwards = (2 if schedule == "interleaved" else 1), (2 if schedule == "zero_bubble" else 1)
    for result in two:
        found = result[f"{schedule}, tied, 8 micro-batches"]
        assert (found["forwards"], found["backwards"]) == (8 * virtual, 8 * virtual * backwards)
