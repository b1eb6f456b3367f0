"""Predict the rows of a table of runs: step time, memory, and a range around the time."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from frog.core.errors import ConfigError, UsageError
from frog.core.schema import read_bounded, shortened
from frog.plan.estimate.cells import Row
from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.nearest import MeasuredRun, measured_runs, spread_of_nearest
from frog.plan.estimate.rows import PlannedRun, read_row

COLUMNS = ("row_id", "step_time_s", "memory_gib", "step_time_low_s", "step_time_high_s", "why")
_SPREAD = 0.13
"""With the factors below, nine of ten measured runs are inside, if their source was not fitted on."""
_WIDER = {"gpu": 1.6, "experts": 2.0, "assumed": 1.3, "adapters": 2.0, "precision": 1.6}
"""Factors of the spread for a GPU without measured runs, a mixture of experts, for what a row does not state, and for
adapters and formats (MXFP8, NVFP4) on whose runs no constant is fitted."""
_MOST_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Prediction:
    """A row's prediction; without numbers, `why` is the reason."""

    row_id: str
    why: str
    step_time_s: float | None = None
    memory_gib: float | None = None
    spread: float = 0.0

    def cells(self) -> list[str]:
        """Return the cells of the row, in the order of COLUMNS."""
        if self.step_time_s is None or self.memory_gib is None:
            return [self.row_id, "", "", "", "", self.why]
        times = (self.step_time_s, self.step_time_s / (1 + self.spread), self.step_time_s * (1 + self.spread))
        step, low, high = (f"{seconds:.6g}" for seconds in times)
        return [self.row_id, step, f"{self.memory_gib:.2f}", low, high, self.why]


def read_table(path: Path) -> list[Row]:
    """Read a CSV file with a header.

    Raises:  UsageError if it is missing, not CSV, or has no column `row_id`.
    """
    hint = "name a CSV file with the columns of docs/plan/plan.md, their names in its first line"
    try:
        text = read_bounded(path, UsageError, hint, _MOST_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file", hint) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text", hint) from None
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except csv.Error as problem:
        raise UsageError(f"{path}: not a CSV file: {problem}", hint) from None
    if not rows or "row_id" not in rows[0]:
        names = ", ".join(key for key in rows[0] if isinstance(key, str)) if rows else ""
        hint_of_content = f"; its columns: {shortened(names, 100)}" if names else ""
        hint_of_content += "; it looks like JSON, not CSV" if text.lstrip()[:1] in ("[", "{") else ""
        raise UsageError(f"{path}: no rows with a column row_id{hint_of_content}", hint)
    return [{key: value or "" for key, value in row.items() if isinstance(key, str)} for row in rows]


def predict_rows(rows: Iterable[Row], constants: Constants = FITTED) -> Iterator[Prediction]:
    """Predict each row, or give the reason why not."""
    for row in rows:
        try:
            yield predict_row(row, constants)
        except ConfigError as problem:
            yield Prediction(row["row_id"], str(problem.what))
        except (OverflowError, ZeroDivisionError):
            yield Prediction(row["row_id"], "a number is out of range")


def predict_row(row: Row, constants: Constants = FITTED) -> Prediction:
    """Predict a step, or for `scope` layer the passes through one layer.

    Raises:  ConfigError if the row does not describe a run that can be predicted.
    """
    run = replace(read_row(row), constants=constants)
    return predict_run(run, row["row_id"], only_layer=row.get("scope") == "layer")


def predict_run(run: PlannedRun, row_id: str, *, only_layer: bool = False) -> Prediction:
    """Predict a step of a run, or the passes through one layer."""
    step = run.step
    memory = step.memory
    one_layer = step.layers.layer(mixture=bool(run.model.moe_layers)) if only_layer else None
    seconds = one_layer.total.total if one_layer else step.step.total
    return Prediction(row_id, _why(run, memory.total), seconds, memory.total / 2**30, spread_of(run))


def spread_of(run: PlannedRun, among: Sequence[MeasuredRun] = ()) -> float:
    """Return the relative width of the range around a prediction's time: at least what the nearest of the measured
    runs were off, or of some of them.
    """
    return max(least_spread(run, among), spread_of_nearest(run, among))


def least_spread(run: PlannedRun, among: Sequence[MeasuredRun] = ()) -> float:
    """Return the least width of the range for a run of this kind."""
    spread = _SPREAD
    if all(run.cluster.gpu.name != other.gpu for other in among or measured_runs()):
        spread *= _WIDER["gpu"]
    if run.model.experts:
        spread *= _WIDER["experts"]
    if run.adapters is not None:
        spread *= _WIDER["adapters"]
    if run.layout.precision in ("mxfp8", "nvfp4"):
        spread *= _WIDER["precision"]
    return spread * (_WIDER["assumed"] if run.assumed else 1.0)


def _why(run: PlannedRun, memory: float) -> str:
    notes = [f"assumed {', '.join(run.assumed)}"] if run.assumed else []
    notes += run.layout.notes(run.model)
    if memory > run.cluster.gpu.memory:
        notes.append(f"does not fit: needs {memory / 2**30:.0f} GiB of {run.cluster.gpu.memory / 2**30:.0f}")
    return "; ".join(notes)
