"""Numbers of the views: differences between runs and tensors, drawn steps and ticks, and their texts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_files import event, record_json, run_json

from frog.core.errors import RunError
from frog.core.files import write_json
from frog.core.runs.folder import RunFolder
from frog.observe.view import charts, compare_runs, timeline, weights
from frog.observe.view.compare_programs import Finding
from frog.observe.view.runs import RunRow, list_runs, runs_table, when

# ---- numbers of two runs ---------------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("a", "b", "outcome", "detail", "factor"),
    [
        ({}, {1: 1.0}, "not compared", "no step in common", None),
        ({1: NAN}, {1: NAN}, "not compared", "neither run has a number", None),
        ({1: 1.0, 2: NAN}, {1: 1.0, 2: NAN}, "equal", "bit for bit over 2 steps", None),
        ({1: 1.0, 3: 9.0}, {1: 1.0, 2: 5.0}, "equal", "bit for bit over 1 steps", None),
        ({1: 1.0}, {1: 1.0 + 1e-6}, "close", "first differs at step 1: 1 and 1.000001, relative 1.0e-06", None),
        ({1: 1.0}, {1: 1.0001}, "different", "diverges at step 1: 1 and 1.0001, relative 1.0e-04", None),
        ({1: 1.0}, {1: NAN}, "different", "diverges at step 1: 1 and nan, relative inf", None),
        ({1: 1.0}, {1: 4.0}, "different", "diverges at step 1: 1 and 4, relative 7.5e-01", 4),
        ({1: 4.0}, {1: 1.0}, "different", "diverges at step 1: 4 and 1, relative 7.5e-01", -4),
        ({1: 1.0, 2: 1.0}, {1: 1.0, 2: 4.0}, "different", "diverges at step 2: 1 and 4, relative 7.5e-01", None),
        (
            {1: 1.0, 2: 1.0, 3: 1.0},
            {1: 1.0 + 1e-6, 2: 1.5, 3: 9.0},
            "different",
            "diverges at step 2: 1 and 1.5, relative 3.3e-01; bits differ from step 1; "
            "largest difference at step 3, 8.9e-01",
            None,
        ),
    ],
)
def test_numbers_of_two_runs_are_compared_step_by_step(
    a: dict[int, float], b: dict[int, float], outcome: str, detail: str, factor: int | None
) -> None:
    left, right = ({(step, None): value for step, value in numbers.items()} for numbers in (a, b))
    found = compare_runs._numbers("loss", left, right, 1e-5)  # type: ignore[arg-type]
    assert (found.what, found.outcome, found.detail, found.factor) == ("loss", outcome, detail, factor)


@pytest.mark.parametrize(("b", "outcome"), [(1 - 0.9e-5, "close"), (1 - 1e-5, "close"), (1 - 1.1e-5, "different")])
def test_relative_difference_of_the_tolerance_is_within_it(b: float, outcome: str) -> None:
    assert compare_runs._numbers("x", {(1, None): 1.0}, {(1, None): b}, 1e-5).outcome == outcome


def test_place_of_a_number_per_rank_names_step_and_rank() -> None:
    a = {(2, 1): 1.0, (2, 0): 1.0, (1, 1): 1.0}
    found = compare_runs._numbers("x", a, {**a, (2, 1): 2.5, (2, 0): 1.5}, 1e-5)  # type: ignore[arg-type]
    assert found.detail.startswith("diverges at step 2, rank 0: 1 and 1.5")
    assert found.detail.endswith("largest difference at step 2, rank 1, 6.0e-01")


@pytest.mark.parametrize(
    ("a", "b", "factor"),
    [
        *[(1.0, 2.0, 2), (2.0, 1.0, -2), (1.0, 4096.0, 4096), (1.0, 4097.0, None), (1.0, 1.0, None), (1.0, 1.6, None)],
        *[(-1.0, -3.0, 3), (-1.0, 3.0, None), (0.0, 3.0, None), (3.0, 0.0, None), (1.0, INF, None), (1.0, NAN, None)],
        *[(1.0, 3.0 * (1 + 1.9e-5), 3), (1.0, 3.0 * (1 + 2.1e-5), None), (1.0, 2.5, None)],
    ],
)
def test_exact_factor_is_a_whole_number_of_2_to_4096(a: float, b: float, factor: int | None) -> None:
    assert compare_runs._exact_factor(a, b) == factor


def write_run(root: Path, steps: list[dict[str, Any]], world: int = 1, **changes: Any) -> RunFolder:
    folder = RunFolder(root)
    record = changes.pop("record", {})
    write_json(folder.run_json, run_json(name=root.name, **changes))
    write_json(folder.record_json, record_json(**{"step": len(steps), **record}))
    folder.events.mkdir()
    for rank in range(world):
        lines = [event("start", rank=rank, world_size=world, place={"dp": rank})]
        lines += [event("step", **{"step": number, **step}) for number, step in enumerate(steps, 1)]
        folder.rank_events(rank).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


STEPS = [{"loss": 1.0, "loss_mean": 1.0, "sample_ids": [1, 2]}, {"loss": 0.5, "loss_mean": 0.5, "sample_ids": [3]}]


def compared(tmp_path: Path, other: list[dict[str, Any]], **changes: Any) -> compare_runs.Comparison:
    first = write_run(tmp_path / "a", STEPS, config={"x": 1}, record={"weights_sha256": "0" * 64})
    second = write_run(tmp_path / "b", other, **{"config": {"x": 1}, "record": {"weights_sha256": "0" * 64}, **changes})
    return compare_runs.compare_runs(first, second, 1e-5)


def test_equal_runs_are_bitwise_equal(tmp_path: Path) -> None:
    found = compared(tmp_path, STEPS)
    assert (found.verdict, found.exit_code, found.notes, found.common_steps) == ("bitwise equal", 0, [], None)
    assert found.titles[0] == f"{tmp_path}/a: completed, 2 steps, world 1"
    assert {finding.what: finding.outcome for finding in found.findings} == {
        "sample order": "equal",
        "loss of each rank": "equal",
        "gradient norm": "equal",
        "learning rate": "equal",
        "tokens": "equal",
        "held-out loss": "not compared",
        "checkpoints": "not compared",
        "final weights": "equal",
    }
    assert found.findings[0].detail == "same samples in each of 2 steps"


def test_shorter_run_is_compared_over_its_own_steps(tmp_path: Path) -> None:
    found = compared(tmp_path, STEPS[:1], config={"x": 2, "name": "other"})
    assert found.verdict == "bitwise equal over the first 1 steps; weights were not compared"
    assert found.notes == ["x: 1 in A, 2 in B", "name: None in A, other in B", "A has 2 steps, B has 1"] or (
        found.notes == ["x: 1 in A, 2 in B", "A has 2 steps, B has 1"]
    )
    assert found.findings[-1].detail == "the hashes are from step 2 and step 1"


def test_different_runs_say_where_they_part(tmp_path: Path) -> None:
    steps = [STEPS[0], {**STEPS[1], "loss": 0.25, "sample_ids": [4]}]
    found = compared(tmp_path, steps, record={"weights_sha256": "1" * 64})
    assert (found.verdict, found.exit_code) == ("different", 1)
    details = {finding.what: finding.detail for finding in found.findings}
    assert details["sample order"] == "diverges at step 2; samples in only one run: 3, 4"
    assert details["loss of each rank"] == "diverges at step 2, rank 0: 0.5 and 0.25, relative 5.0e-01"
    assert details["final weights"] == "hashes 000000000000… and 111111111111…: some bits differ"
    assert found.findings[-1].outcome == "different"


def test_hashes_alone_never_make_runs_different(tmp_path: Path) -> None:
    found = compared(tmp_path, STEPS, record={"weights_sha256": "1" * 64})
    assert (found.findings[-1].outcome, found.verdict) == ("close", "within tolerance (rtol 1e-05)")


def test_runs_without_anything_in_common_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="have no step and no checkpoint in common"):
        compared(tmp_path, [])


@pytest.mark.parametrize(("num_settings", "notes"), [(40, 40), (41, 41), (43, 41)])
def test_at_most_40_settings_are_listed(tmp_path: Path, num_settings: int, notes: int) -> None:
    found = compared(tmp_path, STEPS, config={"x": 1, **{f"s{number}": 1 for number in range(num_settings)}})
    assert len(found.notes) == notes
    assert (found.notes[-1] == f"{num_settings - 40} more settings differ") == (num_settings > 40)


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (4, "; that of B is exactly 4.0 times the other, as many as ranks: one run sums what the other averages"),
        (-4, "; that of A is exactly 4.0 times the other, as many as ranks: one run sums"),
        (2, "; that of B is exactly 2.0 times the other, as many as ranks: one run sums"),  # 4 against 2
        (8, "; that of B is exactly 8.0 times the other, as many as gradient accumulation steps: one run sums"),
        (3, "; that of B is exactly 3.0 times the other"),
        (None, ""),
    ],
)
def test_factor_between_runs_is_named(tmp_path: Path, factor: int | None, words: str) -> None:
    sides = [
        compare_runs._read(write_run(tmp_path / str(world), STEPS, world, config={"train": {"grad_accum": 8}}))
        for world in (4, 2)
    ]
    findings = [Finding("loss", "different", "", factor)]
    compare_runs._name_factors(findings, *sides)
    assert findings[0].detail.startswith(words)
    assert bool(findings[0].detail) == bool(words)
    assert ("as many as" in findings[0].detail) == ("as many as" in words)


# ---- tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "squares", "found"),
    [
        ([1.0, 2.0], [1.0, 2.0], False, None),
        ([3.0, 4.0], [3.0, 4.5], False, "relative 9.2e-02, largest element difference 5.0e-01"),
        ([0.0], [0.0], False, None),
        ([0.0], [-0.0], False, "relative 0.0e+00, largest element difference 0.0e+00"),
        ([9.0], [16.0], True, "relative 2.5e-01 of the roots, largest element difference 1.0e+00"),
        ([9.0], [16.0], False, "relative 4.4e-01, largest element difference 7.0e+00"),
        ([1.0], [math.nan], False, "NaN or infinite in one of the runs"),
        ([1.0], [-1.0], True, "NaN or infinite in one of the runs"),
        ([1.0], [1.0, 1.0], False, "float64 (1,) in A, float64 (2,) in B"),
    ],
)
def test_difference_of_two_tensors_is_relative_to_the_larger(
    left: list[float], right: list[float], squares: bool, found: str | None
) -> None:
    difference = weights._tensor_difference(np.array(left), np.array(right), squares)
    assert (None if difference is None else difference[1]) == found
    if found and not found.startswith("relative"):
        assert difference is not None
        assert difference[0] == math.inf


def test_tensors_are_ordered_as_in_the_model() -> None:
    names = [
        *("model.norm.weight", "model.layers.10.self_attn.q_proj.weight", "model.layers.2.mlp.up_proj.weight"),
        *("model.layers.2.self_attn.v_proj.weight", "lm_head.weight", "model.embed_tokens.weight"),
    ]
    assert sorted(names, key=weights._model_order) == [names[5], names[3], names[2], names[1], names[4], names[0]]
    assert [weights._layer(name) for name in (names[1], names[0])] == ["model.layers.10", "model.norm.weight"]


# ---- drawn steps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 10])
def test_few_steps_are_all_drawn(count: int) -> None:
    assert charts.pick_steps(np.arange(float(count)), 10).tolist() == list(range(count))


def test_of_many_steps_the_ends_and_each_intervals_extremes_are_drawn() -> None:
    values = np.zeros(100)
    values[[17, 60]] = [9.0, -9.0]
    values[25:50] = np.nan
    picked = charts.pick_steps(values, 10).tolist()
    assert {0, 17, 25, 60, 99} <= set(picked)
    assert picked == sorted(set(picked))
    assert len(picked) <= 10
    assert charts.MAX_POINTS == 2000


@pytest.mark.parametrize(
    ("skipped", "text"),
    [
        ([], "No gradient overflowed"),
        ([3], "1 of 1,000 steps overflowed and were skipped; each halved the scale: 3"),
        (list(range(12)), "12 of 1,000 steps overflowed and were skipped; each halved the scale: "
         + ", ".join(map(str, range(12)))),
        (list(range(13)), "13 of 1,000 steps overflowed and were skipped; each halved the scale: "
         + ", ".join(map(str, range(12))) + ", …"),
    ],
)  # fmt: skip
def test_skipped_steps_are_counted_and_twelve_are_named(skipped: list[int], text: str) -> None:
    assert charts._skipped_steps(np.array(skipped, np.int64), 1000) == text


def test_chart_says_how_many_steps_stand_for_one_point() -> None:
    for num_steps, more in ((2000, ""), (5000, ". 5,000 steps; the chart shows the lowest and highest of every 5")):
        assert (
            charts._chart("n", "t", "", "note", "exact", np.zeros(0, np.int64), [], num_steps)["note"] == f"note{more}"
        )


def test_values_are_those_of_their_steps_and_rounded() -> None:
    found = charts._at(np.array([1, 2, 3, 9]), np.array([2, 3, 4]), np.array([1.0, 2.0, 3.0]))
    assert charts._rounded(found) == [None, 1.0, 2.0, None]
    assert charts._rounded([math.inf, 1.23456789, 123456789.0]) == [None, 1.23457, 123457000.0]
    assert charts._rounded(charts._at(np.array([1]), np.zeros(0, np.int64), np.zeros(0))) == [None]


@pytest.mark.parametrize(
    ("width_ms", "labels"),
    [
        (4.0, ["0", "1", "2", "3", "4"]),
        (7.9, ["0", "1", "2", "3", "4", "5", "6", "7"]),
        (8.0, ["0", "2", "4", "6", "8"]),
        (20.0, ["0", "5", "10", "15", "20"]),
        (39.0, ["0", "5", "10", "15", "20", "25", "30", "35"]),
        (40.0, ["0", "10", "20", "30", "40"]),
        (0.5, ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]),
    ],
)
def test_ticks_are_four_to_eight_round_times(width_ms: float, labels: list[str]) -> None:
    ticks = timeline._ticks(int(width_ms * 1e6))
    assert [tick["label"] for tick in ticks] == labels
    gap = float(labels[1])
    assert [tick["left"] for tick in ticks] == [round(100 * i * gap / width_ms, 3) for i in range(len(labels))]


@pytest.mark.parametrize(
    ("durations", "aside", "typical"),
    [
        ([5], [], (1, 1)),
        ([5, 6], [], (1, 2)),
        ([9, 5, 6], [], (2, 3)),
        ([9, 5, 6, 50, 1], [], (4, 5)),  # the sums are 14, 11, 56, 51, and the first pair does not count
        ([9, 5, 6, 7, 1], [3], (4, 5)),
        ([9, 5, 6, 7, 1], [2, 4], (2, 3)),  # there is none without an evaluation
    ],
)
def test_typical_steps_have_the_median_time_and_no_evaluation(
    durations: list[float], aside: list[int], typical: tuple[int, int]
) -> None:
    steps = np.arange(1, len(durations) + 1)
    assert timeline._typical(steps, np.array(durations, float), np.array(aside, np.int64)) == typical


# ---- the list of runs ------------------------------------------------------------------------------------------------


def row(**changes: Any) -> RunRow:
    empty = dict.fromkeys(("step", "num_steps", "world_size", "loss", "heldout_loss", "tokens_per_s", "created"))
    return RunRow(**{"name": "a", "status": "died", **empty, **changes})


@pytest.mark.parametrize(
    ("run", "cells"),
    [
        (row(), ["a", "died", "", "", "", "", "", ""]),
        (
            row(step=3, num_steps=8, world_size=4, loss=1.23456, heldout_loss=0.0, tokens_per_s=1234.0),
            ["a", "died", "3/8", "4", "1.235", "0.000", "1.23 k", ""],
        ),
        (row(step=0), ["a", "died", "0/?", "", "", "", "", ""]),
        (row(num_steps=8, is_simulated=True), ["a", "died, simulated", "0/8", "", "", "", "", ""]),
        (row(created="no time"), ["a", "died", "", "", "", "", "", "no time"]),
    ],
)
def test_row_shows_what_is_known(run: RunRow, cells: list[str]) -> None:
    table = runs_table([run])
    assert [str(next(iter(column.cells))) for column in table.columns] == cells
    assert when(None) == ""


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    for name, created in (("b", "2026-01-01T00:00:00+00:00"), ("a", "2026-01-02T00:00:00+00:00")):
        write_run(tmp_path / name, STEPS, created=created)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "run.json").write_text("{")
    rows = list_runs(tmp_path)
    assert [(found.name, found.status, found.step) for found in rows] == [
        *[("a", "completed", 2), ("b", "completed", 2), ("c", "unreadable", None)]
    ]
