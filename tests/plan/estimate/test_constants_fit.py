"""`frog plan fit`: constants of one's own runs, and their file."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from frog.cli import main
from frog.core.errors import ConfigError
from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.fit import _EFFICIENCIES, _TIGHT, constants_text, gauss_newton, read_constants
from frog.plan.estimate.predict import predict_rows, read_table

ROOT = Path(__file__).parents[3]
PLANNED = ROOT / "config" / "runs_to_plan.csv"
SLOWER = replace(FITTED, product=0.8 * FITTED.product, network=0.7 * FITTED.network)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return runs as a machine with slower products and a slower network would take them."""
    rows = [
        {**row, "row_id": f"{row['row_id']}-{size}", "global_batch": str(int(row["global_batch"]) * size)}
        for row in read_table(PLANNED)
        for size in (1, 2, 4)
    ]
    path = tmp_path / "own.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "step_time_s"])
        writer.writeheader()
        for row, predicted in zip(rows, predict_rows(rows, SLOWER), strict=True):
            writer.writerow({**row, "step_time_s": predicted.step_time_s})
    return path


def test_fit_finds_slower_products_and_network(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = table.with_name("constants.toml")
    assert main(["plan", "fit", str(table), "--to", str(to)]) == 0
    out = capsys.readouterr().out
    fitted = read_constants(to)
    assert fitted.product == pytest.approx(SLOWER.product, rel=0.06)
    assert fitted.network < 0.9 * FITTED.network
    held_out = next(line for line in out.splitlines() if "held out" in line).split()
    assert float(held_out[-1]) < 3 < float(held_out[-2])
    words = [str(ROOT / "config" / "llama3_8b.json"), "--cluster", "h100x8", "--constants", str(to)]
    assert main(["plan", *words, "--explain"]) == 0
    assert f"792.1 * {fitted.product}" in capsys.readouterr().out
    assert main(["plan", "predict", str(PLANNED), "--constants", str(to)]) == 0
    first = capsys.readouterr().out.splitlines()[1].split(",")
    assert float(first[1]) > 20.4841


def test_fit_says_which_of_two_measured_times_it_takes(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "target_step_s"])
        writer.writeheader()
        writer.writerows({**row, "target_step_s": row["step_time_s"], "step_time_s": "1e5"} for row in rows)
    assert main(["plan", "fit", str(table)]) == 0
    out = capsys.readouterr().out
    assert f"{len(rows)} rows have both target_step_s and step_time_s: target_step_s is taken" in out
    held_out = next(line for line in out.splitlines() if "held out" in line).split()
    assert float(held_out[-1]) < 3


def test_number_at_its_limit_does_not_stop_the_others() -> None:
    def residuals(at: np.ndarray) -> np.ndarray:
        # The data want the first number at its limit, 0, or above; a weaker prior wants -1. The second one is free.
        return np.array([3 - 5 * min(at[0], 0.0), at[0] + 1, at[1] - 1])

    found = gauss_newton(residuals, np.zeros(2), np.array([0.0, math.inf]))
    assert found == pytest.approx([0, 1], abs=1e-3)
    below = gauss_newton(lambda at: np.array([at[0] + 1, at[1] - 1]), np.zeros(2), np.array([0.0, math.inf]))
    assert below == pytest.approx([-1, 1], abs=1e-3), "it leaves the limit where the data want that"


@pytest.mark.parametrize("name", vars(FITTED))
def test_fitted_constant_is_within_two_standard_deviations_of_its_prior(name: str) -> None:
    prior, fitted = getattr(Constants(), name), getattr(FITTED, name)
    sigma = 0.15 if name in _TIGHT else 0.5
    assert abs(math.log(fitted / prior)) <= 2 * sigma
    assert name not in _EFFICIENCIES or max(prior, fitted) <= 1, "a fraction of a data sheet's rate"


def test_table_without_step_times_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "fit", str(PLANNED)]) == 2
    assert "0 runs to fit on, of 4 rows" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("prodct = 0.9", "prodct: unknown key; did you mean product?"),
        ("product = 1.2", "product=1.2: must be above 0 and at most 1"),
        ("tile_s = 0", "tile_s=0: must be above 0"),
        ("network = 'fast'", "network='fast': must be above 0"),
        ("jitter = nan", "jitter=nan: must be above 0"),
    ],
)
def test_wrong_constant_is_named(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "constants.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_constants(path)
    assert problem in str(raised.value)


def test_written_constants_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "constants.toml"
    path.write_text(constants_text(SLOWER, "a test"))
    assert vars(read_constants(path)) == pytest.approx(vars(SLOWER), rel=1e-5)
