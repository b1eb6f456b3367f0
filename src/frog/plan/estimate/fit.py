"""Fit the constants of the model of step time on measured runs, and read and write them.

A fit minimizes robust errors of the logarithm; every source has the same weight, whatever its number of rows, and every
constant is drawn to its prior.
"""

from __future__ import annotations

import csv
import math
import statistics
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from frog.core.config.load import list_problems, unknown_keys
from frog.core.errors import ConfigError
from frog.core.schema import read_toml, shortened
from frog.plan.estimate.cells import Row
from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.rows import PlannedRun, read_row
from frog.plan.estimate.step_time import StepModel

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
_LEAST_GAIN = 1e-3
"""Part of the sum of squares by which a round has to lower it for another one to follow."""


@dataclass(frozen=True)
class Measured:
    """A measured run that can be predicted."""

    row_id: str
    source: str
    gpu: str
    table: str
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
    runs = []
    for file in files:
        with file.open(newline="") as lines:
            runs += [measured for row in csv.DictReader(lines) if (measured := measured_row(row))]
    return runs


def measured_row(row: Row) -> Measured | None:
    """Return a row with a step time, of quality A or B if it states one, that can be predicted; else None."""
    text = row.get("target_step_s") or row.get("step_time_s") or ""
    if (row.get("scope") or "step") != "step" or (row.get("quality") or "A") not in ("A", "B"):
        return None
    try:
        run, step_s = read_row(row), float(text)
    except (ConfigError, ValueError):
        return None
    if not 0 < step_s < math.inf:
        return None
    return Measured(row["row_id"], row.get("source_id") or "own", row["gpu"], row.get("table") or "", run, step_s)


# ---- the fit ---------------------------------------------------------------------------------------------------------


def fit(rows: Sequence[Measured], start: Constants = FITTED, prior: Constants | None = None) -> Constants:
    """Fit the constants by Gauss-Newton on their logarithms, with damping, equal weights of sources, and priors.

    The prior is that of Frog's own fit, the defaults of `Constants`, or the constants that were known before.
    """
    by_source = defaultdict(list)
    for row in rows:
        by_source[row.source].append(row)
    chosen = [row for group in by_source.values() for row in group[:: math.ceil(len(group) / _MOST_ROWS)]]
    counts = {name: sum(row.source == name for row in chosen) for name in by_source}
    weights = np.array([math.sqrt(10 / counts[row.source]) / _ROW_SIGMA for row in chosen])
    expected = _logs(prior or Constants())
    sigma = np.array([_EFFICIENCY_SIGMA if name in _TIGHT else _PRIOR_SIGMA for name in _NAMES])

    def residuals(logs: np.ndarray) -> np.ndarray:
        constants = _from_logs(logs)
        errors = np.array([row.error(constants) for row in chosen])
        robust = np.sign(errors) * np.sqrt(2 * _HUBER**2 * (np.sqrt(1 + (errors / _HUBER) ** 2) - 1))
        return np.concatenate([robust * weights, (logs - expected) / sigma])

    most = np.array([0.0 if name in _EFFICIENCIES else math.inf for name in _NAMES])
    return _from_logs(gauss_newton(residuals, np.minimum(_logs(start), most), most))


def gauss_newton(residuals: Callable[[np.ndarray], np.ndarray], at: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Minimize the sum of squares up to the limits `most`, with Levenberg and Marquardt's damping.

    A number at its limit stays there while the sum falls towards it; its derivative is taken from below.
    """
    damping, now = 1e-2, residuals(at)
    for _ in range(_ROUNDS):
        sizes = np.where(at + 0.01 > most, -0.01, 0.01)
        jacobian = np.stack([(residuals(at + step) - now) / step.sum() for step in np.diag(sizes)], axis=1)
        free = (at < most) | (jacobian.T @ now > 0)
        square, slope = jacobian[:, free].T @ jacobian[:, free], jacobian[:, free].T @ now
        while damping < 1e6:
            tried = at.copy()
            tried[free] -= np.linalg.solve(square + damping * np.diag(np.diag(square)), slope)
            tried = np.minimum(tried, most)
            if (new := residuals(tried)) @ new < now @ now:
                is_done = now @ now - new @ new < _LEAST_GAIN * (now @ now)
                at, now, damping = tried, new, damping / 3
                break
            damping *= 4
        else:
            is_done = True
        if is_done:
            break
    return at


def _logs(constants: Constants) -> np.ndarray:
    return np.log([getattr(constants, name) for name in _NAMES])


def _from_logs(logs: np.ndarray) -> Constants:
    values = dict(zip(_NAMES, np.exp(logs).tolist(), strict=True))
    limits = dict.fromkeys(_EFFICIENCIES, 1.0)
    return Constants(**{name: min(value, limits.get(name, math.inf)) for name, value in values.items()})


def mape(rows: Iterable[Measured], constants: Constants) -> float:
    """Return the mean absolute error of the step time, in per cent."""
    return 100 * statistics.mean(abs(math.expm1(row.error(constants))) for row in rows)


# ---- files -----------------------------------------------------------------------------------------------------------


def constants_text(constants: Constants, about: str) -> str:
    """Return a TOML file of constants."""
    lines = [f"{name} = {value:.6g}" for name, value in vars(constants).items()]
    return "\n".join([f"# {about}", *lines]) + "\n"


def read_constants(path: Path) -> Constants:
    """Read a TOML file of constants; a missing one is Frog's own.

    Raises:  ConfigError listing every unknown name and wrong value.
    """
    hint = "write one with: frog plan fit TABLE.csv --to FILE"
    try:
        table = read_toml(path, ConfigError, hint)
    except FileNotFoundError:
        raise ConfigError(f"{shortened(str(path))}: no such file", hint) from None
    problems = unknown_keys(table, _NAMES)
    for name in _NAMES:
        most = 1.0 if name in _EFFICIENCIES else 1e3
        if name in table and not _is_between(table[name], most):
            problems.append(f"{name}={shortened(repr(table[name]))}: must be above 0 and at most {most:g}")
    if problems:
        raise ConfigError(list_problems(path, problems), hint)
    return replace(FITTED, **table)


def _is_between(value: Any, most: float) -> bool:
    return type(value) in (int, float) and 0 < value <= most
