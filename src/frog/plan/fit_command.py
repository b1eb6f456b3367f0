"""`frog plan fit TABLE.csv`: fit the planner's constants on measured runs. Imports happen when the command runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_FEWEST = 3


def add_fit_parser(actions: argparse._SubParsersAction[Any]) -> None:
    """Add `frog plan fit`."""
    parser = actions.add_parser(
        "fit",
        help="fit the planner's constants on your own measured runs",
        description="Fit the constants of the model of time on a table of measured runs, with the column step_time_s. "
        "They start at Frog's own and leave them only as far as the runs require. One run in three is held out. "
        "In a row with target_step_s, as in Frog's own table of runs, that is the measured time.",
    )
    parser.add_argument("table", type=Path, metavar="TABLE.csv", help="one run per row; the columns: docs/plan/plan.md")
    parser.add_argument("--to", type=Path, metavar="FILE", help="write the constants there, for --constants FILE")
    parser.set_defaults(handler=_fit)


def _fit(args: argparse.Namespace) -> int:
    from frog.core.errors import UsageError
    from frog.core.files import write_atomic
    from frog.plan.estimate.constants import FITTED
    from frog.plan.estimate.fit import constants_text, fit, mape, measured_row
    from frog.plan.estimate.predict import read_table

    table = read_table(args.table)
    rows = [measured for row in table if (measured := measured_row(row))]
    seen, held_out = [row for row in rows if not row.is_held_out], [row for row in rows if row.is_held_out]
    if len(seen) < _FEWEST:
        raise UsageError(
            f"{args.table}: {len(seen)} runs to fit on, of {len(table)} rows: at least {_FEWEST} need a step_time_s "
            "and a prediction",
            f"frog plan predict {args.table} gives the reason for each row",
        )
    constants = fit(seen, FITTED, prior=FITTED)
    both = sum(bool(row.get("target_step_s") and row.get("step_time_s")) for row in table)
    if both:
        print(f"{both} rows have both target_step_s and step_time_s: target_step_s is taken as measured")
    print(f"{len(rows)} of {len(table)} rows; error of the step time, %     before    after")
    for name, part in (("fitted", seen), ("held out", held_out)):
        if part:
            print(f"  {name:<10} {len(part):>4} runs {mape(part, FITTED):>29.1f} {mape(part, constants):>8.1f}")
    changed = {name: (old, getattr(constants, name)) for name, old in vars(FITTED).items()}
    for name, (old, new) in changed.items():
        if abs(new / old - 1) > 0.01:
            print(f"  {name:<18} {old:.4g} -> {new:.4g}")
    if args.to is not None:
        about = f"fitted by frog plan fit on {len(seen)} runs of {args.table.name}"
        write_atomic(args.to, constants_text(constants, about))
        print(f"{args.to}: use it with --constants {args.to}")
    return 0
