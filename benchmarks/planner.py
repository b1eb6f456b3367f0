"""Errors of the planner's step times against published runs, and the fit of its constants.

    python benchmarks/planner.py                  errors with the committed constants, by source
    python benchmarks/planner.py --fit            fit the constants again, and print them
    python benchmarks/planner.py --cross          leave one source out, then one kind of GPU
    python benchmarks/planner.py --data FOLDER    other tables of the same schema

The rows in benchmarks/measured_runs.csv restate figures of the publications that it names. A fit minimizes robust
errors of the logarithm; every source has the same weight, whatever its number of rows, and every constant is drawn to
its prior, which is the default in constants.py. One row in three is never fitted on: the column `held out`.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from frog.core.errors import ConfigError
from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.predict import predict_row
from frog.plan.estimate.rows import PlannedRun, read_row
from frog.plan.estimate.step_time import StepModel

_DATA = Path(__file__).with_name("measured_runs.csv")
_NAMES = [field.name for field in fields(Constants)]
_PRIOR_SIGMA = 0.5
"""Standard deviation of a constant's logarithm around its prior."""
_EFFICIENCY_SIGMA = 0.15
"""The same for fractions of a data sheet's rate, which physics limits to one."""
_EFFICIENCIES = {"product", "product_fp8", "attention", "memory", "link", "network", "hidden", "hidden_tensor"}
_TIGHT = {*_EFFICIENCIES, "step_s"}
"""step_s too: it would take up any error of short steps."""
_HUBER = 0.1
"""Error of the logarithm beyond which a row pulls no harder."""
_ROW_SIGMA = 0.05
_MOST_ROWS = 120
"""Rows of one source that a fit uses."""
_ROUNDS = 8
_PEERS = {"vtrain_multi": "Calculon 12.9, vTrain 14.7", "vtrain_single": "Calculon 38.9, vTrain 8.4"}
"""Errors of other planners on the same rows, in per cent: Bang et al. 2024."""


@dataclass(frozen=True)
class Measured:
    """A published run that can be predicted."""

    row_id: str
    source: str
    gpu: str
    table: str
    quality: str
    run: PlannedRun
    step_s: float

    @property
    def is_held_out(self) -> bool:
        return zlib.crc32(self.row_id.encode()) % 3 == 0

    def error(self, constants: Constants) -> float:
        """Return the logarithm of predicted over measured."""
        run = self.run
        return math.log(StepModel(run.model, run.layout, run.cluster, constants).step.total / self.step_s)


def read_measured(path: Path) -> list[Measured]:
    """Read the rows of quality A or B that have a step time and can be predicted."""
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    found = []
    for file in files:
        with file.open(newline="") as lines:
            for row in csv.DictReader(lines):
                if row["scope"] != "step" or not row["target_step_s"] or row["quality"] not in ("A", "B"):
                    continue
                try:
                    run = read_row(row)
                except ConfigError:
                    continue
                key = (row["source_id"], row["gpu"], row["table"], row["quality"])
                found.append(Measured(row["row_id"], *key, run, float(row["target_step_s"])))
    return found


# ---- the fit -------------------------------------------------------------------------------------------------------


def fit(rows: Sequence[Measured], start: Constants = FITTED) -> Constants:
    """Fit the constants by Gauss-Newton on their logarithms, with damping, equal weights of sources, and priors."""
    by_source = defaultdict(list)
    for row in rows:
        by_source[row.source].append(row)
    chosen = [row for group in by_source.values() for row in group[:: math.ceil(len(group) / _MOST_ROWS)]]
    counts = {name: sum(row.source == name for row in chosen) for name in by_source}
    weights = np.array([math.sqrt(10 / counts[row.source]) / _ROW_SIGMA for row in chosen])
    prior = _logs(Constants())
    sigma = np.array([_EFFICIENCY_SIGMA if name in _TIGHT else _PRIOR_SIGMA for name in _NAMES])

    def residuals(logs: np.ndarray) -> np.ndarray:
        constants = _from_logs(logs)
        errors = np.array([row.error(constants) for row in chosen])
        robust = np.sign(errors) * np.sqrt(2 * _HUBER**2 * (np.sqrt(1 + (errors / _HUBER) ** 2) - 1))
        return np.concatenate([robust * weights, (logs - prior) / sigma])

    return _from_logs(_gauss_newton(residuals, _logs(start)))


def _gauss_newton(residuals: Callable[[np.ndarray], np.ndarray], at: np.ndarray) -> np.ndarray:
    """Minimize the sum of squares, with Levenberg and Marquardt's damping."""
    damping, now = 1e-2, residuals(at)
    for _ in range(_ROUNDS):
        steps = np.eye(len(at)) * 0.01
        jacobian = np.stack([(residuals(at + step) - now) / 0.01 for step in steps], axis=1)
        square, slope = jacobian.T @ jacobian, jacobian.T @ now
        while damping < 1e6:
            tried = at - np.linalg.solve(square + damping * np.diag(np.diag(square)), slope)
            if (new := residuals(tried)) @ new < now @ now:
                at, now, damping = tried, new, damping / 3
                break
            damping *= 4
    return at


def _logs(constants: Constants) -> np.ndarray:
    return np.log([getattr(constants, name) for name in _NAMES])


def _from_logs(logs: np.ndarray) -> Constants:
    values = dict(zip(_NAMES, np.exp(logs).tolist(), strict=True))
    limits = dict.fromkeys(_EFFICIENCIES, 1.0)
    return Constants(**{name: min(value, limits.get(name, math.inf)) for name, value in values.items()})


# ---- errors --------------------------------------------------------------------------------------------------------


def mape(rows: Iterable[Measured], constants: Constants) -> float:
    """Return the mean absolute error of the step time, in per cent."""
    return 100 * statistics.mean(abs(math.expm1(row.error(constants))) for row in rows)


def bias(rows: Iterable[Measured], constants: Constants) -> float:
    return 100 * statistics.mean(math.expm1(row.error(constants)) for row in rows)


def spearman(rows: Sequence[Measured], constants: Constants) -> float | None:
    """Return the rank correlation of measured and predicted time per token; None for fewer than four rows."""
    if len(rows) < 4:
        return None
    tokens = [row.run.layout.global_batch * row.run.layout.seq_len / row.run.layout.num_gpus for row in rows]
    measured = np.array([row.step_s for row in rows]) / tokens
    predicted = measured * np.exp([row.error(constants) for row in rows])
    ranks = [np.argsort(np.argsort(values)) for values in (measured, predicted)]
    return float(np.corrcoef(*ranks)[0, 1])


def print_errors(rows: Sequence[Measured], constants: Constants, held_out: Constants) -> None:
    """Print a line for each source. held_out: constants fitted without the rows that are held out."""
    print(f"{'source':<20} {'rows':>5} {'MAPE %':>7} {'bias %':>7} {'held out %':>10} {'Spearman':>8}  peers, %")
    for source, group in _groups(rows, lambda row: row.source).items():
        unseen = [row for row in group if row.is_held_out]
        rank = spearman(group, constants)
        print(
            f"{source:<20} {len(group):>5} {mape(group, constants):>7.1f} {bias(group, constants):>+7.1f} "
            f"{mape(unseen, held_out) if unseen else math.nan:>10.1f} "
            f"{'-' if rank is None else f'{rank:.3f}':>8}  {_PEERS.get(source, '')}"
        )


def print_memory_errors(path: Path) -> None:
    """Print the errors of the memory on the rows of quality A or B that have one."""
    print(f"\n{'memory':<20} {'rows':>5} {'MAPE %':>7} {'bias %':>7}")
    errors = defaultdict(list)
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["memory_gib"] and row["quality"] in ("A", "B"):
                predicted = predict_row(row).memory_gib
                errors[row["source_id"]].append(100 * ((predicted or 0) / float(row["memory_gib"]) - 1))
    for source, found in errors.items():
        print(f"{source:<20} {len(found):>5} {statistics.mean(map(abs, found)):>7.1f} {statistics.mean(found):>+7.1f}")


def print_ranking(rows: Sequence[Measured], constants: Constants) -> None:
    """Print how well layouts of one model on one cluster, with one batch, are ranked, and what the best pick costs."""
    print(f"\n{'layouts of one run':<44} {'layouts':>7} {'Spearman':>8} {'pick slower %':>13}")
    for name, group in _groups(rows, _same_run).items():
        if (rank := spearman(group, constants)) is None or len({row.run.layout for row in group}) < 4:
            continue
        predicted = [row.step_s * math.exp(row.error(constants)) for row in group]
        picked = group[int(np.argmin(predicted))].step_s
        slower = 100 * (picked / min(row.step_s for row in group) - 1)
        print(f"{name:<44} {len(group):>7} {rank:>8.3f} {slower:>13.1f}")


def _same_run(row: Measured) -> str:
    model, layout = row.run.model, row.run.layout
    size = f"{model.num_parameters() / 1e9:.1f}B, {layout.num_gpus} GPUs"
    return f"{row.source}, {size}, {layout.global_batch} x {layout.seq_len}"


def cross_validate(rows: Sequence[Measured], key: Callable[[Measured], str], start: Constants) -> None:
    """Print the errors on each group with constants fitted on the others: mean, bias, nine of ten are below."""
    for name, group in _groups(rows, key).items():
        constants = fit([row for row in rows if key(row) != name], start)
        by_source = [mape(part, constants) for part in _groups(group, lambda row: row.source).values()]
        error = statistics.mean(by_source)
        worst = np.quantile([100 * abs(math.expm1(row.error(constants))) for row in group], 0.9)
        print(f"{name:<24} {len(group):>5} {error:>7.1f} {bias(group, constants):>+7.1f} {worst:>7.1f}", flush=True)


def _groups(rows: Iterable[Measured], key: Callable[[Measured], str]) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return dict(sorted(found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=_DATA)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--cross", action="store_true")
    args = parser.parse_args()
    rows = read_measured(args.data)
    constants = fit(rows) if args.fit else FITTED
    seen = fit([row for row in rows if not row.is_held_out], constants)
    print_errors(rows, constants, seen)
    print_ranking(rows, constants)
    if args.data.is_file():
        print_memory_errors(args.data)
    if args.fit:
        for name in _NAMES:
            print(f"    {name}: float = {getattr(constants, name):.4g}")
    if args.cross:
        print("\nfitted on the other sources")
        cross_validate(rows, lambda row: row.source, constants)
        print("\nfitted on the other GPUs")
        cross_validate(rows, lambda row: row.gpu, constants)


if __name__ == "__main__":
    main()
