"""Errors of the planner's step times against published runs, and the fit of its constants.

    python benchmarks/planner.py                  errors with the committed constants, by source
    python benchmarks/planner.py --fit            fit the constants again, and print them
    python benchmarks/planner.py --cross          leave one source out, then one GPU, then one kind of run
    python benchmarks/planner.py --nearest        write the runs and errors from which the planner takes its ranges
    python benchmarks/planner.py --data FOLDER    other tables of the same schema

The rows in benchmarks/measured_runs.csv restate figures of the publications that it names. `frog/plan/estimate/fit.py`
has the fit. One row in three is never fitted on: the column `held out`.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.fit import Measured, fit, mape, read_measured
from frog.plan.estimate.nearest import MeasuredRun, features_of
from frog.plan.estimate.predict import predict_row

_DATA = Path(__file__).with_name("measured_runs.csv")
_NEAREST = Path(__file__).parents[1] / "src/frog/plan/estimate/measured.csv"
_MOST_NEAREST = 25
_SLOW_NETWORK = 100e9
"""Bytes per second of a node: 800 Gbit/s."""
_PEERS = {"vtrain_multi": "Calculon 12.9, vTrain 14.7", "vtrain_single": "Calculon 38.9, vTrain 8.4"}
"""Errors of other planners on the same rows, in per cent: Bang et al. 2024."""


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


def kind_of_run(row: Measured) -> str:
    """Return a kind of run, of which most sources have only one: what other constants could not learn from it."""
    layout = row.run.layout
    if row.run.model.experts:
        return "mixture of experts"
    if layout.zero == 3:
        return "FSDP"
    if layout.num_gpus <= row.run.cluster.nvlink_domain:
        return "in one NVLink domain"
    slow = row.run.cluster.node_bandwidth < _SLOW_NETWORK
    return "slow network" if slow else "pipeline" if layout.pp > 1 else "other"


def write_nearest(rows: Sequence[Measured], constants: Constants) -> None:
    """Write the sizes and the error of at most `_MOST_NEAREST` runs of each source, for `frog plan`."""
    lines: list[list[object]] = [[field.name for field in fields(MeasuredRun)]]
    for source, group in _groups(rows, lambda row: row.source).items():
        for row in group[:: math.ceil(len(group) / _MOST_NEAREST)]:
            sizes = [f"{value:.6g}" for value in features_of(row.run).values()]
            lines.append([source, row.gpu, *sizes, f"{row.error(constants):.4f}"])
    with _NEAREST.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


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
    parser.add_argument("--nearest", action="store_true")
    args = parser.parse_args()
    rows = read_measured(args.data)
    constants = fit(rows) if args.fit else FITTED
    if args.nearest:
        write_nearest(rows, constants)
        return
    seen = fit([row for row in rows if not row.is_held_out], constants)
    print_errors(rows, constants, seen)
    print_ranking(rows, constants)
    if args.data.is_file():
        print_memory_errors(args.data)
    if args.fit:
        for name, value in vars(constants).items():
            print(f"    {name}={value:.4g},")
    if args.cross:
        print("\nfitted on the other sources")
        cross_validate(rows, lambda row: row.source, constants)
        print("\nfitted on the other GPUs")
        cross_validate(rows, lambda row: row.gpu, constants)
        print("\nfitted on the other kinds of run")
        cross_validate(rows, kind_of_run, constants)


if __name__ == "__main__":
    main()
