"""Comparisons of two runs: equal, within tolerance, different; and the first difference."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import Synthetic, make_run, weights, write_checkpoint

from frog.core.errors import RunError
from frog.core.files import write_json
from frog.core.runs.folder import RunFolder
from frog.observe.view.compare_runs import Comparison, Finding, compare_runs


def findings(comparison: Comparison) -> dict[str, Finding]:
    return {finding.what: finding for finding in comparison.findings}


def change_step(folder: RunFolder, rank: int, step: int, **fields: object) -> None:
    """Rewrite one step event of one rank."""
    path = folder.rank_events(rank)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for event in lines:
        if event["event"] == "step" and event["step"] == step:
            event.update(fields)
    path.write_text("".join(json.dumps(event) + "\n" for event in lines))


def test_identical_runs_are_bitwise_equal(tmp_path: Path) -> None:
    comparison = compare_runs(make_run(tmp_path / "a"), make_run(tmp_path / "b"), 1e-5)
    assert {finding.outcome for finding in comparison.findings} == {"equal"}
    assert comparison.verdict == "bitwise equal"
    assert comparison.exit_code == 0


def test_resumed_run_equals_uninterrupted_run(tmp_path: Path) -> None:
    """Repeated steps count once, and the worlds agree although the run was started twice."""
    resumed = dataclasses.replace(Synthetic(), segments=[(4, 0, 45), (4, 40, 60)])
    comparison = compare_runs(make_run(tmp_path / "a"), make_run(tmp_path / "b", resumed), 1e-5)
    assert comparison.verdict == "bitwise equal"
    assert "bit for bit over 60 steps" in findings(comparison)["loss of each rank"].detail


def test_different_worlds_are_compared_by_mean_loss(tmp_path: Path) -> None:
    comparison = compare_runs(
        make_run(tmp_path / "a"), make_run(tmp_path / "b", Synthetic(segments=[(2, 0, 60)])), 1e-5
    )
    assert findings(comparison)["sample order"].outcome == "equal"
    assert "the worlds or their meshes differ" in findings(comparison)["loss"].detail
    assert comparison.exit_code == 0


def test_numbers_that_neither_run_recorded_are_not_called_equal(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, Synthetic(segments=[(1, 0, 6)])) for name in ("a", "b")]
    for run in runs:
        for step in range(1, 7):
            change_step(run, 0, step, grad_norm=None)
    found = findings(compare_runs(*runs, 0.0))["gradient norm"]
    assert (found.outcome, found.detail) == ("not compared", "neither run has a number")


def test_learning_rates_and_tokens_are_compared(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, Synthetic(segments=[(1, 0, 6)])) for name in ("a", "b")]
    change_step(runs[1], 0, 4, learning_rate=1.0, tokens=1024)
    found = findings(compare_runs(*runs, 1e-5))
    assert found["learning rate"].outcome == found["tokens"].outcome == "different"
    assert "diverges at step 4" in found["learning rate"].detail
    assert "2048 and 1024" in found["tokens"].detail
    for run in runs:
        for step in range(1, 7):
            change_step(run, 0, step, learning_rate=None, tokens=0)
    assert not {"learning rate", "tokens"} & findings(compare_runs(*runs, 1e-5)).keys()


@pytest.mark.parametrize(
    ("factor", "world", "words"),
    [
        (4.0, 4, "that of B is exactly 4.0 times the other, as many as ranks: one run sums what the other averages"),
        (0.5, 4, "that of A is exactly 2.0 times the other"),
        (3.0, 1, "that of B is exactly 3.0 times the other"),
        (2.01, 2, None),
    ],
)
def test_exact_factor_between_the_runs_is_named(tmp_path: Path, factor: float, world: int, words: str | None) -> None:
    runs = [make_run(tmp_path / name, Synthetic(segments=[(world, 0, 6)])) for name in ("a", "b")]
    norm = 0.4 + 2 * float(np.exp(-1 / 15))
    for step in range(1, 7):
        change_step(runs[1], 0, step, grad_norm=norm * factor * (1.0 if step == 1 else 1.1))
    detail = findings(compare_runs(*runs, 1e-5))["gradient norm"].detail
    assert (words in detail) if words else ("exactly" not in detail)


def test_diverging_rank_is_named_with_its_step(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    change_step(b, rank=0, step=40, loss=9.0)
    change_step(b, rank=2, step=37, loss=8.0)
    change_step(b, rank=3, step=37, loss=8.0)
    comparison = compare_runs(a, b, 1e-5)
    finding = findings(comparison)["loss of each rank"]
    assert finding.outcome == "different"
    assert finding.detail.startswith("diverges at step 37, rank 2:")
    assert comparison.verdict == "different"
    assert comparison.exit_code == 1


def test_small_difference_is_within_tolerance_set_by_rtol(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b", Synthetic(loss_noise=1e-6, noise_from_step=30))
    comparison = compare_runs(a, b, 1e-5)
    finding = findings(comparison)["loss of each rank"]
    assert finding.outcome == "close"
    assert finding.detail.startswith("first differs at step 30, rank 0:")
    # Different hashes alone do not make runs different if their numbers agree.
    assert findings(comparison)["final weights"].outcome == "close"
    assert comparison.verdict == "within tolerance (rtol 1e-05)"
    assert comparison.exit_code == 0
    assert compare_runs(a, b, 1e-8).exit_code == 1


def test_nan_in_only_one_run_is_different(tmp_path: Path) -> None:
    kind = Synthetic(loss_noise=float("nan"), noise_from_step=50)
    a, b, c = make_run(tmp_path / "a"), make_run(tmp_path / "b", kind), make_run(tmp_path / "c", kind)
    assert "diverges at step 50, rank 0" in findings(compare_runs(a, b, 1e-5))["loss of each rank"].detail
    assert compare_runs(b, c, 1e-5).verdict == "bitwise equal"


def test_different_samples_are_different_although_losses_agree(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    change_step(b, rank=1, step=12, sample_ids=[1, 2, 3, 4, 5, 6, 7, 999])
    finding = findings(compare_runs(a, b, 1e-5))["sample order"]
    assert finding.outcome == "different"
    assert finding.detail.startswith("diverges at step 12")


def test_step_not_reported_by_all_ranks_is_not_compared_by_samples(tmp_path: Path) -> None:
    """A kill between two ranks' reports leaves the step's samples unknown, which is not a difference."""
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    path = b.rank_events(1)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"event":"step","step":60' not in line))
    finding = findings(compare_runs(a, b, 1e-5))["sample order"]
    assert (finding.outcome, finding.detail) == ("equal", "same samples in each of 59 steps")


def test_first_different_tensor_is_named(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b", Synthetic(checkpoint_every=None))
    name = "model/model.layers.1.mlp.up_proj.weight"
    for step, change in ((20, 0.0), (40, 1e-9), (60, 0.5)):
        tensors = weights(step, Synthetic())
        tensors[name] = tensors[name].copy()
        tensors[name][3, 2] += np.float32(change) * (tensors[name][3, 2] if change < 1e-3 else 1)
        tensors[name][0, 0] = np.nextafter(tensors[name][0, 0], np.float32(1)) if change else tensors[name][0, 0]
        write_checkpoint(b, step, 2, tensors)
    finding = findings(compare_runs(a, b, 1e-5))["checkpoints"]
    assert finding.outcome == "different"
    assert f"first at step 60, {name}" in finding.detail
    assert "largest element difference 5.0e-01" in finding.detail
    assert f"first at step 40, {name}" in findings(compare_runs(a, b, 1e6))["checkpoints"].detail


def test_second_moments_are_compared_by_square_roots(tmp_path: Path) -> None:
    a, b, negative = (make_run(tmp_path / name, Synthetic(checkpoint_every=None)) for name in ("a", "b", "negative"))
    squares = np.linspace(1e-8, 1e-2, 97, dtype=np.float32)
    name = "optimizer/exp_avg_sq/model.norm.weight"
    for run, values in ((a, squares), (b, squares * np.float32(1.0002)), (negative, -squares)):
        write_checkpoint(run, 20, 1, {**weights(20, Synthetic()), name: values})
    for rtol, outcome in ((0.9e-4, "different"), (1.1e-4, "close")):
        finding = findings(compare_runs(a, b, rtol))["checkpoints"]
        assert (finding.outcome, f"{name}: relative 1.0e-04 of the roots" in finding.detail) == (outcome, True)
    assert "NaN or infinite" in findings(compare_runs(a, negative, 1.0))["checkpoints"].detail


def test_tensor_missing_in_one_run_is_different(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b", Synthetic(checkpoint_every=None))
    tensors = weights(20, Synthetic())
    del tensors["model/model.norm.weight"]
    write_checkpoint(b, 20, 1, tensors)
    assert "model/model.norm.weight: only in A" in findings(compare_runs(a, b, 1.0))["checkpoints"].detail


def test_damaged_checkpoint_is_skipped_and_named(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    (b.checkpoint(40) / "manifest.json").unlink()
    comparison = compare_runs(a, b, 1e-5)
    assert findings(comparison)["checkpoints"].detail == "bit for bit, after steps 20, 60"
    assert any("step_00000040" in note for note in comparison.notes)


def test_runs_of_different_length_are_compared_over_common_steps(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b", Synthetic(segments=[(4, 0, 30)], eval_every=10))
    comparison = compare_runs(a, b, 1e-5)
    assert comparison.verdict == "bitwise equal over the first 30 steps"
    assert "A has 60 steps, B has 30" in comparison.notes
    assert "train.steps: 60 in A, 30 in B" in comparison.notes
    assert findings(comparison)["final weights"].outcome == "not compared"


def test_equal_losses_without_weights_do_not_claim_equal_weights(tmp_path: Path) -> None:
    kind = Synthetic(checkpoint_every=None, status=None)
    comparison = compare_runs(make_run(tmp_path / "a", kind), make_run(tmp_path / "b", kind), 1e-5)
    assert comparison.verdict == "bitwise equal; weights were not compared"


def test_different_final_weights_are_not_bitwise_equal(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    record = json.loads(b.record_json.read_text())
    write_json(b.record_json, {**record, "weights_sha256": "0" * 64})
    assert compare_runs(a, b, 1e-5).outcome == "close"


def test_runs_without_common_steps_are_an_error(tmp_path: Path) -> None:
    kind = Synthetic(segments=[(1, 0, 0)], checkpoint_every=None, eval_every=None)
    with pytest.raises(RunError, match="no step and no checkpoint in common"):
        compare_runs(make_run(tmp_path / "a"), make_run(tmp_path / "b", kind), 1e-5)


def test_different_settings_are_listed_briefly(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a", Synthetic()), make_run(tmp_path / "b", Synthetic())
    found = json.loads(a.run_json.read_text())
    found["config"] |= {"long": "x" * 100_000} | {f"key{number}": number for number in range(5000)}
    write_json(a.run_json, found)
    comparison = compare_runs(a, b, 1e-6)
    assert any(note.startswith("long: xxx") and note.endswith("None in B") for note in comparison.notes)
    assert sum(map(len, comparison.notes)) < 20_000
