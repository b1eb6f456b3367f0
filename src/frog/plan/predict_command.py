"""`frog plan` and `frog plan predict`: predict runs on clusters. Imports happen when the command runs."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from pathlib import Path

from frog.core.user_input import CommandOrValue
from frog.plan.calibrate_command import add_calibrate_parser
from frog.plan.fit_command import add_fit_parser
from frog.plan.model_command import add_constants_argument, add_model_parser, read_constants_of
from frog.plan.program_command import add_program_parser
from frog.plan.rl_command import add_rl_parser
from frog.plan.search_command import add_search_parser
from frog.plan.serve_command import add_serve_parser
from frog.plan.simulate_command import add_simulate_parser


def add_plan_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `plan`; it sets `handler`, which takes the arguments."""
    plan = commands.add_parser(
        "plan",
        help="predict memory, time and cost of training and serving on a cluster",
        description="Predict memory, time and cost of training and serving on GPUs, by formula: docs/plan/plan.md.",
    )
    actions = plan.add_subparsers(dest="action", required=True, metavar="MODEL | ACTION", action=CommandOrValue)
    add_model_parser(actions)
    add_search_parser(actions)
    add_program_parser(plan, actions)
    add_simulate_parser(actions)
    add_serve_parser(actions)
    add_rl_parser(actions)
    add_fit_parser(actions)
    add_calibrate_parser(actions)
    predict = actions.add_parser(
        "predict",
        help="predict each row of a table of runs",
        description="Predict each row of a CSV table of runs: model, GPU, layout, batch. Prints CSV.",
    )
    predict.add_argument("table", type=Path, metavar="TABLE.csv", help="one run per row; columns: docs/plan/plan.md")
    predict.add_argument("--to", type=Path, metavar="FILE", help="write the predictions there")
    add_constants_argument(predict)
    predict.set_defaults(handler=_predict)


def _predict(args: argparse.Namespace) -> int:
    from frog.core.files import write_atomic
    from frog.plan.estimate.predict import COLUMNS, predict_rows, read_table

    predictions = list(predict_rows(read_table(args.table), read_constants_of(args)))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(prediction.cells() for prediction in predictions)
    if args.to is None:
        sys.stdout.write(text.getvalue())
        return 0
    write_atomic(args.to, text.getvalue())
    num_known = sum(prediction.step_time_s is not None for prediction in predictions)
    print(f"{args.to}: predicted {num_known} of {len(predictions)} rows; the column `why` has the reasons")
    return 0
