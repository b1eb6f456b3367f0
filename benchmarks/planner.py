"""Errors of the planner's step times against published runs, and the fit of its constants.

    python benchmarks/planner.py                  errors with the committed constants, by source
    python benchmarks/planner.py --fit            fit the constants again, and print them
    python benchmarks/planner.py --cross          leave out one source after another
    python benchmarks/planner.py --kinds          leave out one kind of run, program or generation after another
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np

from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.fit import Measured, fit, mape, read_measured
from frog.plan.estimate.nearest import MeasuredRun, features_of
from frog.plan.estimate.predict import predict_row, spread_of

_DATA = Path(__file__).with_name("measured_runs.csv")
_NEAREST = Path(__file__).parents[1] / "src/frog/plan/estimate/measured.csv"
_MOST_NEAREST = 25
_SLOW_NETWORK = 100e9
"""Bytes per second of a node: 800 Gbit/s."""
_PEERS = {"vtrain_multi": "Calculon 12.9, vTrain 14.7", "vtrain_single": "Calculon 38.9, vTrain 8.4"}
"""Errors of other planners on the same rows, in per cent: Bang et al. 2024."""


_FMS = {
    "software": "fms-fsdp",
    "year": "2024",
    "gpu": "A100-80GB",
    "gpus_per_node": "8",
    "nvlink_domain": "8",
    "inter_node_gbit_s": "400",
    "n_gpus": "128",
    "dp": "128",
    "zero": "3",
    "seq_len": "4096",
    "vocab": "32000",
    "precision": "bf16",
    "gated_ffn": "yes",
}
_SHAPE = ("layers", "hidden", "heads", "kv_heads", "ffn", "micro_batch", "global_batch", "zero_group", "recompute")
_NOT_FITTED = {
    "fms-fsdp, 7B, HSDP": ("32 4096 32 32 11008 2 256 8 none", 3760),
    "fms-fsdp, 13B, HSDP": ("40 5120 40 40 13824 1 128 8 none", 1700),
    "fms-fsdp, 34B": ("48 8192 64 8 22016 8 1024 0 full", 772),
    "fms-fsdp, 70B": ("80 8192 64 8 28672 6 768 0 full", 380),
}
"""Llama 2 on 128 A100, in tokens per second of a GPU: the README of foundation-model-stack/fms-fsdp at 0d319983, which
does not state the network; 400 Gbit/s for each node are assumed. No constant is fitted on it."""


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


def print_not_fitted(constants: Constants) -> None:
    """Print the runs on which nothing is fitted: FSDP on a slow network."""
    print(f"\n{'tokens/s of a GPU, not fitted':<30} {'measured':>8} {'planned':>8} {'error %':>8}")
    for name, (words, measured) in _NOT_FITTED.items():
        row = {**_FMS, **dict(zip(_SHAPE, words.split(), strict=True)), "row_id": name}
        step_s = predict_row(row, constants).step_time_s or math.nan
        planned = int(row["micro_batch"]) * int(row["seq_len"]) / step_s
        print(f"{name:<30} {measured:>8,} {planned:>8,.0f} {100 * (planned / measured - 1):>+8.1f}")


def print_judged(path: Path, constants: Constants) -> None:
    """Print the errors of the rows of quality C, on which nothing is fitted, by GPU, precision and kind of model."""
    print(f"\n{'step time, not fitted':<40} {'rows':>3} {'MAPE %':>7} {'bias %':>7} {'in range':>8}")
    judged: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["quality"] == "C":
                predicted = predict_row(row, constants)
                error = (predicted.step_time_s or math.nan) / float(row["target_step_s"]) - 1
                inside = abs(math.log1p(error)) <= math.log1p(predicted.spread)
                kind = "mixtures" if row["experts"] else "dense"
                judged[f"{row['gpu']}, {row['precision']}, {kind}"].append((100 * error, inside))
    for name, found in judged.items():
        errors = [error for error, _ in found]
        absolute, mean = statistics.mean(map(abs, errors)), statistics.mean(errors)
        print(f"{name:<40} {len(found):>3} {absolute:>7.1f} {mean:>+7.1f} {sum(inside for _, inside in found):>8}")


@dataclass(frozen=True)
class LeftOut:
    """What constants that were fitted on all other runs say of some."""

    error: float
    """Mean over sources of their mean absolute errors, in per cent."""
    bias: float
    """Mean over sources of their mean errors, in per cent."""
    worst: float
    """Nine of ten errors are below."""
    inside: float
    """Per cent of the measured times that are in the range of their prediction; each source has the same weight."""


_fits: dict[tuple[frozenset[str], Constants], Constants] = {}


def _fit_once(rows: Sequence[Measured], start: Constants) -> Constants:
    """Fit, or return what the same rows gave before: some kinds of run are a source."""
    key = frozenset(row.row_id for row in rows), start
    if key not in _fits:
        _fits[key] = fit(rows, start)
    return _fits[key]


def errors_left_out(rows: Sequence[Measured], start: Constants) -> dict[str, float]:
    """Return each row's error, the logarithm of predicted over measured, with constants fitted on the other sources."""
    found: dict[str, float] = {}
    for source, group in _groups(rows, lambda row: row.source).items():
        constants = _fit_once([row for row in rows if row.source != source], start)
        found |= {row.row_id: row.error(constants) for row in group}
    return found


def left_out(
    rows: Sequence[Measured], is_out: Callable[[Measured], bool], start: Constants, errors_of: Mapping[str, float]
) -> LeftOut:
    """Fit on the other rows, and take the ranges of these from the errors of the others, by their names."""
    known = [row for row in rows if not is_out(row)]
    constants = _fit_once(known, start)
    among = runs_for_ranges(known, errors_of)
    errors = defaultdict(list)
    inside = defaultdict(list)
    for row in rows:
        if is_out(row):
            error = row.error(constants)
            errors[row.source].append(math.expm1(error))
            inside[row.source].append(abs(error) <= math.log1p(spread_of(row.run, among)))
    every = [error for found in errors.values() for error in found]
    return LeftOut(
        100 * statistics.mean(statistics.mean(map(abs, found)) for found in errors.values()),
        100 * statistics.mean(map(statistics.mean, errors.values())),
        float(np.quantile([100 * abs(error) for error in every], 0.9)),
        100 * statistics.mean(statistics.mean(found) for found in inside.values()),
    )


def cross_validate(
    rows: Sequence[Measured],
    names: Callable[[Measured], Iterable[str]],
    start: Constants,
    errors_of: Mapping[str, float],
) -> None:
    """Leave out all rows of one name after the other, and print a line for each, and means over names."""
    print(f"{'left out':<30} {'rows':>5} {'MAPE %':>7} {'bias %':>7} {'9 of 10':>7} {'in range %':>10}")
    found = []
    for name in sorted({name for row in rows for name in names(row)}):
        out = [row for row in rows if name in names(row)]
        found.append(left_out(rows, lambda row, name=name: name in names(row), start, errors_of))  # type: ignore[misc]
        print(f"{name:<30} {len(out):>5} {_cells(found[-1])}", flush=True)
    means = LeftOut(*(statistics.mean(values) for values in zip(*map(astuple, found), strict=True)))
    print(f"{'mean':<30} {'':>5} {_cells(means)}")


def _cells(found: LeftOut) -> str:
    return f"{found.error:>7.1f} {found.bias:>+7.1f} {found.worst:>7.1f} {found.inside:>10.0f}"


def kinds_of_run(row: Measured) -> Iterator[str]:
    """Yield the kinds that a run belongs to: what constants could not learn from runs without it."""
    layout, cluster = row.run.layout, row.run.cluster
    if row.run.model.experts:
        yield "mixture of experts"
    if layout.zero == 3:
        yield "FSDP"
    if layout.pp > 1:
        yield "pipeline"
    if layout.num_gpus <= cluster.nvlink_domain:
        yield "in one NVLink domain"
    elif cluster.node_bandwidth <= _SLOW_NETWORK:
        yield "network of 800 Gbit/s or less"
    yield f"program {row.run.program}"
    yield f"generation {row.gpu.split('-')[0]}"


def runs_for_ranges(rows: Sequence[Measured], errors_of: Mapping[str, float]) -> list[MeasuredRun]:
    """Return at most `_MOST_NEAREST` runs of each source, with their errors, which have the names of rows."""
    chosen = [row for group in _groups(rows, lambda row: row.source).values() for row in _some(group)]
    return [
        MeasuredRun(row.source, row.gpu, **features_of(row.run), program=row.run.program, error=errors_of[row.row_id])
        for row in chosen
    ]


def _some(rows: Sequence[Measured]) -> Sequence[Measured]:
    return rows[:: math.ceil(len(rows) / _MOST_NEAREST)]


def write_nearest(rows: Sequence[Measured], constants: Constants) -> None:
    """Write the runs from which `frog plan` takes its ranges."""
    with _NEAREST.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(MeasuredRun)])
        for run in runs_for_ranges(rows, errors_left_out(rows, constants)):
            source, gpu, *sizes, program, error = astuple(run)
            writer.writerow([source, gpu, *(f"{value:.6g}" for value in sizes), program, f"{error:.4f}"])


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
    parser.add_argument("--kinds", action="store_true")
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
        print_judged(args.data, constants)
    print_not_fitted(constants)
    if args.fit:
        for name, value in vars(constants).items():
            print(f"    {name}={value:.4g},")
    errors_of = errors_left_out(rows, constants) if args.cross or args.kinds else {}
    if args.cross:
        print("\nfitted on the other sources")
        cross_validate(rows, lambda row: [row.source], constants, errors_of)
    if args.kinds:
        print("\nfitted on the other kinds of run")
        cross_validate(rows, kinds_of_run, constants, errors_of)


if __name__ == "__main__":
    main()
